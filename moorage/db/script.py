"""Scripts: statements of a transaction that are sent together, so that they cost one round trip to the server.

Only PyMySQL's connections do this. With other drivers, and on SQLite, the statements are sent one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Connection, Dialect, exc

from moorage.db import faults

#: The most bytes of documents that are sent together. Arbitrary: a small part of what MySQL and MariaDB accept.
_MOST_BYTES = 2**20


class StatementOutcome(NamedTuple):
    """Hold the outcome of a statement: the number of matched rows, and the returned rows."""

    rowcount: int
    rows: Sequence[Any]


class _Statement(NamedTuple):
    text: str
    parameters: tuple[Any, ...]
    then: Callable[[StatementOutcome], None] | None
    fault: Callable[[exc.DBAPIError], None] | None


class Script:
    """Statements of one transaction, which :meth:`run` carries out in order.

    If a statement is not successful, later ones may have been carried out before the error is raised. The transaction
    must then be rolled back.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending: list[_Statement] = []
        self._size = 0

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of the statements."""
        return self._connection.dialect

    @property
    def connection(self) -> Connection:
        """The connection, for other statements; the pending statements of the script are carried out first."""
        self.run()
        return self._connection

    @property
    def ahead(self) -> Connection:
        """The connection, for reads that may run before the pending statements of the script."""
        return self._connection

    def add(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        then: Callable[[StatementOutcome], None] | None = None,
        fault: Callable[[exc.DBAPIError], None] | None = None,
    ) -> None:
        """Add a statement, with the driver's placeholders for its parameters.

        :param then: called with its outcome; an exception from it ends the script.
        :param fault: called with the database's error; if it raises no other exception, that error is raised.
        """
        size = sum(len(value) for value in parameters if isinstance(value, bytes))
        if self._pending and self._size + size > _MOST_BYTES:
            self.run()
        self._size += size
        self._pending.append(_Statement(text, tuple(parameters), then, fault))

    def run(self) -> None:
        """Carry out the pending statements.

        :raises DBAPIError: a statement has failed. Exceptions from its ``then`` or ``fault`` are raised as well.
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
            # Read all answers before checking the first: later statements would take unread answers for their own.
            cursor.execute(
                "; ".join(each.text for each in statements),
                tuple(value for each in statements for value in each.parameters),
            )
            outcomes.append(StatementOutcome(cursor.rowcount, cursor.fetchall()))
            while cursor.nextset():
                outcomes.append(StatementOutcome(cursor.rowcount, cursor.fetchall()))
        except BaseException as fault:  # noqa: BLE001 - an error of the driver; SQLAlchemy translates it
            failed = self._translated(fault, statements[len(outcomes)], cursor)
            if faults.is_collision(failed) or faults.is_away(failed):
                # The transaction is gone, so that the ``then`` of an earlier statement could not read the reason of its
                # failure in it.
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
        """Return SQLAlchemy's error for an error of the driver; a lost connection is dropped, as by SQLAlchemy."""
        try:
            self._connection._handle_dbapi_exception(fault, statement.text, statement.parameters, cursor, None)  # noqa: SLF001
        except exc.DBAPIError as translated:
            return translated

    def _tell_listeners(self, statement: _Statement, cursor: Any) -> None:
        if self._connection._has_events or self._connection.engine._has_events:  # noqa: SLF001 - no public way
            listeners = self._connection.dispatch.after_cursor_execute
            listeners(self._connection, cursor, statement.text, statement.parameters, None, False)


def _fail(statement: _Statement, fault: exc.DBAPIError) -> NoReturn:
    if statement.fault:
        statement.fault(fault)
    raise fault


@contextmanager
def scripted(connection: Connection | Script) -> Iterator[Script]:
    """Yield a script: a given one, which its creator runs; or a new one for a connection, which runs at exit."""
    if isinstance(connection, Script):
        yield connection
        return
    script = Script(connection)
    yield script
    script.run()
