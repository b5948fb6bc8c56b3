"""The statements that a database carries out, and other events of its engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from moorage.db.database import Database


@contextmanager
def listening(target: Any, name: str, listener: Callable[..., object]) -> Iterator[None]:
    """Call a function at each event of an engine or a connection, until exit."""
    event.listen(target, name, listener)
    try:
        yield
    finally:
        event.remove(target, name, listener)


@contextmanager
def executed(database: Database) -> Iterator[list[str]]:
    """Collect the statements of a database, until exit."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    with listening(database.engine, "after_cursor_execute", note):
        yield seen


@contextmanager
def statements_of(database: Database) -> Iterator[list[str]]:
    """Collect the statements of a database, with a ``COMMIT`` at the end of each transaction, until exit."""
    with executed(database) as seen, listening(database.engine, "commit", lambda _connection: seen.append("COMMIT")):
        yield seen
