"""A cache of all host aggregates, without their hosts, for request filters; read on demand."""

import time
from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import Connection, select

from moorage import errors
from moorage.db.database import LOCK_PATIENCE, BoundedLock, Database
from moorage.plugin import Aggregate
from placement_store.schema import aggregates, host_aggregates

# SELECT a.uuid, h.name, h.metadata FROM host_aggregates h JOIN aggregates a ON a.id = h.aggregate_id
_ALL = select(aggregates.c.uuid, host_aggregates.c.name, host_aggregates.c.metadata).join_from(
    host_aggregates, aggregates, aggregates.c.id == host_aggregates.c.aggregate_id
)


def _not_read(seconds: float) -> errors.StoreUnavailable:
    return errors.StoreUnavailable(schema="main", reason=f"a reading of the aggregates has not ended in {seconds:g} s")


class AggregateReader:
    """Reads all host aggregates at once, and shares a read among concurrent requests. Safe to use from several threads.

    There are a few hundred aggregates at most, and most requests need none of them. So all of them are read on demand,
    instead of being kept up to date by the change feed.

    :param patience: seconds that a thread waits for the read of another thread.
    """

    def __init__(self, database: Database, patience: float = LOCK_PATIENCE) -> None:
        self._database = database
        self._lock = BoundedLock(_not_read, patience)
        self._begun = float("-inf")
        self._known: Mapping[tuple[str, str, bytes], Aggregate] = {}

    def read(self, begun_after: float) -> Sequence[Aggregate]:
        """Return all host aggregates, as read at ``begun_after``, by the monotonic clock, or later.

        :raises StoreUnavailable: the database cannot be reached.
        """
        with self._lock.held():
            if self._begun < begun_after:
                begun = time.monotonic()
                self._database.read(self._read)
                self._begun = begun
            return list(self._known.values())

    def _read(self, connection: Connection) -> None:
        rows = [(row.uuid, row.name, bytes(row.metadata)) for row in connection.execute(_ALL)]
        # Decode only the rows that have changed.
        self._known = {
            row: self._known.get(row) or Aggregate(row[0], row[1], msgspec.json.decode(row[2], type=dict[str, str]))
            for row in rows
        }
