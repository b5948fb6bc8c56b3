"""Test the commands `moorage cell set`, `delete` and `list`, and `moorage claim list`."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import operator as cli
from support.placement_store.builders import Store
from support.scheduler.builders import CELLS
from support.scheduler.rig import Rig, node_uuid

from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Bus, serves
from moorage.config import options
from moorage.messages import Ownership, OwnsClaim, ShowInCell
from moorage.model import Instance
from placement_store import cells
from placement_store.service import PlacementService


class Operator(cli.Operator):
    """An operator of a store with two cells: hosts 1 and 2 are in the first."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.rig = Rig(f"sqlite:///{folder}/main.sqlite")
        self.rig.add_hosts([1, 2])
        self.store = Store(self.rig.database)
        self.bus_url = f"inproc://{ids.fresh()}/"
        config_file = folder / "moorage.conf"
        config_file.write_text(f"[DEFAULT]\ntransport_url = {self.bus_url}\n[database]\nconnection = {self.rig.url}\n")
        super().__init__(config_file, [], capsys)

    def cells(self) -> dict[str, tuple[str | None, str | None]]:
        return {c.name: (c.transport_url, c.database_connection) for c in cells.list_cells(self.rig.database)}


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    operator = Operator(tmp_path, capsys)
    yield operator
    operator.rig.close()


def test_a_cell_is_renamed_and_its_urls_are_changed_one_by_one(operator: Operator, tmp_path: Path) -> None:
    bus, records = "rabbit://u:secret@127.0.0.1:1/c", f"sqlite:///{tmp_path}/cell.sqlite"

    shown = operator.types("cell set cell0 --name west --transport-url", bus)
    assert (shown["name"], shown["uuid"], shown["transport_url"]) == ("west", CELLS[0], "rabbit://u:***@127.0.0.1:1/c")
    assert operator.cells() == {"west": (bus, None), "cell1": (None, None)}

    operator.types("cell set west --database-connection", records)
    assert operator.cells()["west"] == (bus, records)
    assert (tmp_path / "cell.sqlite").exists()

    operator.types("cell set west --transport-url", "", "--database-connection", "")
    assert operator.cells()["west"] == (None, None)


def test_an_invalid_change_of_a_cell_is_refused(operator: Operator, tmp_path: Path) -> None:
    before = operator.cells()
    assert "The cell cell1 exists already." in operator.is_refused("cell set cell0 --name cell1")
    assert "There is no cell none." in operator.is_refused("cell set none --name cell2")
    assert "give at least one change" in operator.is_refused("cell set cell0")
    unreachable = f"sqlite:///{tmp_path}/no/such/folder.sqlite"
    refusal = operator.is_refused("cell set cell0 --database-connection", unreachable)
    assert "The database of cell cell0 cannot be reached" in refusal
    assert "not the URL of a database" in operator.is_refused("cell set cell0 --database-connection secret")
    assert operator.cells() == before


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("cell create cell9 --ddl-connection sqlite:///x", "--ddl-connection needs --database-connection: it is of"),
        ("cell set cell0 --name x --ddl-connection sqlite:///x", "--ddl-connection needs --database-connection: it is"),
        ("cell set cell0", "give at least one change"),
        ("db upgrade --ddl-connection sqlite:///x", "--ddl-connection needs --cell"),
        ("db upgrade --cell cell0 --schema main", "a cell has no schema main"),
        ("db upgrade --cell cell0 --restored", "--restored is about the main schema"),
        ("audit --apply", "--apply needs --heal"),
    ],
)
def test_options_that_do_not_go_together_are_refused_as_the_command_line_and_not_as_the_configuration(
    operator: Operator, command: str, reason: str
) -> None:
    before = operator.cells()
    assert operator.is_refused(command).startswith(f"The request is invalid at command line: {reason}")
    assert operator.cells() == before


def test_only_a_cell_without_hosts_is_deleted(operator: Operator) -> None:
    operator.rig.take(1, vcpus=1)
    operator.rig.take(2, vcpus=1)
    for dry_run in ((), ("--dry-run",)):
        refusal = operator.is_refused("cell delete cell0", *dry_run)
        assert "cell cell0 has 2 hosts, and 2 consumers are on them" in refusal
    assert "There is no cell none." in operator.is_refused("cell delete none")

    assert operator.types("cell delete cell1 --dry-run")["deleted"] is False
    assert operator.cells().keys() == {"cell0", "cell1"}
    assert operator.types("cell delete cell1")["deleted"] is True
    assert operator.cells().keys() == {"cell0"}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("db upgrade --dry-run", 0),
        ("cell list", 1),
        ("resource provider list --database-url configured", 1),
        ("db upgrade", 0),
    ],
)
def test_only_an_upgrade_creates_a_database_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, status: int
) -> None:
    database, file = tmp_path / "main.sqlite", tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = inproc://unused/\n[database]\nconnection = sqlite:///{database}\n")

    ended, rows = cli.Operator(file, [], capsys).runs(command)

    assert ended == status
    assert rows is None or {row["before"] for row in rows} == {"none"}
    assert database.exists() == (command == "db upgrade")


class FakeCellConductor:
    """Answers for its cell, with no instances."""

    @serves(ShowInCell)
    def list_instances(self, message: ShowInCell) -> list[Instance]:
        assert message.instance_uuids == ()
        return []


class FailingCellConductor:
    """Cannot reach its database."""

    @serves(ShowInCell)
    def list_instances(self, message: ShowInCell) -> list[Instance]:
        raise errors.StoreUnavailable(schema="cell", reason="gone")


def test_the_list_of_cells_shows_reachable_buses_and_answering_conductors(operator: Operator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    far, broken = ids.fresh(), ids.fresh()
    url = f"rabbit://u:secret@127.0.0.1:{port}/"
    cells.create(operator.rig.database, name="far", uuid=far, transport_url=url)
    cells.create(operator.rig.database, name="broken", uuid=broken)
    bus = Bus(options.new({"DEFAULT": {"transport_url": operator.bus_url}}))
    bus.server(f"conductor.{CELLS[0]}", "c1", [FakeCellConductor()]).start()
    bus.server(f"conductor.{broken}", "c1", [FailingCellConductor()]).start()

    listed = operator.types("cell list")

    bus.close()
    assert {row["name"]: (row["bus_reachable"], row["conductor_answers"]) for row in listed} == {
        "broken": (True, True),
        "cell0": (True, True),
        "cell1": (True, False),
        "far": (False, False),
    }


@pytest.fixture
def role(operator: Operator) -> Iterator[PlacementService]:
    """A running placement role, whose reconciler works at once and often."""
    role = PlacementService(
        options.new(
            {
                "DEFAULT": {"transport_url": operator.bus_url},
                "database": {"connection": operator.rig.url},
                "placement": {"reconcile_interval": 0.1, "reconcile_after": 1000.0},
            }
        ),
        "p1",
    )
    role.start()
    yield role
    role.stop()


def test_claims_are_listed_from_a_running_placement_role(operator: Operator, role: PlacementService) -> None:
    old, new, attempt = ids.fresh(), ids.fresh(), ids.fresh()
    claim_id = operator.store.claim(old, {node_uuid(1): {"VCPU": 1}}).claim_id
    operator.store.age("consumers", "claimed_at", 100.0)
    accepted = operator.store.claim(new, {node_uuid(2): {"VCPU": 1}}).claim_id
    operator.store.accept(new, accepted, attempt, host="host2")

    [first, second] = operator.types("claim list")
    assert (first["consumer"], first["claim"], first["node"], first["attempt"]) == (old, claim_id, "host1", None)
    assert (second["attempt"], second["host"], second["type"]) == (attempt, "host2", "INSTANCE")
    unaccepted = operator.types("claim list --unaccepted --older-than 60")
    assert [row["consumer"] for row in unaccepted] == [old]
    operator.store.delete(new, for_good=True, leave_residue=True)
    listed = operator.types("claim list --residues")
    assert [(row["consumer"], row["type"]) for row in listed] == [(old, "INSTANCE"), (attempt, "RESIDUE")]
    assert "must be a number of seconds from 0 to" in operator.is_refused("claim list --older-than -1")


class FakeOwner:
    """Wants no claim."""

    @serves(OwnsClaim)
    def owns_claim(self, message: OwnsClaim) -> Ownership:
        return Ownership(owned=False)


def test_reconciled_claims_are_listed_from_a_running_placement_role(operator: Operator, role: PlacementService) -> None:
    bus = Bus(options.new({"DEFAULT": {"transport_url": operator.bus_url}}))
    bus.server("conductor", "c1", [FakeOwner()]).start()
    young, old = ids.fresh(), ids.fresh()
    claim_id = operator.store.claim(old, {node_uuid(1): {"VCPU": 1}}).claim_id
    operator.store.age("consumers", "claimed_at", 2000.0)
    operator.store.claim(young, {node_uuid(1): {"VCPU": 1}})

    wait_until(lambda: operator.types("claim reconciled") != [], "the claim is released")

    bus.close()
    [row] = operator.types("claim reconciled")
    assert (row["consumer"], row["claim"], row["owner"], row["outcome"]) == (old, claim_id, "conductor", "released")
    assert operator.store.held(old) == {}
    assert operator.store.held(young) == {node_uuid(1): {"VCPU": 1}}
