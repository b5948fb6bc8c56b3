"""Upgrades of a schema that are killed at each of their statements, and then started again."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from moorage.db.database import Database
from moorage.db.schemas import Schema
from support.databases.statements import listening

_CHANGES = re.compile(r"\s*(CREATE|ALTER|DROP|RENAME|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


class Killed(BaseException):
    """Ends an upgrade in the middle, as SIGKILL does: no code runs after it to clean up."""


@contextmanager
def _killing(database: Database, survived: set[str]) -> Iterator[None]:
    """Raise after any changing statement that is not in ``survived``."""

    def kill(_connection: Any, cursor: Any, statement: str, *_more: Any) -> None:
        if _CHANGES.match(statement) and statement not in survived:
            survived.add(statement)
            cursor.close()  # otherwise SQLite would keep the file locked
            raise Killed

    with listening(database.engine, "after_cursor_execute", kill):
        yield


def migrate_killed_at_each_statement(schema: Schema, database: Database, revision: str = "head") -> list[str]:
    """Upgrade; kill the upgrade after each changing statement once, and start it again; return those statements."""
    survived: set[str] = set()
    kills = 0
    while True:
        try:
            with _killing(database, survived):
                schema.migrate(database, revision)
        except (Killed, sa.exc.PendingRollbackError):  # Alembic tries to clean up on a connection that is already dead
            kills += 1
            assert kills == len(survived)
            # The connection is cut: uncommitted changes are rolled back.
            database.engine.dispose()
        else:
            return sorted(survived)


def structure(database: Database) -> dict[str, object]:
    """Return the structure of the tables of a database."""
    inspector = sa.inspect(database.engine)
    return {
        table: {
            "columns": sorted(
                (column["name"], str(column["type"]), column["nullable"], str(column["default"]))
                for column in inspector.get_columns(table)
            ),
            "primary key": inspector.get_pk_constraint(table)["constrained_columns"],
            "indexes": sorted(
                (str(index["name"]), tuple(index["column_names"]), bool(index["unique"]))
                for index in inspector.get_indexes(table)
            ),
            "unique": sorted(tuple(each["column_names"]) for each in inspector.get_unique_constraints(table)),
            "checks": sorted(str(each["sqltext"]) for each in inspector.get_check_constraints(table)),
            "foreign keys": sorted(
                (tuple(key["constrained_columns"]), key["referred_table"]) for key in inspector.get_foreign_keys(table)
            ),
        }
        for table in inspector.get_table_names()
    }
