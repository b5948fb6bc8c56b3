"""Test that tables from an early form of a revision are made complete by an upgrade."""

from contextlib import closing
from pathlib import Path

from sqlalchemy import inspect, text

from conductor.schema import CONDUCTOR
from moorage.db.database import Database


def execute(database: Database, statement: str) -> None:
    database.write(lambda connection: connection.execute(text(statement)))


def test_tables_from_the_early_form_of_revision_5_get_the_names_of_instances(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/records.sqlite", "conductor")) as database:
        CONDUCTOR.upgrade(database)
        for statement in (
            "DROP INDEX ix_conductor_instances_name",
            "ALTER TABLE conductor_instances DROP COLUMN name",
            "UPDATE alembic_version_conductor SET version_num = 'conductor_0005'",
        ):
            execute(database, statement)

        CONDUCTOR.upgrade(database)

        found = database.read(lambda connection: inspect(connection).get_columns("conductor_instances"))
        assert "name" in {column["name"] for column in found}
        assert CONDUCTOR.check(database) == CONDUCTOR.head()
