"""The feed of changes: which providers and hosts have changed, written in the transaction that changes them."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from moorage.db.columns import now
from placement_store.db import bulk
from placement_store.schema import changes

#: Seconds that a number may be missing from the feed before its reader goes past it. Numbers are given out at the
#: very end of a transaction, so a writer still to commit is there within milliseconds; one that rolled back never is.
SETTLED_AFTER = 0.25

#: The most rows that one call of :func:`prune` deletes, so that no transaction grows without bound.
PRUNED_AT_ONCE = 10_000


def record(connection: Connection, provider_ids: Collection[int] = (), host_ids: Collection[int] = ()) -> None:
    """Tell that these providers and hosts have changed; the last write of a transaction."""
    rows = [{"resource_provider_id": id_, "host_id": None} for id_ in sorted(provider_ids)]
    rows += [{"resource_provider_id": None, "host_id": id_} for id_ in sorted(host_ids)]
    bulk.insert(connection, changes, rows, stamps=["created_at"])


class Changes(NamedTuple):
    """Hold the changes of the feed since one of its numbers."""

    #: The number to go on from.
    go_on_from: int
    provider_ids: set[int]
    host_ids: set[int]
    #: The store has been restored: no number and no ``seq`` that was read before means anything any more.
    is_another_history: bool = False


def changes_since(connection: Connection, last_id: int) -> Changes:
    """Return the number to go on from, and the ids of the providers and of the hosts changed since ``last_id``.

    A change may be told twice. One may be missed whose transaction took longer than :data:`SETTLED_AFTER` from its
    number to its commit: only the comparison of all (id, ``seq``) makes a follower's cache complete.
    """
    age = (now() - changes.c.created_at).label("age")
    query = select(changes.c.id, changes.c.resource_provider_id, changes.c.host_id, age)
    rows = connection.execute(query.where(changes.c.id > last_id).order_by(changes.c.id)).all()
    if not rows and 0 < (last := newest(connection)) < last_id:
        # Numbers only grow, and the newest are pruned last: the store is an older one than was read.
        return Changes(last, set(), set(), is_another_history=True)
    go_on_from, has_gap = last_id, False
    for row in rows:
        has_gap = has_gap or (row.id > go_on_from + 1 and row.age < SETTLED_AFTER)
        if not has_gap:
            go_on_from = row.id
    return Changes(
        go_on_from,
        {row.resource_provider_id for row in rows if row.resource_provider_id is not None},
        {row.host_id for row in rows if row.host_id is not None},
        is_another_history=any(row.resource_provider_id is None and row.host_id is None for row in rows),
    )


def begin_history(connection: Connection, leap: int) -> None:
    """Tell that the store has been restored, under a number past all that may have been given out before."""
    row = {"id": newest(connection) + leap, "resource_provider_id": None, "host_id": None}
    bulk.insert(connection, changes, [row], stamps=["created_at"])


def newest(connection: Connection) -> int:
    """Return the number of the last change; 0 where none is left."""
    return connection.scalar(select(func.max(changes.c.id))) or 0


def prune(connection: Connection, older_than_seconds: float) -> int:
    """Delete the oldest changes, a bounded number at a time; return how many."""
    old = changes.c.created_at < now() - older_than_seconds
    last, first = connection.execute(select(func.max(changes.c.id), func.min(changes.c.id)).where(old)).one()
    if last is None:
        return 0
    # By number: deleting by time would lock the index that new changes are entered in.
    return connection.execute(changes.delete().where(changes.c.id <= min(last, first + PRUNED_AT_ONCE - 1))).rowcount
