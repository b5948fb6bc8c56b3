"""Record in the change feed which providers and hosts a transaction changes, and read it; compare ``seq`` of all rows.

Schedulers follow the feed to keep their views up to date. Every change of data that views hold bumps the ``seq`` of the
row. So a follower needs only the ids and ``seq`` of all rows to find those that it has missed.
"""

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, Table, bindparam, func, select

from moorage.db.columns import CLOCK_SET_BACK, now
from moorage.db.database import Database
from moorage.db.forced_index import by_index
from moorage.db.script import Script
from moorage.service.pruning import in_parts
from placement_store.db import bulk
from placement_store.schema import changes, consumers, host_aggregates, hosts, resource_providers

#: Seconds for which a reader waits for a missing number of the feed once it has read a later one. Numbers are assigned
#: at the very end of a transaction, so few transactions commit in another order than that of their numbers, and then
#: within milliseconds; the number of a transaction that rolled back never appears.
SETTLED_AFTER = 0.25

#: Seconds after which no missing number before a change is waited for, even by a reader that reads the change for the
#: first time. A server whose disk is slow may hold back all commits for seconds. Arbitrary.
LONGEST_COMMIT = 10.0

#: The most rows that are read at once: a scheduler may have been down for as long as the feed is kept.
READ_AT_ONCE = 10_000

#: The most rows that one call of :func:`prune` deletes, so that no transaction grows without bound.
PRUNED_AT_ONCE = 10_000

#: More than the number of changes that a restore can have lost.
_LEAP = 2**32
#: The most leaps of a new history. It keeps the sums of `seq` within 64 bits, which SQLite adds up in.
_MOST_LEAPS = 1000

# Built once: it takes SQLAlchemy longer to build a statement than to run it.
_SINCE = (
    select(
        changes.c.id,
        changes.c.resource_provider_id,
        changes.c.host_id,
        (now() - changes.c.created_at).label("age"),
        resource_providers.c.seq,
    )
    .select_from(changes.outerjoin(resource_providers, resource_providers.c.id == changes.c.resource_provider_id))
    .where(changes.c.id >= bindparam("first_id"))
    .order_by(changes.c.id)
    .limit(READ_AT_ONCE)
)


def record(connection: Connection | Script, provider_ids: Collection[int] = (), host_ids: Collection[int] = ()) -> None:
    """Record that these providers and hosts have changed; call it at the end of a transaction."""
    rows = [{"resource_provider_id": id_, "host_id": None} for id_ in sorted(provider_ids)]
    rows += [{"resource_provider_id": None, "host_id": id_} for id_ in sorted(host_ids)]
    bulk.insert(connection, changes, rows, stamps=["created_at"])


class Changes(NamedTuple):
    """Hold the changes of the feed since one of its numbers."""

    #: The number to continue from.
    go_on_from: int
    #: The present ``seq`` of each changed provider by id; null if it is deleted.
    provider_seqs: dict[int, int | None]
    host_ids: set[int]
    #: When the reader has first read each change before which numbers are missing that it waits for, by its number.
    gaps: dict[int, float]
    #: The store has been restored: every number and every ``seq`` that was read before is invalid.
    is_another_history: bool = False
    #: Changes that came after it may have been pruned, and are missing here: only a comparison finds them.
    is_pruned: bool = False


class _Progress:
    """How far a reading of the feed has come; if it waits for missing numbers, the next reading begins before them.

    For the parameters see :func:`changes_since`.
    """

    def __init__(self, last_id: int, gaps: Mapping[int, float], clock: Callable[[], float]) -> None:
        self.go_on_from = self._previous = last_id
        self.gaps: dict[int, float] = {}
        self._known, self._clock, self._began = gaps, clock, clock()

    def add(self, number: int, age: float, *, begins_history: bool) -> None:
        """Take the next change that was read."""
        if begins_history:
            self.gaps = {}
        # A change whose time is far in the future was recorded before the clock was set back: it is settled.
        # Nor is a number waited for that is missing before the first change of all: a feed rarely begins at 1.
        elif 0 < self._previous < number - 1 and -CLOCK_SET_BACK < age < LONGEST_COMMIT:
            # All commits may have been held back for seconds. So what counts is not how old the change is, but for how
            # long this reader has known it without the numbers before it.
            first_read = self._known.get(number, self._clock())
            if self._began - first_read < SETTLED_AFTER:
                self.gaps[number] = first_read
        if not self.gaps:
            self.go_on_from = number
        self._previous = number


def changes_since(
    connection: Connection,
    last_id: int,
    gaps: Mapping[int, float] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Changes:
    """Return the providers and hosts changed since the number ``last_id``, and the number to continue from.

    A change may be returned twice. A change is missed if its transaction commits more than :data:`SETTLED_AFTER` after
    one with a later number, or if the database's clock is set between the two: only the comparison of all (id, ``seq``)
    makes a cache correct, see :func:`differing_ids`.

    :param gaps: those of the reader's last reading; None if this is the first.
    :param clock: returns the seconds by which the reader measures how long it has waited.
    """
    progress = _Progress(last_id, gaps or {}, clock)
    # The row of the last change that the reader knows is read again: as long as it is there, none after it is pruned.
    rows = connection.execute(_SINCE, {"first_id": last_id}).all()
    if not rows and 0 < (last := newest(connection)) < last_id:
        # Numbers only grow, and the newest is never pruned: the store has been replaced by an older one.
        return Changes(last, {}, set(), {}, is_another_history=True)
    # A reader of an empty feed knows no row: to it, all numbers before the first one that it finds may be pruned.
    is_pruned = rows[0].id > last_id + 1 if rows else last_id > 0
    # The row that begins a history may be pruned, too.
    is_another = bool(rows) and rows[0].id - last_id > _LEAP // 2
    provider_seqs: dict[int, int | None] = {}
    host_ids: set[int] = set()
    while rows:
        for row in rows:
            if row.id == last_id:
                continue
            begins_history = row.resource_provider_id is None and row.host_id is None
            progress.add(row.id, row.age, begins_history=begins_history)
            is_another = is_another or begins_history
            if row.resource_provider_id is not None:
                provider_seqs[row.resource_provider_id] = row.seq
            elif row.host_id is not None:
                host_ids.add(row.host_id)
        if len(rows) < READ_AT_ONCE:
            break
        rows = connection.execute(_SINCE, {"first_id": rows[-1].id + 1}).all()
    return Changes(progress.go_on_from, provider_seqs, host_ids, progress.gaps, is_another, is_pruned)


def recent_changes(connection: Connection) -> Changes:
    """Return the changes of the last seconds, for a reader that then reads all rows.

    It must not continue from the newest number: transactions with earlier numbers may not have committed yet.
    """
    old = select(changes.c.id).where(changes.c.created_at < now() - LONGEST_COMMIT)
    newest_old = by_index(old, changes, "ix_changes_created_at").order_by(changes.c.created_at.desc()).limit(1)
    return changes_since(connection, connection.scalar(newest_old) or 0)


_NUMBERS = (
    (resource_providers, ("generation", "seq")),
    (hosts, ("seq",)),
    (host_aggregates, ("seq",)),
    (consumers, ("generation",)),
)


def any_leaps() -> int:
    """Return the number of leaps of a new history: random, as the same backup may be restored twice."""
    return 1 + secrets.randbelow(_MOST_LEAPS)


def begin_history(connection: Connection, leaps: int | None = None) -> None:
    """Begin a new history of a store restored from a backup, before anything else writes to it.

    All generations, each ``seq`` and the feed's number are raised beyond those of the lost history. Otherwise the store
    would assign generations again that stale writers rely on, and a ``seq`` that a scheduler has read of another row.
    The new row of the feed, which names no provider and no host, makes running schedulers read everything again. All
    hosts count as undescribed, because agents send only descriptions that have changed.

    :param leaps: by how many times 2**32 the numbers are raised; None for :func:`any_leaps`. Two histories that begin
        with the same backup must differ in it: the second one would use the numbers of the first one again.
    """
    raised = (leaps or any_leaps()) * _LEAP
    for table, names in _NUMBERS:
        connection.execute(table.update().values({name: table.c[name] + raised for name in names}))
    connection.execute(hosts.update().values(description_number=-1))
    row = {"id": newest(connection) + raised, "resource_provider_id": None, "host_id": None}
    bulk.insert(connection, changes, [row], stamps=["created_at"])


def newest(connection: Connection) -> int:
    """Return the number of the last change; 0 if there is none."""
    return connection.scalar(select(func.max(changes.c.id))) or 0


def prune(connection: Connection, older_than_seconds: float) -> int:
    """Delete the oldest of the changes older than this, a bounded number; return how many.

    The newest of them is kept. By it a reader knows whether others that it has not read were pruned; and a reader that
    begins there waits for the numbers that are missing before the next change.
    """
    old = changes.c.created_at < now() - older_than_seconds
    is_old = by_index(select(changes.c.id).where(old), changes, "ix_changes_created_at")
    if connection.scalar(is_old.limit(1)) is None:
        return 0
    # By number: a delete by time would lock the index that new changes are inserted in. Numbers have gaps, so the last
    # one of this part is looked up.
    #
    # SELECT MAX(id) FROM (SELECT id FROM changes ORDER BY id LIMIT :n) AS oldest
    oldest = select(changes.c.id).order_by(changes.c.id).limit(PRUNED_AT_ONCE).subquery("oldest")
    last = connection.scalar(select(func.max(oldest.c.id))) or 0
    # If changes after this part are old, too, they are not read to find their last one: they may be very many.
    if connection.scalar(is_old.where(changes.c.id > last).limit(1)) is None:
        last = (connection.scalar(select(func.max(changes.c.id)).where(old)) or 0) - 1
    return connection.execute(changes.delete().where(changes.c.id <= last)).rowcount


def prune_all(database: Database, older_than_seconds: float) -> int:
    """Delete all changes older than this, a bounded number in each transaction; return how many.

    :raises StoreUnavailable: the database cannot be reached.
    """
    return in_parts(lambda: database.write(lambda connection: prune(connection, older_than_seconds)), PRUNED_AT_ONCE)


class TableSums(NamedTuple):
    """The number of rows of a table, and the sums of their ids and of their ``seq``."""

    rows: int
    ids: int
    seqs: int


_SUMS = {
    table: select(
        func.count(), func.coalesce(func.sum(table.c.id), 0), func.coalesce(func.sum(table.c.seq), 0)
    ).select_from(table)
    for table in (resource_providers, hosts)
}


def sums(connection: Connection, table: Table) -> TableSums:
    """Return the sums of a table: a small part of the cost of reading every ``seq``.

    Ids and ``seq`` only grow. So equal sums show that a reader has missed nothing, unless it has missed at least two
    new and two deleted rows at once.
    """
    [row] = connection.execute(_SUMS[table]).all()
    return TableSums(*map(int, row))


def seq_by_id(connection: Connection, table: Table) -> dict[int, int]:
    """Return the ``seq`` of every row of a table by id, read by one statement."""
    return dict(connection.execute(select(table.c.id, table.c.seq)).all())


def seq_of(connection: Connection, provider_ids: Collection[int]) -> dict[int, int]:
    """Return the ``seq`` of these providers by id; an id that does not exist is omitted."""
    table = resource_providers.c
    return dict(bulk.pairs(table.id, table.seq).rows(connection, sorted(provider_ids)))


def differing_ids(connection: Connection, table: Table, known: Mapping[int, int]) -> set[int]:
    """Return the ids whose ``seq`` in the store differs from ``known``, or that only one of the two has."""
    return {id_ for id_, _ in known.items() ^ seq_by_id(connection, table).items()}
