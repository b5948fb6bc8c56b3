"""Claims that their owner has said it does not want: whatever comes late and names one is refused."""

from collections.abc import Collection, Mapping

from sqlalchemy import ColumnElement, Connection, Table, select

from moorage.db.columns import now


class RevokedClaims:
    """The record of such claims of one schema; each method is a part of the transaction that it is given.

    :param scope: columns that narrow the table down, with their values: the cell.
    """

    def __init__(self, table: Table, scope: Mapping[str, str]) -> None:
        self._table = table
        self._scope = dict(scope)

    def add(self, connection: Connection, claim_id: str, consumer_uuid: str) -> None:
        """Record that a claim is not wanted; the consumer's record is locked, so nobody else does so meanwhile."""
        if self.among(connection, [claim_id]):
            return
        connection.execute(
            self._table.insert().values(**self._scope, claim_id=claim_id, consumer_uuid=consumer_uuid, created_at=now())
        )

    def among(self, connection: Connection, claim_ids: Collection[str]) -> set[str]:
        """Return those of the claims that are not wanted."""
        column = self._table.c.claim_id
        return set(connection.scalars(select(column).where(*self._mine(), column.in_(claim_ids))))

    def forget(self, connection: Connection, seconds: float) -> None:
        """Forget what was recorded so long ago that nothing which names it can still be on its way."""
        connection.execute(self._table.delete().where(*self._mine(), self._table.c.created_at < now() - seconds))

    def _mine(self) -> list[ColumnElement[bool]]:
        return [self._table.c[name] == value for name, value in self._scope.items()]
