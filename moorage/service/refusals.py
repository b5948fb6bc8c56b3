"""Refused orders: a refusal is stored for the sending that it answers, so that a late copy of it is refused as well."""

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, TypeVar

import msgspec
from sqlalchemy import Connection, Table, bindparam, select

from moorage import context, errors, ids
from moorage.bus.calling import plain_type
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.messages.wire import Mutation
from moorage.service.stored_requests import StoredAnswer, StoredRequests

R = TypeVar("R")

#: Errors that refuse nothing: the caller repeats the request, or does not know what became of it.
_UNDECIDED = (
    errors.Unavailable,
    errors.TryAgain,
    errors.RequestIdReused,
    errors.InternalError,
    errors.ConfigurationError,
)


class _Refusal(msgspec.Struct):
    """A refusal as it is stored."""

    #: Of the sending that was refused. That one and the earlier ones of its sender are void.
    number: int
    code: str
    data: dict[str, Any]

    def error(self) -> errors.MoorageError:
        """Return the error that the caller was given."""
        kind = _kinds().get(self.code)
        # A later release may have stored it.
        return errors.InvalidState(reason=f"it was refused before ({self.code})") if kind is None else kind(**self.data)


class _RefusedBefore(Exception):
    """A copy of this sending, or a later one of its sender, has been refused."""

    def __init__(self, refusal: errors.MoorageError) -> None:
        super().__init__()
        self.refusal = refusal


class RefusedSendings:
    """The refused sendings of the orders of one schema, in its table of stored requests.

    Whether an order is possible depends on the state of what it is about. A message may be delivered twice, so a copy
    can arrive when its first delivery has been refused, its caller has been told so, and the state allows it by then.
    Only a copy is refused for that reason: whoever repeats the request makes a new sending of it.

    A stored refusal has its own key, by request and sender, so that the request itself remains without a row and may
    be repeated, and a former release beside this one ignores it. It is pruned like an answer that nobody acknowledges.
    """

    def __init__(self, database: Database, table: Table, requests: StoredRequests) -> None:
        self._database = database
        self._requests = requests
        columns = table.c
        of_key = columns.request_id == bindparam("key")
        self._query = select(columns.result).where(of_key)
        self._insertion = table.insert().values(created_at=now())
        self._update = table.update().where(of_key).values(result=bindparam("refusal"), created_at=now())
        self._deletion = table.delete().where(of_key)

    def once(self, message: Mutation[R], work: Callable[[Connection], R], answer: R | None = None) -> StoredAnswer[R]:
        """Carry out an order as :meth:`StoredRequests.once` does, unless this sending of it has been refused.

        :raises MoorageError: ``work`` has raised it, now or when another copy of this sending arrived.
        """

        def unless_refused(connection: Connection) -> R:
            # After the row of the request, for which a transaction that refuses a copy is waited for.
            if (before := self._before(connection, message)) is not None:
                raise _RefusedBefore(before)
            return work(connection)

        try:
            return self._requests.once(message, unless_refused, answer)
        except _RefusedBefore as before:
            raise before.refusal from None
        except errors.MoorageError as refusal:
            return self.refused(message, refusal)

    def refused(self, message: Mutation[R], refusal: errors.MoorageError) -> StoredAnswer[R]:
        """Store the refusal of an order and raise it, or return the answer if a copy has been carried out meanwhile.

        :raises MoorageError: the refusal; without having stored it, if the order may still be carried out.
        """
        sending = context.current().sending
        if isinstance(refusal, _UNDECIDED):
            raise refusal
        if sending is None:  # a former release has sent it
            answered = self._database.read(lambda connection: self._requests.find(connection, message))
            if answered is None:
                raise refusal
            return answered

        def transaction(connection: Connection) -> None:
            # The row of the request, which is deleted again, keeps copies waiting until the refusal is committed.
            self._requests.begin(connection, message)
            self._store(connection, message, sending, refusal)
            connection.execute(self._deletion, {"key": message.request_id})

        def carry_out() -> NoReturn:
            self._database.write(transaction)
            raise refusal

        return self._requests.carried_out_once(message, carry_out)

    def _before(self, connection: Connection, message: Mutation[Any]) -> errors.MoorageError | None:
        """Return the error by which the sending under way was refused before, or None."""
        sending = context.current().sending
        stored = None if sending is None else self._read(connection, _key(message, sending))
        # A later sending of the same request: its caller repeats it, and knows of the refusal.
        return None if sending is None or stored is None or stored.number < sending.number else stored.error()

    def _store(
        self, connection: Connection, message: Mutation[Any], sending: context.Sending, refusal: errors.MoorageError
    ) -> None:
        key, plain = _key(message, sending), plain_type(type(refusal))(**refusal.data)
        stored = self._read(connection, key)
        if stored is not None and stored.number >= sending.number:
            return
        encoded = msgspec.json.encode(_Refusal(sending.number, plain.code, plain.data))
        if stored is not None:
            connection.execute(self._update, {"key": key, "refusal": encoded})
            return
        row = {"request_id": key, "method": message.method, "digest": message.digest(), "result": encoded}
        connection.execute(self._insertion, row)

    def _read(self, connection: Connection, key: str) -> _Refusal | None:
        stored = connection.scalar(self._query, {"key": key})
        return None if stored is None else msgspec.json.decode(stored, type=_Refusal)


def _key(message: Mutation[Any], sending: context.Sending) -> str:
    return ids.derived(message.request_id, "refused", sending.sender)


@cache
def _kinds() -> dict[str, type[errors.MoorageError]]:
    """Return the errors of this release by their codes."""
    return {kind.code: kind for kind in errors.every_error() if kind.__module__ == errors.__name__}
