"""The statements that a database carries out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from moorage.db.database import Database


@contextmanager
def statements_of(database: Database) -> Iterator[list[str]]:
    """Collect the statements of a database, with a ``COMMIT`` at the end of each transaction, until exit."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    def commit(_connection: Any) -> None:
        seen.append("COMMIT")

    event.listen(database.engine, "after_cursor_execute", note)
    event.listen(database.engine, "commit", commit)
    try:
        yield seen
    finally:
        event.remove(database.engine, "after_cursor_execute", note)
        event.remove(database.engine, "commit", commit)
