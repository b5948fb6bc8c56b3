"""Write tombstones of consumers that are deleted for good, so that nothing is claimed for them any more."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, exc, select

from moorage import errors
from placement_store.allocations import consumers
from placement_store.allocations.consumers import UNCLAIMED, Holding
from placement_store.db import bulk
from placement_store.db.retries import StaleRead
from placement_store.schema import consumers as consumer_table
from placement_store.schema import tombstones


def is_buried(connection: Connection, uuid: str, holding: Holding | None) -> bool:
    """Return whether a consumer has been deleted for good.

    A consumer that exists has a tombstone only if it has kept foreign allocations, or if a client has created it again
    over HTTP, where tombstones are ignored.
    """
    return (holding is None or not holding.known_over_rpc) and bool(buried(connection, [uuid]))


def require_unburied(connection: Connection, uuid: str, holding: Holding | None) -> None:
    """Refuse a consumer that has been deleted for good; called for all writes except those over HTTP.

    :raises ConsumerDeleted: it has been deleted for good.
    """
    if is_buried(connection, uuid, holding):
        raise errors.ConsumerDeleted(consumer_uuid=uuid)


def buried(connection: Connection, uuids: Collection[str]) -> set[str]:
    """Return the uuids of the consumers among these that have been deleted for good."""
    query = select(tombstones.c.consumer_uuid)
    return {row.consumer_uuid for row in bulk.select_in(connection, query, tombstones.c.consumer_uuid, sorted(uuids))}


def bury(connection: Connection, uuid: str, holding: Holding | None, *, unaccepted: bool = False) -> None:
    """Write a consumer's tombstone and delete its row, if there is one.

    :param unaccepted: fail if a host has accepted its claim.
    :raises StaleRead: it has changed since it was read, or has been created since.
    """
    # The tombstone comes first, so that a concurrent claim of the consumer cannot succeed too: see `consumers.create`.
    _write_tombstone(connection, uuid)
    if holding is None:
        if connection.execute(consumer_table.delete().where(consumer_table.c.uuid == uuid)).rowcount:
            raise StaleRead
    else:
        consumers.forget(connection, holding, unaccepted=unaccepted)


#: The columns of a consumer that is deleted for good and keeps foreign allocations: in no group, known only over HTTP.
_LEFT_BEHIND: Mapping[str, Any] = {**UNCLAIMED, "consumer_group_id": None, "known_over_rpc": False}


def bury_keeping_row(connection: Connection, holding: Holding, *, unaccepted: bool) -> None:
    """Write a consumer's tombstone; keep its row until the last of its foreign allocations is deleted.

    From then on only HTTP clients can write its allocations, since HTTP ignores tombstones.

    :param unaccepted: as in :func:`bury`.
    :raises StaleRead: it has changed since it was read.
    """
    _write_tombstone(connection, holding.uuid)
    consumers.bump_generation(connection, holding, _LEFT_BEHIND, claimed=False, unaccepted=unaccepted)


def _write_tombstone(connection: Connection, uuid: str) -> None:
    with suppress(exc.IntegrityError):  # it has a tombstone already
        bulk.insert(connection, tombstones, [{"consumer_uuid": uuid}], stamps=["created_at"])
