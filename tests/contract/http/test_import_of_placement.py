"""Test `moorage db import-placement`: after it, every GET returns the same as that of Placement."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, exc, make_url
from support.databases import migrated
from support.http.differential.servers import Server, published
from support.http.placement_database import PlacementDatabase

from moorage import failpoints, ids
from moorage.cli.shell import main
from moorage.config import options
from moorage.db.database import Database
from placement_store.db import names
from placement_store.http.application import application
from placement_store.importing import source, store
from placement_store.importing.content import Content, differences
from placement_store.schema import MAIN, METADATA

#: The numbers of trees, of five providers each, and of consumers; a developer may import a million rows.
TREES, CONSUMERS = (int(number) for number in os.environ.get("IMPORTED", "6 40").split())


@pytest.fixture(scope="module")
def placement(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The published Placement with the data of a cloud."""
    with published(tmp_path_factory.mktemp("placement")) as server:
        PlacementDatabase(server._engine, server._tables.tables).fill(TREES, CONSUMERS)
        yield server


class Target:
    """An empty store, and a configuration file that names it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.file = folder / "moorage.conf"
        self.file.write_text(f"[database]\nconnection = {url}\n")
        migrated.give_tables(url, MAIN)
        self.database = Database(url, MAIN.name)

    def content(self) -> Content:
        return self.database.read_one_moment(store.read)

    def rows(self) -> dict[str, list[Any]]:
        """Return all rows of all tables."""
        with self.database.engine.connect() as connection:
            return {
                table.name: [tuple(row) for row in connection.execute(table.select().order_by(*table.primary_key))]
                for table in METADATA.sorted_tables
            }

    def server(self) -> Server:
        names.sync(self.database)
        conf = options.new(files=[])
        conf.set_override("auth_strategy", "noauth2", group="placement_api")
        return Server(application(conf, self.database), self.database.engine, METADATA)


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    url = f"sqlite:///{tmp_path}/main.sqlite" if request.param == "sqlite" else request.getfixturevalue("mariadb_url")
    made = Target(tmp_path, url)
    yield made
    made.database.close()


def imported(target: Target, named: str, *words: str) -> int:
    return main(["--config-file", str(target.file), "db", "import-placement", named, *words, "-f", "json"])


def url_of(server: Server) -> str:
    return str(server._engine.url)


def gets(server: Server, path: str) -> tuple[int, Any]:
    """Return the status, and the document with all lists sorted."""
    reply = server.ask("GET", path, "1.39", None, {})
    return reply.status_int, _ordered(json.loads(reply.body))


def _ordered(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _ordered(value) for key, value in document.items()}
    if isinstance(document, list):
        return sorted(map(_ordered, document), key=lambda one: json.dumps(one, sort_keys=True))
    return document


def paths(content: Content) -> Iterator[str]:
    """Yield the paths of all documents of a cloud."""
    yield from ("/resource_providers", "/resource_classes", "/traits", "/traits?associated=true")
    yield "/allocation_candidates?resources=VCPU:1"
    for name in content.resource_classes:
        yield f"/resource_classes/{name}"
    for uuid in content.providers:
        path = f"/resource_providers/{uuid}"
        yield path
        yield f"/resource_providers?in_tree={uuid}"
        for part in ("inventories", "usages", "aggregates", "traits", "allocations"):
            yield f"{path}/{part}"
    for uuid in content.consumers:
        yield f"/allocations/{uuid}"
    for project in {one.project_id for one in content.consumers.values()}:
        yield f"/usages?project_id={project}"


def test_after_an_import_every_get_agrees_with_placement(
    placement: Server, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported(target, url_of(placement)) == 0
    shown = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert shown["consumers"] == {
        "what": "consumers",
        "in the source": CONSUMERS,
        "in the store": 0,
        "result": "imported",
    }
    assert shown["providers"]["in the source"] == TREES * 5
    ours = target.server()
    asked = list(paths(target.content()))
    assert len(asked) > TREES * 5 * 7 + CONSUMERS
    for path in asked:
        assert gets(ours, path) == gets(placement, path), path
    assert ours.generations() == placement.generations()


def test_a_second_import_changes_nothing(placement: Server, target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(target, url_of(placement)) == 0
    before = target.rows()
    capsys.readouterr()
    assert imported(target, url_of(placement)) == 0
    assert {row["result"] for row in json.loads(capsys.readouterr().out)} == {"already there"}
    assert target.rows() == before


def test_a_dry_run_changes_nothing(placement: Server, target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    before = target.rows()
    assert imported(target, url_of(placement), "--dry-run") == 0
    assert {row["result"] for row in json.loads(capsys.readouterr().out)} == {"to be imported"}
    assert target.rows() == before


def test_an_import_whose_commit_is_not_answered_is_carried_out_once(placement: Server, target: Target) -> None:
    wanted, passed = source.read(make_url(url_of(placement))), list[str]()

    def lose_the_first_answer(name: str) -> None:
        passed.append(name)
        if passed.count("committed") == 1 == passed.count(name):
            raise exc.OperationalError("COMMIT", None, Exception("lost"), connection_invalidated=True)

    with failpoints.observed(lose_the_first_answer):
        target.database.write(lambda connection: store.write(connection, wanted))

    assert passed.count("committed") == 2
    assert differences(wanted, target.content()) == []


def test_all_imported_providers_are_recorded_in_the_change_feed(placement: Server, target: Target) -> None:
    assert imported(target, url_of(placement)) == 0
    rows = target.rows()
    assert {row[1] for row in rows["changes"]} == {row[0] for row in rows["resource_providers"]}
    assert len(rows["changes"]) == TREES * 5


def test_an_import_disables_the_idle_transaction_timeout(
    placement: Server, mariadb_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, limits = Target(tmp_path, mariadb_url), list[int]()
    write = store.write

    def looked_at(connection: Connection, wanted: Content) -> None:
        limits.append(connection.exec_driver_sql("SELECT @@SESSION.idle_transaction_timeout").scalar_one())
        write(connection, wanted)

    monkeypatch.setattr(store, "write", looked_at)
    with closing(target.database):
        assert imported(target, url_of(placement)) == 0
    assert limits == [0]


def copy_into(mariadb_url: str, placement: Server, *then: str) -> None:
    """Copy Placement's database to MariaDB, and run further statements there without its strict mode."""
    copy = create_engine(mariadb_url)
    placement._tables.create_all(copy)
    with placement._engine.connect() as original, copy.begin() as connection:
        connection.exec_driver_sql("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', foreign_key_checks = 0")
        for table in placement._tables.sorted_tables:
            if rows := [row._asdict() for row in original.execute(table.select())]:
                connection.execute(table.insert(), rows)
        for statement in then:
            connection.exec_driver_sql(statement)
    copy.dispose()


def test_a_source_on_mariadb_is_read_like_one_on_sqlite(placement: Server, mariadb_url: str) -> None:
    copy_into(mariadb_url, placement)
    assert source.read(make_url(mariadb_url)) == source.read(make_url(url_of(placement)))


#: What MariaDB stores for a missing time outside its strict mode.
ZERO_TIMES = "UPDATE {} SET created_at = '0000-00-00 00:00:00', updated_at = '0000-00-00 00:00:00'"


def test_zero_times_on_mariadb_are_read_as_unknown_ones(placement: Server, mariadb_url: str) -> None:
    copy_into(mariadb_url, placement, *map(ZERO_TIMES.format, ("resource_providers", "consumers")))
    read = source.read(make_url(mariadb_url))
    assert read == source.read(make_url(url_of(placement)))
    assert set(read.times.values()) == {(0.0, 0.0)}


# --- Refused imports --------------------------------------------------------------------------------------------------

FAULTS = {
    "UPDATE resource_providers SET root_provider_id = NULL WHERE id = 2": "has no root",
    "UPDATE resource_providers SET parent_provider_id = 999999 WHERE id = 2": "has a parent that does not exist",
    "UPDATE resource_providers SET parent_provider_id = 2 WHERE id = 2": "is not in the tree of its root",
    "UPDATE resource_providers SET parent_provider_id = 2, root_provider_id = 2 WHERE id = 2": "is not in the tree",
    "UPDATE resource_providers SET root_provider_id = 6 WHERE id = 2": "is not in the tree of its root",
    "UPDATE resource_providers SET name = 'blank ' WHERE id = 2": "the name of resource provider",
    "UPDATE resource_providers SET uuid = 'A' WHERE id = 2": "uuid of resource_providers is 'A'",
    "UPDATE resource_providers SET generation = -1 WHERE id = 2": "the generation of resource provider",
    "UPDATE resource_providers SET created_at = '2026-00-01 00:00:00' WHERE id = 2": "has the time '2026-00-01",
    "UPDATE resource_classes SET name = 'NEW' WHERE name = 'CUSTOM_GOLD'": "resource class NEW is not known here",
    "UPDATE inventories SET total = 0 WHERE id = 1": "the inventory of",
    "UPDATE inventories SET allocation_ratio = 0 WHERE id = 1": "($.allocation_ratio)",
    "UPDATE inventories SET allocation_ratio = 9e999 WHERE id = 1": "allocation_ratio is too large",
    "UPDATE inventories SET reserved = total + 1 WHERE id = 1": "more is reserved than there is",
    "DELETE FROM inventories WHERE resource_class_id = 0": "which has none",
    "INSERT INTO inventories SELECT 9999, 999999, 0, 1, 0, 1, 1, 1, 1.0, NULL, NULL": "an inventory has",
    "UPDATE allocations SET used = 0 WHERE id = 1": "the amount of an allocation",
    "UPDATE allocations SET resource_provider_id = 999999 WHERE id = 1": "an allocation of consumer",
    "UPDATE allocations SET (resource_class_id, resource_provider_id) = "
    "(SELECT resource_class_id, resource_provider_id FROM allocations WHERE id = 2) WHERE id = 1": "two allocations",
    "DELETE FROM consumers WHERE id = 1": "has no row: run `placement-manage db online_data_migrations`",
    "UPDATE consumers SET generation = -1 WHERE id = 1": "the generation of consumer",
    "UPDATE consumers SET updated_at = 'soon' WHERE id = 1": "has the time 'soon'",
    "UPDATE consumers SET consumer_type_id = 999999 WHERE id = 1": "has a consumer type that does not exist",
    "DELETE FROM projects": "has a project or a user that does not exist",
    "DROP TABLE consumer_types": "it has no table consumer_types",
    "ALTER TABLE consumers RENAME COLUMN generation TO former": "cannot be read",
}


@pytest.fixture
def copied(placement: Server, tmp_path: Path) -> Path:
    """A copy of Placement's database, for a test to change."""
    path = tmp_path / "copied.sqlite"
    with (
        closing(sqlite3.connect(str(placement._engine.url.database))) as original,
        closing(sqlite3.connect(path)) as copy,
    ):
        original.backup(copy)
    return path


@pytest.fixture
def sqlite_target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path, f"sqlite:///{tmp_path}/main.sqlite")
    yield made
    made.database.close()


def test_the_name_of_a_provider_may_have_control_characters_as_over_http_and_rpc(
    copied: Path, sqlite_target: Target
) -> None:
    with closing(sqlite3.connect(copied)) as changed:
        changed.execute("UPDATE resource_providers SET name = 'with a' || char(9) || 'tab' WHERE id = 2")
        changed.commit()
    assert imported(sqlite_target, f"sqlite:///{copied}") == 0
    assert "with a\ttab" in {one.name for one in sqlite_target.content().providers.values()}


@pytest.mark.parametrize("table", ["projects", "users"])
def test_ids_of_projects_and_users_may_end_with_a_blank_as_over_http_and_rpc(
    copied: Path, target: Target, table: str
) -> None:
    with closing(sqlite3.connect(copied)) as changed:
        changed.execute(f"UPDATE {table} SET external_id = external_id || ' '")
        changed.commit()
    assert imported(target, f"sqlite:///{copied}") == 0
    column = f"{table.removesuffix('s')}_id"
    owners = {getattr(one, column) for one in target.content().consumers.values()}
    assert owners
    assert all(owner.endswith(" ") for owner in owners)
    server, provider, consumer = target.server(), ids.fresh(), ids.fresh()
    allocations = {provider: {"resources": {"VCPU": 1}}}
    who = {"project_id": "p", "user_id": "u", column: "another "}
    for method, path, sent in (
        ("POST", "/resource_providers", {"name": "new", "uuid": provider}),
        (
            "PUT",
            f"/resource_providers/{provider}/inventories",
            {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 1}}},
        ),
        ("PUT", f"/allocations/{consumer}", {"allocations": allocations, "consumer_generation": None, **who}),
    ):
        reply = server.ask(method, path, "1.28", json.dumps(sent).encode(), {})
        assert reply.status_int in (200, 204), reply.text
    assert gets(server, f"/allocations/{consumer}")[1][column] == "another "


def test_zero_times_are_imported_as_unknown_ones(copied: Path, sqlite_target: Target) -> None:
    with closing(sqlite3.connect(copied)) as changed:
        changed.execute(ZERO_TIMES.format("resource_providers") + " WHERE id = 2")
        changed.commit()
    assert imported(sqlite_target, f"sqlite:///{copied}") == 0
    times = [row[-2:] for row in sqlite_target.rows()["resource_providers"]]
    assert times.count((0.0, 0.0)) == 1


@pytest.mark.parametrize(("statement", "reason"), FAULTS.items(), ids=FAULTS.values())
def test_a_broken_source_is_refused_with_the_reason_and_changes_nothing(
    copied: Path, sqlite_target: Target, capfd: pytest.CaptureFixture[str], statement: str, reason: str
) -> None:
    with closing(sqlite3.connect(copied)) as broken:
        broken.execute(statement)
        broken.commit()
    before = sqlite_target.rows()
    assert imported(sqlite_target, f"sqlite:///{copied}") == 1
    assert reason in " ".join(capfd.readouterr().err.split())
    assert sqlite_target.rows() == before


def test_many_faults_are_counted_and_the_first_ten_are_shown(
    copied: Path, sqlite_target: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(copied)) as broken:
        broken.execute("UPDATE allocations SET used = 0")
        broken.commit()
    assert imported(sqlite_target, f"sqlite:///{copied}") == 1
    assert f"and {CONSUMERS * 4 - 10} more" in " ".join(capfd.readouterr().err.split())


def test_a_store_with_other_providers_is_refused_also_in_a_dry_run(
    placement: Server, copied: Path, sqlite_target: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    assert imported(sqlite_target, url_of(placement)) == 0
    with closing(sqlite3.connect(copied)) as changed:
        changed.execute("UPDATE consumers SET generation = generation + 1 WHERE id = 1")
        changed.commit()
    before = sqlite_target.rows()
    for words in ((), ("--dry-run",)):
        assert imported(sqlite_target, f"sqlite:///{copied}", *words) == 1
        error = " ".join(capfd.readouterr().err.split())
        assert "the store has resource providers of its own" in error
        assert "consumers: 1 different, as " in error
    assert sqlite_target.rows() == before


def test_the_source_may_be_a_configuration_file_of_placement(
    placement: Server, sqlite_target: Target, tmp_path: Path
) -> None:
    file = tmp_path / "placement.conf"
    file.write_text(f"[DEFAULT]\ndebug = true\n[placement_database]\nconnection = {url_of(placement)}\n")
    assert imported(sqlite_target, str(file)) == 0
    assert len(sqlite_target.content().providers) == TREES * 5


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("sqlite:///nowhere.sqlite", "there is no file nowhere.sqlite"),
        ("mysql+pymysql://placement:s3cret@127.0.0.1:1/placement", "cannot be read"),
        ("nothing://", "cannot be read"),
        ("mysql+pymysql://placement:s3cret@127.0.0.1:33o6/placement", "is no URL of a database"),
        ("mysql+pymysql:/placement:s3cret@127.0.0.1/placement", "neither a URL nor a file"),
        ("missing.conf", "missing.conf"),
        ("", "the source '' cannot be read: Is a directory"),
        (".", "the source . cannot be read: Is a directory"),
        ("binary", "the source binary is not text in UTF-8"),
        ("moorage.conf", "has no [placement_database] connection"),
        ("dollar.conf", "the source dollar.conf: its connection has a $ that does not begin the name of an option"),
        ("mysql+pymysql://127.0.0.1:1/placement?former=1", "read: Connection.__init__() got an unexpected keyword"),
        ("mysql+pymysql://127.0.0.1:1/placement?ssl_ca=missing.pem", "read: [Errno 2] No such file or directory"),
        ("mysql+pymysql://host..domain/placement", "read: encoding with 'idna' codec failed"),
    ],
)
def test_an_unusable_source_is_reported_in_one_sentence(
    sqlite_target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    named: str,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dollar.conf").write_text("[placement_database]\nconnection = mysql+pymysql://u:a$s3cret@h/placement\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert imported(sqlite_target, named) == 1
    error = " ".join(capfd.readouterr().err.split())
    assert reason in error
    assert "s3cret" not in error
    assert "Traceback" not in error
    assert not (tmp_path / "nowhere.sqlite").exists()


def test_the_store_itself_is_refused_as_source(sqlite_target: Target, capfd: pytest.CaptureFixture[str]) -> None:
    assert imported(sqlite_target, str(sqlite_target.database.url)) == 1
    assert "the source is the store itself" in " ".join(capfd.readouterr().err.split())


def test_an_import_that_differs_from_its_source_is_rolled_back(
    placement: Server, sqlite_target: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sqlite_target.rows()
    # The trigger stands for a concurrent writer.
    sqlite_target.database.write(
        lambda connection: connection.exec_driver_sql(
            "CREATE TRIGGER other AFTER INSERT ON consumers BEGIN UPDATE inventories SET reserved = reserved + 1; END"
        )
    )
    assert imported(sqlite_target, url_of(placement)) == 1
    error = " ".join(capfd.readouterr().err.split())
    assert "nothing was imported, for it would differ: inventories:" in error
    assert sqlite_target.rows() == before
