"""Count image properties by host: the number of the host's instances for each value of some properties."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, select

from conductor.engine.rows import SPECS_AT_ONCE, batches
from conductor.schema import cell_attempts, cell_hosts, cell_instances, cell_operations
from moorage.db.columns import as_uuid, now
from moorage.db.database import Database
from moorage.model import Image
from moorage.model.states import InstanceState

#: The most hosts whose instances one statement reads, so that no result is large. Arbitrary.
_AT_ONCE = 100
#: Seconds after which a call begins to count no further hosts: heartbeats wait for it. Arbitrary.
_COUNTED_FOR = 5.0
#: Seconds by which a read overlaps with the last one: a transaction may commit later than the time that it records.
_OVERLAP = 10.0
#: The limits of a host's report: the number of pairs of name and value (the most frequent), and their length.
_MOST_PAIRS = 64
_LONGEST_PAIR = 300

#: The states in which an instance counts as being on its host.
_THERE: tuple[InstanceState, ...] = ("active", "moving", "moved", "rebuilding", "shelving", "error")

#: By host, then by ``name=value``.
Counts = Mapping[str, Mapping[str, int]]


class _Imaged(msgspec.Struct):
    """The part of a stored request spec with the image of the instance."""

    image: Image = Image()


class ImageCounts:
    """Counts image properties: first on all hosts, then only on hosts where an operation has ended.

    :param names: the properties to count; if there are none, nothing is read.
    """

    def __init__(self, database: Database, cell_uuid: str, names: Collection[str]) -> None:
        self._database = database
        self._cell_uuid = cell_uuid
        self._names = frozenset(names)
        self._counts: dict[str, Mapping[str, int]] = {}
        #: The hosts that are to be counted, in this order.
        self._due: dict[str, None] = {}
        #: Those of them that have not been counted yet since the start.
        self._uncounted: set[str] = set()
        self._looked_at: float | None = None

    def now(self) -> Counts | None:
        """Return the counts of all hosts that have any, or None until every host has been counted once.

        A call counts hosts for a few seconds, and the next one counts the rest.

        :raises StoreUnavailable: the records cannot be reached; the next call reads the rest.
        """
        if not self._names:
            return {}
        hosts, clock = self._database.read(self._to_look_at)
        if self._looked_at is None:
            self._uncounted = set(hosts)
        self._looked_at = clock
        self._due |= dict.fromkeys(sorted(hosts))
        until = time.monotonic() + _COUNTED_FOR
        for part in batches(list(self._due), _AT_ONCE):
            found = self._database.read_one_moment(partial(self._count, part))
            for host in part:
                self._counts.pop(host, None)
                del self._due[host]
            self._counts |= found
            self._uncounted.difference_update(part)
            if time.monotonic() >= until:
                break
        return None if self._uncounted else dict(self._counts)

    def _to_look_at(self, connection: Connection) -> tuple[set[str], float]:
        """Return the hosts whose instances may have changed since the last read, and the current time."""
        clock: float = connection.scalars(select(now())).one()
        # If the clock was set back, operations that have ended since seem to have ended before the last read.
        if self._looked_at is None or clock < self._looked_at:
            return set(connection.scalars(select(cell_hosts.c.service_host).where(self._in(cell_hosts)))), clock
        # SELECT DISTINCT a.host FROM cell_operations o JOIN cell_attempts a ON a.instance_uuid = o.subject
        #  WHERE o.state IN ('done', 'failed') AND o.due_at >= :since
        # Only operations change the instances of a host; the `due_at` of an ended one is the time at which it ended.
        since = self._looked_at - _OVERLAP
        query = (
            select(cell_attempts.c.host)
            .join_from(
                cell_operations, cell_attempts, cell_attempts.c.instance_uuid == as_uuid(cell_operations.c.subject)
            )
            .where(self._in(cell_operations), self._in(cell_attempts))
            .where(cell_operations.c.state.in_(("done", "failed")), cell_operations.c.due_at >= since)
        )
        return set(connection.scalars(query.distinct())), clock

    def _count(self, hosts: Collection[str], connection: Connection) -> dict[str, Mapping[str, int]]:
        instances = cell_instances.c
        there = select(instances.uuid).where(
            self._in(cell_instances),
            instances.host.in_(hosts),
            instances.state.in_(_THERE),
            instances.claim_id.is_not(None),
            instances.request_spec.is_not(None),
        )
        images = select(instances.host, instances.request_spec).where(self._in(cell_instances))
        found: dict[str, Counter[str]] = {}
        for uuids in batches(connection.scalars(there).all(), SPECS_AT_ONCE):
            for row in connection.execute(images.where(instances.uuid.in_(uuids))):
                properties = msgspec.json.decode(row.request_spec, type=_Imaged).image.properties
                found.setdefault(row.host, Counter()).update(self._pairs(properties))
        return {host: dict(pairs.most_common(_MOST_PAIRS)) for host, pairs in found.items() if pairs}

    def _pairs(self, properties: Mapping[str, str]) -> Iterable[str]:
        pairs = (f"{name}={properties[name]}" for name in sorted(self._names & properties.keys()))
        return (pair for pair in pairs if len(pair) <= _LONGEST_PAIR)

    def _in(self, table: Table) -> ColumnElement[bool]:
        return table.c.cell_uuid == self._cell_uuid
