"""The conductors' migrations, on SQLite and on MariaDB: they end where the tables of the code are."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from support.databases.interrupted_upgrade import migrate_killed_at_each_statement

from conductor.cell.records.instances import CellRecords
from conductor.schema import CELL, CONDUCTOR
from moorage import errors, ids
from moorage.db.database import Database
from moorage.db.schemas import Schema
from moorage.model import AllocationRequest, ProviderAmounts, Selection


@pytest.fixture(params=["sqlite", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path}/records.sqlite"
    if request.param == "mariadb":
        url = request.getfixturevalue("mariadb_url")
    database = Database(url, "test")
    yield database
    database.close()


@pytest.mark.parametrize("schema", [CONDUCTOR, CELL], ids=lambda schema: schema.name)
def test_the_migrated_tables_are_those_of_the_code(database: Database, schema: Schema) -> None:
    with pytest.raises(errors.SchemaMismatch):
        schema.check(database)

    schema.upgrade(database)

    schema.check(database)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": schema.version_table,
                "compare_type": True,
                "include_name": lambda name, kind, _parents: kind != "table" or name in schema.metadata.tables,
            },
        )
        assert compare_metadata(context, schema.metadata) == []


def test_both_schemas_live_side_by_side_in_one_database(database: Database) -> None:
    for schema in (CONDUCTOR, CELL):
        schema.upgrade(database)
    for schema in (CONDUCTOR, CELL):
        schema.check(database)


def selected(host: str) -> Selection:
    provider = ids.derived("node", host)
    return Selection(
        service_host=host,
        nodename=host,
        compute_node_uuid=provider,
        cell_uuid=ids.derived("test", "cell"),
        agent="agent",
        availability_zone="nova",
        allocation_request=AllocationRequest(allocations={provider: ProviderAmounts(resources={"VCPU": 1})}),
    )


@pytest.mark.parametrize("is_killed", [False, True], ids=["at once", "killed at each statement"])
def test_attempts_of_an_earlier_version_keep_what_they_were_claimed_with(database: Database, is_killed: bool) -> None:
    cell, uuid = ids.fresh(), ids.fresh()
    selections = msgspec.json.encode([selected("a"), selected("b"), selected("c")])
    CELL.migrate(database, "cell_0002")

    def fill(connection: Connection) -> None:
        connection.execute(
            text(
                "INSERT INTO cell_instances (cell_uuid, uuid, request_id, selections, state, attempt_number,"
                " created_at, updated_at) VALUES (:cell, :uuid, 'r', :selections, 'active', 2, 0, 0)"
            ),
            {"cell": cell, "uuid": uuid, "selections": selections},
        )
        for number, host in ((1, "a"), (2, "b")):
            connection.execute(
                text(
                    "INSERT INTO cell_attempts (cell_uuid, attempt_id, instance_uuid, number, host, agent, state,"
                    " guest_gone, created_at, updated_at)"
                    " VALUES (:cell, :attempt, :uuid, :number, :host, 'agent', 'active', :no, 0, 0)"
                ),
                {"cell": cell, "attempt": ids.fresh(), "uuid": uuid, "number": number, "host": host, "no": False},
            )

    database.write(fill)

    if is_killed:
        migrate_killed_at_each_statement(CELL, database)
    else:
        CELL.upgrade(database)

    attempts = database.read(lambda connection: CellRecords(cell).attempts(connection, uuid))
    assert [attempt.selection for attempt in attempts] == [selected("a"), selected("b")]
