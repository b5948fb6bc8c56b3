"""Test the placement role as a whole service on the in-process bus and SQLite, and its commands."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg
from support.databases import migrated
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.bus.bus import Bus, Client
from moorage.cli.shell import main
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import (
    CreateResourceProvider,
    DeleteAllocations,
    EnsureResourceClass,
    GetAllocations,
    GetResourceProvider,
    ListCells,
    PutAllocations,
    SetInventories,
)
from moorage.model import Inventory
from placement_store import cells
from placement_store.schema import MAIN
from placement_store.service import PlacementService


@pytest.fixture
def conf(tmp_path: Path) -> cfg.ConfigOpts:
    """The configuration of one service, whose database is empty."""
    return options.new(
        {
            "DEFAULT": {"transport_url": f"inproc://{ids.fresh()}/"},
            "database": {"connection": f"sqlite:///{tmp_path}/main.sqlite"},
            "rpc": {"call_timeout": 20.0},
        }
    )


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """The database of that service, with its tables."""
    database = Database(migrated.sqlite(tmp_path / "main.sqlite", MAIN), "main")
    yield database
    database.close()


@pytest.fixture
def placement(conf: cfg.ConfigOpts, database: Database) -> Iterator[Client]:
    """A client of a running placement role."""
    service = PlacementService(conf, "placement1")
    service.start()
    bus = Bus(conf)
    yield bus.client("placement")
    bus.close()
    service.stop()


def test_a_provider_is_filled_and_emptied_over_the_bus(placement: Client) -> None:
    # Given a provider with an inventory
    host, consumer = ids.fresh(), ids.fresh()
    placement.call(CreateResourceProvider(request_id="r1", uuid=host, name="host"))
    inventories = {"VCPU": Inventory(total=2), "CUSTOM_GPU": Inventory(total=1)}
    placement.call(EnsureResourceClass(request_id="r0", name="CUSTOM_GPU"))
    placement.call(SetInventories(request_id="r2", uuid=host, generation=0, inventories=inventories))

    # When a consumer takes all of it
    everything = {host: {"VCPU": 2, "CUSTOM_GPU": 1}}
    put = PutAllocations(request_id="r3", consumer_uuid=consumer, wanted=Store.wanted(everything))
    assert placement.call(put) == placement.call(put)

    # Then no other consumer gets anything, until it is released
    other = PutAllocations(request_id="r4", consumer_uuid=ids.fresh(), wanted=Store.wanted({host: {"VCPU": 1}}))
    with pytest.raises(errors.CapacityExceeded) as caught:
        placement.call(other)
    assert caught.value.refusals[0] == {
        "provider_uuid": host,
        "resource_class": "VCPU",
        "asked": 1,
        "free": 0.0,
        "reason": "not enough room",
    }
    assert placement.call(GetResourceProvider(uuid=host)).used == {"VCPU": 2, "CUSTOM_GPU": 1}
    placement.call(DeleteAllocations(request_id="r5", consumer_uuid=consumer, for_good=True))
    assert placement.call(other).consumer_generation == 1
    with pytest.raises(errors.ConsumerNotFound):
        placement.call(GetAllocations(consumer_uuid=consumer))


@pytest.mark.parametrize(
    ("amounts", "path"),
    [
        ({"VCPU": -1}, "resources"),
        ({"VCPU": 0}, "resources"),
        ({"VCPU": 2**31}, "resources"),
        ({"vcpu": 1}, "resources"),
        ({}, "resources"),
    ],
)
def test_an_invalid_amount_is_refused_with_its_path_and_writes_nothing(
    placement: Client, database: Database, amounts: dict[str, int], path: str
) -> None:
    host = ids.fresh()
    placement.call(CreateResourceProvider(request_id="r1", uuid=host, name="host"))
    with pytest.raises(errors.InvalidRequest) as caught:
        placement.call(PutAllocations(request_id="r2", consumer_uuid=host, wanted=Store.wanted({host: amounts})))
    assert path in caught.value.path
    assert Store(database).rows() == {}


def test_the_role_refuses_to_start_on_an_unreachable_database(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    (tmp_path / "main.sqlite").mkdir()
    with pytest.raises(errors.StoreUnavailable):
        PlacementService(conf, "placement1").start()


def test_the_role_refuses_to_start_on_a_database_without_its_schema(conf: cfg.ConfigOpts) -> None:
    service = PlacementService(conf, "placement1")
    with pytest.raises(errors.SchemaMismatch):
        service.start()
    service.stop()


def test_cells_are_listed_over_the_bus_with_complete_urls(placement: Client, database: Database) -> None:
    url = "rabbit://user:secret@127.0.0.1:5672/cell"
    made = cells.create(database, name="cell1", uuid=ids.fresh(), transport_url=url)
    assert placement.call(ListCells()) == [made]


# --- Commands -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(conf: cfg.ConfigOpts, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a `moorage` command against the database; return its exit status and what it has printed."""
    file = tmp_path / "moorage.conf"
    file.write_text(f"[database]\nconnection = {conf.database.connection}\n")

    def command(*words: str) -> tuple[int, str, str]:
        status = main(["--config-file", str(file), *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


def test_cells_are_created_and_listed_without_their_passwords(run: Any, database: Database, tmp_path: Path) -> None:
    uuid, bus = ids.fresh(), "rabbit://u:secret@127.0.0.1:1/c"
    records = f"sqlite:///{tmp_path}/cell1.sqlite"
    status, out, _ = run(
        "cell", "create", "cell1", "--uuid", uuid, "--transport-url", bus, "--database-connection", records,
        "-f", "json",
    )  # fmt: skip
    created = json.loads(out)
    assert (status, created["name"], created["uuid"], created["database_connection"]) == (0, "cell1", uuid, records)
    far = "mysql+pymysql://u:secret@127.0.0.1/c"
    cells.create(database, name="cell2", uuid=ids.fresh(), database_connection=far)
    cells.create(database, name="cell3", uuid=ids.fresh())

    status, listed, _ = run("cell", "list", "-f", "json")

    assert "secret" not in out + listed
    assert [(row["name"], row["transport_url"], row["database_connection"]) for row in json.loads(listed)] == [
        ("cell1", "rabbit://u:***@127.0.0.1:1/c", records),
        ("cell2", None, "mysql+pymysql://u:***@127.0.0.1/c"),
        ("cell3", None, None),
    ]
    assert [cell.transport_url for cell in cells.list_cells(database)] == [bus, None, None]


def test_an_existing_cell_is_refused_in_one_sentence(run: Any, database: Database) -> None:
    run("cell", "create", "cell1")
    status, _, err = run("cell", "create", "cell1")
    assert status != 0
    assert "The cell cell1 exists already." in err


def test_an_empty_bus_of_a_cell_is_that_of_the_main_configuration(run: Any, database: Database) -> None:
    assert run("cell", "create", "cell1", "--transport-url", "")[0] == 0
    assert [cell.transport_url for cell in cells.list_cells(database)] == [None]


def test_an_invalid_transport_url_is_refused_before_anything_is_written(run: Any, database: Database) -> None:
    run("cell", "create", "cell1", "--transport-url", "rabbit://127.0.0.1:1/")
    for words in (("create", "cell2"), ("set", "cell1", "--name", "other")):
        for url in ("rabbit//u:secret@h/", "rabbitt://u:secret@h/", "rabbit://u:secret@h:port/", "inproc://"):
            status, _, err = run("cell", *words, "--transport-url", url)
            assert (status, "secret" in err) == (1, False)
            assert "The configuration is wrong: transport_url" in err
    assert [(cell.name, cell.transport_url) for cell in cells.list_cells(database)] == [
        ("cell1", "rabbit://127.0.0.1:1/")
    ]


def test_a_bus_that_refuses_the_account_is_refused_before_anything_is_written(
    run: Any, database: Database, rabbitmq_url: str
) -> None:
    head, _, name = rabbitmq_url.partition("@")
    refused = f"{head.rpartition(':')[0]}:wrong@{name}"
    assert run("cell", "create", "cell1", "--transport-url", rabbitmq_url)[0] == 0
    for words in (("create", "cell2"), ("set", "cell1", "--name", "other")):
        status, _, err = run("cell", *words, "--transport-url", refused)
        assert (status, ":wrong@" in err) == (1, False)
        assert "The broker refuses the connection" in err
    assert [(cell.name, cell.transport_url) for cell in cells.list_cells(database)] == [("cell1", rabbitmq_url)]


def test_a_bus_that_is_away_is_recorded_with_a_warning(run: Any, database: Database) -> None:
    away = "rabbit://127.0.0.1:1/"
    status, _, err = run("cell", "create", "cell1", "--transport-url", away)
    assert status == 0
    assert "The bus of the cell was not checked: The message bus cannot be reached" in err
    assert [cell.transport_url for cell in cells.list_cells(database)] == [away]


def test_a_database_without_the_schema_is_refused_in_one_sentence(run: Any) -> None:
    status, _, err = run("cell", "list")
    assert status != 0
    assert "moorage db upgrade" in err
