"""Record in the change feed which providers and hosts a transaction changes, and read it; compare ``seq`` of all rows.

Schedulers follow the feed to keep their views up to date. Every change of data that views hold bumps the ``seq`` of the
row. So a follower needs only the ids and ``seq`` of all rows to find those that it has missed.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, Table, bindparam, func, select

from moorage.db.columns import CLOCK_SET_BACK, now
from moorage.db.database import Database
from moorage.db.forced_index import by_index
from moorage.db.script import Script
from moorage.service.pruning import in_parts
from placement_store.db import bulk
from placement_store.schema import changes, consumers, host_aggregates, hosts, resource_providers

#: Seconds for which a reader waits for a missing number of the feed. Numbers are assigned at the very end of a
#: transaction, so a writer commits within milliseconds; the number of a writer that rolled back never appears.
SETTLED_AFTER = 0.25

#: The most rows that are read at once: a scheduler may have been down for as long as the feed is kept.
READ_AT_ONCE = 10_000

#: The most rows that one call of :func:`prune` deletes, so that no transaction grows without bound.
PRUNED_AT_ONCE = 10_000

#: More than the number of changes that a restore can have lost.
_LEAP = 2**32

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
    #: The store has been restored: every number and every ``seq`` that was read before is invalid.
    is_another_history: bool = False
    #: Changes that came after it may have been pruned, and are missing here: only a comparison finds them.
    is_pruned: bool = False


def changes_since(connection: Connection, last_id: int) -> Changes:
    """Return the providers and hosts changed since the number ``last_id``, and the number to continue from.

    A change may be returned twice. A change is missed if its transaction took longer than :data:`SETTLED_AFTER` from
    its number to its commit: only the comparison of all (id, ``seq``) makes a cache correct, see :func:`differing_ids`.
    """
    # The row of the last change that the reader knows is read again: as long as it is there, none after it is pruned.
    rows = connection.execute(_SINCE, {"first_id": last_id}).all()
    if not rows and 0 < (last := newest(connection)) < last_id:
        # Numbers only grow, and the newest is never pruned: the store has been replaced by an older one.
        return Changes(last, {}, set(), is_another_history=True)
    is_pruned = last_id > 0 and (not rows or rows[0].id > last_id + 1)
    # The row that begins a history may be pruned, too.
    is_another = is_pruned and bool(rows) and rows[0].id - last_id > _LEAP // 2
    go_on_from, has_gap = last_id, False
    provider_seqs: dict[int, int | None] = {}
    host_ids: set[int] = set()
    while rows:
        for row in rows:
            if row.id == last_id:
                continue
            # A row whose time is far in the future was written before the clock was set back: it is settled.
            is_fresh = -CLOCK_SET_BACK < row.age < SETTLED_AFTER
            has_gap = has_gap or (row.id > go_on_from + 1 and is_fresh)
            if not has_gap:
                go_on_from = row.id
            if row.resource_provider_id is not None:
                provider_seqs[row.resource_provider_id] = row.seq
            elif row.host_id is not None:
                host_ids.add(row.host_id)
            else:
                is_another = True
        if len(rows) < READ_AT_ONCE:
            break
        rows = connection.execute(_SINCE, {"first_id": rows[-1].id + 1}).all()
    return Changes(go_on_from, provider_seqs, host_ids, is_another, is_pruned)


_NUMBERS = (
    (resource_providers, ("generation", "seq")),
    (hosts, ("seq",)),
    (host_aggregates, ("seq",)),
    (consumers, ("generation",)),
)


def begin_history(connection: Connection) -> None:
    """Begin a new history of a store restored from a backup, before anything else writes to it.

    All generations, each ``seq`` and the feed's number are raised beyond those of the lost history. Otherwise the store
    would assign generations again that stale writers rely on, and a ``seq`` that a scheduler has read of another row.
    The new row of the feed, which names no provider and no host, makes running schedulers read everything again. All
    hosts count as undescribed, because agents send only descriptions that have changed.
    """
    for table, names in _NUMBERS:
        connection.execute(table.update().values({name: table.c[name] + _LEAP for name in names}))
    connection.execute(hosts.update().values(description_number=-1))
    row = {"id": newest(connection) + _LEAP, "resource_provider_id": None, "host_id": None}
    bulk.insert(connection, changes, [row], stamps=["created_at"])


def newest(connection: Connection) -> int:
    """Return the number of the last change; 0 if there is none."""
    return connection.scalar(select(func.max(changes.c.id))) or 0


def prune(connection: Connection, older_than_seconds: float) -> int:
    """Delete the oldest of the changes older than this, a bounded number; return how many.

    The newest change is kept: by it a reader knows whether others that it has not read were pruned.
    """
    old = (changes.c.created_at < now() - older_than_seconds) & (changes.c.id < newest(connection))
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
        last = connection.scalar(select(func.max(changes.c.id)).where(old)) or 0
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
