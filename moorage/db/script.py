"""Scripts: statements of a transaction that are sent together, so that they cost one round trip to the server.

Only PyMySQL's connections send them so; elsewhere, and on SQLite, they are carried out one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Connection, Dialect, exc

from moorage.db import faults

#: The most bytes of the documents that are sent together. Arbitrary: a small part of what MySQL and MariaDB take.
_MOST_BYTES = 2**20


class StatementOutcome(NamedTuple):
    """Hold what a statement has done: the number of rows that it has matched, and those that it has returned."""

    rowcount: int
    rows: Sequence[Any]


class _Statement(NamedTuple):
    text: str
    parameters: tuple[Any, ...]
    then: Callable[[StatementOutcome], None] | None
    fault: Callable[[exc.DBAPIError], None] | None


class Script:
    """Statements of one transaction, carried out in their order by :meth:`run`.

    Where one of them fails, those after it may have been carried out by the time at which its error is raised: the
    transaction must be rolled back then.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending: list[_Statement] = []
        self._size = 0

    @property
    def dialect(self) -> Dialect:
        """The dialect that the texts are in."""
        return self._connection.dialect

    @property
    def connection(self) -> Connection:
        """The connection, for other statements: those of the script are carried out first."""
        self.run()
        return self._connection

    @property
    def ahead(self) -> Connection:
        """The connection, for what may as well be read before those of the script are carried out."""
        return self._connection

    def add(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        then: Callable[[StatementOutcome], None] | None = None,
        fault: Callable[[exc.DBAPIError], None] | None = None,
    ) -> None:
        """Add a statement, with the driver's marks for its parameters.

        :param then: called with its outcome; what it raises ends the script.
        :param fault: called with the database's error, which is raised if this raises none.
        """
        size = sum(len(value) for value in parameters if isinstance(value, bytes))
        if self._pending and self._size + size > _MOST_BYTES:
            self.run()
        self._size += size
        self._pending.append(_Statement(text, tuple(parameters), then, fault))

    def run(self) -> None:
        """Carry out the statements that have been added since the last time.

        :raises DBAPIError: one of them has failed; or else what its ``then`` or ``fault`` raises.
        """
        statements, self._pending, self._size = self._pending, [], 0
        if len(statements) > 1 and getattr(self._connection.connection, "takes_scripts", False):
            self._run_together(statements)
            return
        for each in statements:
            try:
                result = self._connection.exec_driver_sql(each.text, each.parameters)
                rows = result.all() if result.returns_rows else ()
            except exc.DBAPIError as fault:
                _fail(each, fault)
            if each.then:
                each.then(StatementOutcome(result.rowcount, rows))

    def _run_together(self, statements: Sequence[_Statement]) -> None:
        outcomes: list[StatementOutcome] = []
        failed: exc.DBAPIError | None = None
        cursor = self._connection.connection.cursor()
        try:
            # All answers are read before the first is judged: what is left unread would be taken for the next ones.
            cursor.execute(
                "; ".join(each.text for each in statements),
                tuple(value for each in statements for value in each.parameters),
            )
            outcomes.append(StatementOutcome(cursor.rowcount, cursor.fetchall()))
            while cursor.nextset():
                outcomes.append(StatementOutcome(cursor.rowcount, cursor.fetchall()))
        except BaseException as fault:  # noqa: BLE001 - of the driver; SQLAlchemy translates it
            failed = self._translated(fault, statements[len(outcomes)], cursor)
            if faults.is_collision(failed) or faults.is_away(failed):
                # There is no transaction any more in which it could be explained why an earlier one has not sufficed.
                _fail(statements[len(outcomes)], failed)
        else:
            cursor.close()
        for each, outcome in zip(statements, outcomes, strict=False):
            self._tell_listeners(each, cursor)
            if each.then:
                each.then(outcome)
        if failed is not None:
            _fail(statements[len(outcomes)], failed)

    def _translated(self, fault: BaseException, statement: _Statement, cursor: Any) -> exc.DBAPIError:
        """Return SQLAlchemy's error for one of the driver; a connection that is lost is dropped as by SQLAlchemy."""
        try:
            self._connection._handle_dbapi_exception(fault, statement.text, statement.parameters, cursor, None)  # noqa: SLF001
        except exc.DBAPIError as translated:
            return translated

    def _tell_listeners(self, statement: _Statement, cursor: Any) -> None:
        if self._connection._has_events or self._connection.engine._has_events:  # noqa: SLF001 - for want of another
            listeners = self._connection.dispatch.after_cursor_execute
            listeners(self._connection, cursor, statement.text, statement.parameters, None, False)


def _fail(statement: _Statement, fault: exc.DBAPIError) -> NoReturn:
    if statement.fault:
        statement.fault(fault)
    raise fault


@contextmanager
def scripted(connection: Connection | Script) -> Iterator[Script]:
    """Yield a script: the given one, whose maker runs it; or one on a connection, which is run in the end."""
    if isinstance(connection, Script):
        yield connection
        return
    script = Script(connection)
    yield script
    script.run()
