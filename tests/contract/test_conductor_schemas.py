"""The conductors' migrations, on SQLite and on MariaDB: they end where the tables of the code are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from conductor.schema import CELL, CONDUCTOR
from moorage import errors
from moorage.database import Database
from moorage.schemas import Schema


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
