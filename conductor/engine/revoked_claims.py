"""Record revoked claims: a conductor has answered the reconciler that they are no longer wanted.

A message that arrives late and names a revoked claim is refused.
"""

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, Table, bindparam, select

from moorage.db.columns import now
from moorage.db.database import Database
from moorage.service.pruning import delete_expired


class RevokedClaims:
    """The revoked claims of one schema; all methods but :meth:`prune` run in the caller's transaction.

    :param scope: the columns that restrict the table to one cell, with their values; empty for the super conductor.
    """

    def __init__(self, table: Table, scope: Mapping[str, str]) -> None:
        self._table = table
        self._scope = dict(scope)
        # Built once: it takes SQLAlchemy longer to build a query than to run it.
        among = table.c.claim_id.in_(bindparam("claim_ids", expanding=True))
        self._mine = [table.c[name] == value for name, value in scope.items()]
        self._among = select(table.c.claim_id).where(*self._mine, among)

    def add(self, connection: Connection, claim_id: str, consumer_uuid: str) -> None:
        """Record a revoked claim. The caller has locked the consumer's record: no other transaction adds it too."""
        if self.among(connection, [claim_id]):
            return
        connection.execute(
            self._table.insert().values(**self._scope, claim_id=claim_id, consumer_uuid=consumer_uuid, created_at=now())
        )

    def among(self, connection: Connection, claim_ids: Collection[str]) -> set[str]:
        """Return the revoked ones among these claims."""
        return set(connection.scalars(self._among, {"claim_ids": list(claim_ids)}))

    def prune(self, database: Database, seconds: float) -> int:
        """Delete the claims that were revoked more than ``seconds`` ago: no message can name them any more."""
        return delete_expired(database, self._table.c.claim_id, *self._mine, self._table.c.created_at < now() - seconds)
