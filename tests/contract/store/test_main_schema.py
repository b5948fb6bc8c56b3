"""The main schema as its migrations leave it is the one that the code is written against."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from support.databases.interrupted_upgrade import migrate_killed_at_each_statement

from moorage import errors, ids
from moorage.db.database import Database
from moorage.db.schemas import Schema, known_schemas
from placement_store.schema import MAIN, METADATA


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database."""
    url = f"sqlite:///{tmp_path}/main.sqlite" if request.param == "sqlite" else request.getfixturevalue("mariadb_url")
    database = Database(url, "main")
    yield database
    database.close()


def test_the_upgraded_schema_is_the_one_in_the_code(database: Database) -> None:
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


@pytest.mark.parametrize("revision", [None, "main_0006"])
def test_an_older_and_a_missing_schema_are_refused(database: Database, revision: str | None) -> None:
    if revision is not None:
        MAIN.upgrade(database)
        _execute(database, f"UPDATE {MAIN.version_table} SET version_num = '{revision}'")
    with pytest.raises(errors.SchemaMismatch) as caught:
        MAIN.check(database)
    assert (caught.value.found, caught.value.needed) == (revision or "none", MAIN.head())
    assert not isinstance(caught.value, errors.SchemaTooNew)


def _upgraded_by_a_newer_release(database: Database, oldest_code: str | None) -> None:
    MAIN.upgrade(database)
    _execute(database, f"UPDATE {MAIN.version_table} SET version_num = 'main_9999'")
    if oldest_code is None:
        _execute(database, "DROP TABLE schema_compatibility_main")
    else:
        _execute(database, f"UPDATE schema_compatibility_main SET oldest_code = '{oldest_code}'")


def _execute(database: Database, statement: str) -> None:
    with database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql(statement)


@pytest.mark.parametrize("oldest_code", ["main_0006", "main_0007"])
def test_a_newer_schema_is_worked_on_if_it_says_so_and_upgrading_leaves_it_alone(
    database: Database, oldest_code: str
) -> None:
    _upgraded_by_a_newer_release(database, oldest_code)

    assert MAIN.check(database) == "main_9999"
    assert MAIN.upgrade(database) == MAIN.planned(database) == ("main_9999", "main_9999")
    assert MAIN.revision(database) == "main_9999"


@pytest.mark.parametrize("oldest_code", ["main_9998", None])
def test_a_newer_schema_that_needs_newer_code_is_refused_and_upgrading_leaves_it_alone(
    database: Database, oldest_code: str | None
) -> None:
    _upgraded_by_a_newer_release(database, oldest_code)

    for refused in (MAIN.check, MAIN.upgrade, MAIN.planned):
        with pytest.raises(errors.SchemaTooNew, match=f"main_9999 .* {oldest_code or 'main_9999'} or newer"):
            refused(database)
    assert MAIN.revision(database) == "main_9999"


@pytest.mark.parametrize("schema", known_schemas().values(), ids=lambda schema: schema.name)
def test_code_of_the_revision_before_works_on_the_schema(database: Database, schema: Schema) -> None:
    schema.upgrade(database)

    oldest = database.read(schema._oldest_code)

    assert oldest == sorted(schema._known_revisions())[-2]


@pytest.mark.parametrize("is_killed", [False, True], ids=["at once", "killed at each statement"])
def test_groups_and_their_members_of_an_older_schema_are_kept(database: Database, is_killed: bool) -> None:
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
