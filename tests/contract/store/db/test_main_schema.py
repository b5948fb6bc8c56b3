"""Test that the migrated main schema equals the one in the code, and that compatible newer schemas are used."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, text
from support.databases.interrupted_upgrade import migrate_killed_at_each_statement

from moorage import errors, ids
from moorage.db.database import Database
from moorage.db.schemas import Schema, known_schemas
from placement_store.schema import MAIN, METADATA

EACH_SCHEMA = pytest.mark.parametrize("schema", known_schemas().values(), ids=lambda schema: schema.name)


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    """An empty database."""
    database = Database(empty_url, "main")
    yield database
    database.close()


def test_the_upgraded_schema_equals_the_one_in_the_code(database: Database) -> None:
    MAIN.upgrade(database)

    with database.engine.connect() as connection:
        ours = {"target_metadata": METADATA, "compare_type": True, "include_name": _is_of_the_schema}
        differences = compare_metadata(MigrationContext.configure(connection, opts=ours), METADATA)

    assert differences == []


def _is_of_the_schema(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or name not in MAIN.bookkeeping_tables


def test_upgrading_again_changes_nothing(database: Database) -> None:
    assert MAIN.upgrade(database) == (None, MAIN.head())
    assert MAIN.upgrade(database) == (MAIN.head(), MAIN.head())
    MAIN.check(database)


def test_an_upgrade_beside_a_writer_of_the_same_file_says_that_it_is_locked(tmp_path: Path) -> None:
    file = tmp_path / "main.sqlite"
    with (
        closing(Database(f"sqlite:///{file}", "main")) as database,
        closing(sqlite3.connect(file, isolation_level=None)) as writer,
    ):
        event.listen(database.engine, "connect", lambda each, _: each.execute("PRAGMA busy_timeout = 20"))
        assert MAIN.revision(database) is None
        writer.execute("BEGIN IMMEDIATE")

        with pytest.raises(errors.SchemaInUse, match=r"blocks: database is locked\.$"):
            MAIN.upgrade(database, patience=0.1)


def test_the_time_that_a_change_takes_does_not_count_as_waiting_for_the_table_of_a_later_one(mariadb_url: str) -> None:
    tries = 0

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal tries
        if statement.startswith("ALTER TABLE hosts"):
            time.sleep(3.5)
        elif statement.startswith("ALTER TABLE services"):
            tries += 1
            if tries == 2:
                reader.rollback()

    with (
        closing(Database(mariadb_url, "main", lock_wait=1.0)) as database,
        closing(Database(mariadb_url, "main")) as another,
        another.engine.connect() as reader,
    ):
        MAIN.migrate(database, "main_0006")
        reader.exec_driver_sql("SELECT * FROM services")
        event.listen(database.engine, "before_cursor_execute", before)

        assert MAIN.upgrade(database, patience=4.0) == ("main_0006", MAIN.head())


@pytest.mark.parametrize("revision", [None, "main_0006"])
def test_an_older_or_a_missing_schema_is_refused(database: Database, revision: str | None) -> None:
    if revision is not None:
        MAIN.upgrade(database)
        _execute(database, f"UPDATE {MAIN.version_table} SET version_num = '{revision}'")
    with pytest.raises(errors.SchemaMismatch) as caught:
        MAIN.check(database)
    assert (caught.value.found, caught.value.needed) == (revision or "none", MAIN.head())
    assert not isinstance(caught.value, errors.SchemaTooNew)


def _upgraded_by_a_newer_release(database: Database, schema: Schema, oldest_code: str | None) -> str:
    """Set a schema to a revision that this code does not know, and return the revision."""
    newer, table = f"{schema.name}_9999", f"schema_compatibility_{schema.name}"
    schema.upgrade(database)
    _execute(database, f"UPDATE {schema.version_table} SET version_num = '{newer}'")
    if oldest_code is None:
        _execute(database, f"DROP TABLE {table}")
    else:
        _execute(database, f"UPDATE {table} SET oldest_code = '{oldest_code}'")
    return newer


def _execute(database: Database, statement: str) -> None:
    with database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql(statement)


@EACH_SCHEMA
@pytest.mark.parametrize("position", [-2, -1], ids=["the revision before", "our own"])
def test_a_compatible_newer_schema_is_used_and_not_changed_by_an_upgrade(
    database: Database, schema: Schema, position: int
) -> None:
    newer = _upgraded_by_a_newer_release(database, schema, sorted(schema._known_revisions())[position])

    assert schema.check(database) == newer
    assert schema.upgrade(database) == schema.planned(database) == (newer, newer)
    assert schema.revision(database) == newer


@EACH_SCHEMA
@pytest.mark.parametrize("oldest_number", ["9998", None])
def test_a_newer_schema_that_needs_newer_code_is_refused_and_not_changed_by_an_upgrade(
    database: Database, schema: Schema, oldest_number: str | None
) -> None:
    oldest_code = oldest_number and f"{schema.name}_{oldest_number}"
    newer = _upgraded_by_a_newer_release(database, schema, oldest_code)

    for refused in (schema.check, schema.upgrade, schema.planned):
        with pytest.raises(errors.SchemaTooNew, match=f"{newer} .* {oldest_code or newer} or newer"):
            refused(database)
    assert schema.revision(database) == newer


@pytest.mark.parametrize("oldest_code", [MAIN.head(), "main_9998"], ids=["usable", "not usable"])
def test_an_upgrade_that_has_waited_for_that_of_a_newer_release_changes_nothing(
    empty_url: str, oldest_code: str
) -> None:
    before, newer, meanwhile = "main_0009", "main_9999", [oldest_code]

    with (
        closing(Database(empty_url, "main", pool_size=1)) as database,
        closing(Database(empty_url, "main")) as another,
    ):

        def upgrade_another(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            # The upgrade has read the older revision, and has not locked the schema yet.
            if meanwhile and statement.startswith("SELECT") and MAIN.version_table in statement:
                assert _upgraded_by_a_newer_release(another, MAIN, meanwhile.pop()) == newer

        MAIN.migrate(database, before)
        event.listen(database.engine, "after_cursor_execute", upgrade_another)
        if oldest_code == MAIN.head():
            assert MAIN.upgrade(database) == (before, newer)
        else:
            with pytest.raises(errors.SchemaTooNew, match=f"{newer} .* {oldest_code} or newer"):
                MAIN.upgrade(database)
        assert MAIN.revision(database) == newer


@EACH_SCHEMA
def test_the_schema_permits_the_code_of_the_previous_revision(database: Database, schema: Schema) -> None:
    schema.upgrade(database)

    oldest = database.read(schema._oldest_code)

    # Still older code may be permitted: a revision that only adds to the schema leaves the record unchanged.
    assert oldest in sorted(schema._known_revisions())[:-1]


@pytest.mark.parametrize("is_killed", [False, True], ids=["at once", "killed at each statement"])
def test_an_upgrade_keeps_server_groups_and_their_members(database: Database, is_killed: bool) -> None:
    MAIN.migrate(database, "main_0003")
    groups = {rule: ids.derived(rule) for rule in ("spread", "together")}
    member = ids.derived("member")
    with database.engine.connect() as connection, connection.begin():
        for number, (rule, uuid) in enumerate(groups.items(), 1):
            connection.exec_driver_sql(
                "INSERT INTO consumer_groups (uuid, rule, max_per_root, home_count, created_at)"
                f" VALUES ('{uuid}', '{rule}', {number}, 1, 17.5)"
            )
        connection.exec_driver_sql(
            "INSERT INTO consumers (uuid, project_id, user_id, generation, consumer_group_id, known_over_rpc,"
            f" created_at, updated_at) VALUES ('{member}', 'p', 'u', 3, 1, 1, 17.5, 17.5)"
        )

    if is_killed:
        migrate_killed_at_each_statement(MAIN, database)
    else:
        assert MAIN.upgrade(database) == ("main_0003", MAIN.head())

    with database.engine.connect() as connection:
        kept = connection.execute(text("SELECT id, uuid, policy, max_per_root, seq, created_at FROM consumer_groups"))
        assert sorted(tuple(row) for row in kept) == [
            (1, groups["spread"], "anti-affinity", 1, 0, 17.5),
            (2, groups["together"], "affinity", 2, 0, 17.5),
        ]
        found = connection.execute(text("SELECT uuid, generation, consumer_group_id, migration_of FROM consumers"))
        assert [tuple(row) for row in found] == [(member, 3, 1, None)]
