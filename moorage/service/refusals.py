"""Refused sendings: a refusal is stored for the refused sending, so that copies of it are refused as well."""

from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, bindparam, select

from moorage import context, errors, ids
from moorage.bus.calling import plain_error
from moorage.db.columns import now
from moorage.messages.wire import Mutation

#: Errors that are no refusal: the caller repeats the request, or does not know its outcome.
NOT_A_REFUSAL = (
    errors.Unavailable,
    errors.TryAgain,
    errors.RequestIdReused,
    errors.InternalError,
    errors.ConfigurationError,
)


class _StoredRefusal(msgspec.Struct):
    #: The number of the refused sending. This sending and the earlier ones of its sender are void.
    number: int
    code: str
    data: dict[str, Any]

    def error(self) -> errors.MoorageError:
        """Return the error that the caller received."""
        kind = _kinds().get(self.code)
        # If the code is unknown, a later release has stored it.
        return errors.InvalidState(reason=f"it was refused before ({self.code})") if kind is None else kind(**self.data)


class RefusedBefore(Exception):
    """A copy of the current sending, or a later sending of the same request, has been refused."""

    def __init__(self, refusal: errors.MoorageError) -> None:
        super().__init__()
        self.refusal = refusal


class RefusedSendings:
    """The refused sendings of the requests in one table of stored requests; the same table stores them.

    Whether a request is possible depends on the current state. A message may be delivered twice, so a copy can arrive
    after the first delivery was refused and the caller got this answer, when the state allows the request. Only copies
    are refused for that reason: a repeated request is a new sending.

    A stored refusal has its own key, derived from request and sender. So the request itself has no row and may be
    repeated, and a former release beside this one ignores the refusal. It is stored as acknowledged, because nobody
    acknowledges it later. So it is pruned once no copy of its message can arrive any more.
    """

    def __init__(self, table: Table) -> None:
        of_key = table.c.request_id == bindparam("key")
        self._query = select(table.c.result).where(of_key)
        self._insertion = table.insert().values(created_at=now(), acknowledged_at=now())
        self._update = table.update().where(of_key).values(result=bindparam("refusal"), acknowledged_at=now())

    def check(self, connection: Connection, message: Mutation[Any]) -> None:
        """Refuse the current sending of the thread if it was refused before.

        :raises RefusedBefore: the sending was refused before.
        """
        sending = context.current().sending
        stored = None if sending is None else self._read(connection, _key(message, sending))
        # If a later sending was refused, the caller has not received another answer to this one either.
        if sending is not None and stored is not None and stored.number >= sending.number:
            raise RefusedBefore(stored.error())

    def store(
        self, connection: Connection, message: Mutation[Any], sending: context.Sending, refusal: errors.MoorageError
    ) -> None:
        """Store a refusal, unless it or one of a later sending is already stored."""
        key, plain = _key(message, sending), plain_error(refusal)
        stored = self._read(connection, key)
        if stored is not None and stored.number >= sending.number:
            return
        encoded = msgspec.json.encode(_StoredRefusal(sending.number, plain.code, plain.data))
        if stored is not None:
            connection.execute(self._update, {"key": key, "refusal": encoded})
            return
        row = {"request_id": key, "method": message.method, "digest": message.digest(), "result": encoded}
        connection.execute(self._insertion, row)

    def _read(self, connection: Connection, key: str) -> _StoredRefusal | None:
        stored = connection.scalar(self._query, {"key": key})
        return None if stored is None else msgspec.json.decode(stored, type=_StoredRefusal)


def _key(message: Mutation[Any], sending: context.Sending) -> str:
    return ids.derived(message.request_id, "refused", sending.sender)


@cache
def _kinds() -> dict[str, type[errors.MoorageError]]:
    """Return the error classes of this release by code."""
    return {kind.code: kind for kind in errors.every_error() if kind.__module__ == errors.__name__}
