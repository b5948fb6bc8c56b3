"""Prune the main schema: stored replies, tombstones, groups without members, silent services, reconciler findings."""

import logging
from functools import partial

from sqlalchemy import Connection, select

from moorage.db.columns import now
from moorage.db.database import Database
from moorage.messages import AcknowledgeRequests, Done
from moorage.service.process import is_stopping
from moorage.service.pruning import in_parts
from moorage.service.stored_requests import Retention, StoredRequests
from placement_store.db import bulk
from placement_store.db.store import Store, handles
from placement_store.schema import consumers, requests, tombstones
from placement_store.server_groups import rows as server_groups
from placement_store.upkeep import reconciler_log, services

LOG = logging.getLogger(__name__)

#: The most tombstones or groups that one transaction deletes, so that none grows without bound.
_AT_ONCE = 1000
#: A day, so that an operator still sees in the morning which services stopped reporting in the night.
_SILENT_SERVICES_KEPT = 86400.0


@handles(AcknowledgeRequests)
def _acknowledge(store: Store, message: AcknowledgeRequests) -> Done:
    """Mark the stored replies of these requests as received; ids without one are skipped."""
    store.requests.acknowledge(message.request_ids)
    LOG.debug("Acknowledged: %d requests", len(message.request_ids))
    return Done()


class Pruning:
    """Delete rows that have reached their retention age; several processes may do so concurrently.

    A round examines a part of the server groups, and the next one continues after it.
    """

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._requests = StoredRequests(database, requests)
        self._retention = retention
        #: Where the last round ended in the order of their uuids; empty for the beginning.
        self._examined_groups = ""

    def round(self) -> None:
        """Delete all rows that have reached their age.

        :raises StoreUnavailable: the database cannot be reached.
        """
        keep = self._retention
        answers = self._requests.prune(acknowledged=keep.acknowledged, unacknowledged=keep.unacknowledged)
        buried = in_parts(lambda: self._database.write(self._unbury), _AT_ONCE)
        groups = self._forget_groups()
        self._database.write(lambda connection: services.prune(connection, _SILENT_SERVICES_KEPT))
        reconciler_log.prune(self._database, keep.unacknowledged)
        if answers or buried or groups:
            LOG.info("Forgot %d stored answers, %d tombstones and %d server groups", answers, buried, groups)

    def _forget_groups(self) -> int:
        # Kept as long as tombstones: no message that still arrives is older.
        kept, after = self._retention.tombstones, self._examined_groups
        find = partial(server_groups.outdated, older_than=kept, after=after)
        old, self._examined_groups = self._database.read(find)
        deleted = 0
        for part in bulk.chunks(old, _AT_ONCE):
            if is_stopping():
                break
            # In a separate transaction, which sees the members as they are once it holds the locks.
            deleted += self._database.write(partial(server_groups.delete_without_members, uuids=part))
        return deleted

    def _unbury(self, connection: Connection) -> int:
        # By key, read without a lock: a delete by time would lock the index that new tombstones are inserted in.
        old = tombstones.c.created_at < now() - self._retention.tombstones
        # The tombstone of a consumer that still has foreign allocations stays.
        #
        # SELECT ... FROM tombstones t LEFT JOIN consumers c ON c.uuid = t.consumer_uuid
        #  WHERE t.created_at < ... AND c.id IS NULL LIMIT :n
        query = (
            select(tombstones.c.consumer_uuid)
            .select_from(tombstones.outerjoin(consumers, consumers.c.uuid == tombstones.c.consumer_uuid))
            .where(old, consumers.c.id.is_(None))
        )
        uuids = sorted(connection.scalars(query.limit(_AT_ONCE)))
        connection.execute(tombstones.delete().where(tombstones.c.consumer_uuid.in_(uuids)))
        return len(uuids)
