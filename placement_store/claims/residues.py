"""Write residues: allocations on a host for a guest that may still run there after its instance has left the host.

A residue is a separate consumer whose uuid is the id of the attempt for which the host has accepted the claim. It is
deleted when that id is deleted for good, after the host has reported that it has no guest of that attempt any more. A
migration that becomes a residue keeps its own uuid: it is deleted when that uuid, or the attempt's id, is deleted for
good.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, select

from moorage import errors
from placement_store.allocations import consumers, tombstones
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import Holding, Pair
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import released_amounts
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.schema import consumers as consumer_table
from placement_store.schema import tombstones as tombstone_table

RESIDUE = "RESIDUE"

#: See :func:`is_residue`.
IS_RESIDUE = and_(consumer_table.c.claim_id.is_(None), consumer_table.c.accepted_by.is_not(None))

#: The columns of a consumer that its residue has as well.
_OF_OWNER = ("project_id", "user_id", "accepted_by", "accepted_host", "accepted_at")


def left_behind(residue_uuid: str | None) -> str:
    """Return the end of a log line about a change that may leave a residue."""
    return "" if residue_uuid is None else f"; residue {residue_uuid} is left on its former host"


def residue_of(connection: Connection, holding: Holding, kept: Mapping[Pair, int]) -> ConsumerChange | None:
    """Return the residue of an accepted claim: all that its consumer releases in the host's tree.

    It must be written together with the consumer's own change: then the net growth is 0, and it needs no free capacity.
    It holds nothing of sharing providers, since nobody will use that guest. The result is null if no host has accepted
    the claim, if the guest is known to be gone, or if the consumer releases nothing there.

    :param kept: the allocations that the consumer keeps.
    :raises InvalidState: the attempt, under whose uuid the residue would have to be written, is a consumer already.
    """
    leaving = _of_guest(connection, holding, kept)
    if not leaving:
        return None
    # One statement, so that one snapshot is read: a transaction that has just written that residue has also changed
    # this consumer.
    attempt_id = str(holding.accepted_by)
    present = consumers.holdings(connection, [holding.uuid, attempt_id])
    if attempt_id in present:
        if present.get(holding.uuid) != holding:
            raise StaleRead
        reason = f"no residue can be left: there is a consumer with the uuid of its attempt {attempt_id}"
        raise errors.InvalidState(reason=reason)
    return ConsumerChange(
        uuid=attempt_id,
        before=None,
        after=leaving,
        columns={
            **consumers.columns_of(connection, holding, _OF_OWNER),
            "consumer_type": RESIDUE,
            "root_provider_id": holding.root_provider_id,
        },
        inherited=True,
    )


def _of_guest(connection: Connection, holding: Holding, kept: Mapping[Pair, int]) -> dict[Pair, int]:
    """Return what an accepted claim holds in the host's tree beyond ``kept``, unless its guest is known to be gone."""
    if holding.claim_id is None or holding.accepted_by is None or tombstones.buried(connection, [holding.accepted_by]):
        return {}
    tree = released_amounts.providers_on_host(connection, holding)
    released = Counter(holding.amounts) - Counter(kept)
    return {pair: amount for pair, amount in released.items() if pair[0] in tree}


def write(connection: Connection, changes: Sequence[ConsumerChange], names: ResourceClassNames, **how: Any) -> None:
    """Write changes; each change that creates a consumer must be a residue.

    :param how: see :func:`placement_store.allocations.write.write`, also for the errors.
    """
    try:
        allocations.write(connection, changes, names, **how)
    except errors.ConsumerDeleted as fault:
        # A concurrent transaction has reported the guest gone: a new transaction writes no residue.
        raise StaleRead from fault


# --- Migrations that stay as residues -------------------------------------------------------------------------------


def is_residue(holding: Holding) -> bool:
    """Return whether a consumer is a residue: no claim places it, and yet a host has accepted its allocations.

    The consumer type is no evidence: every put of allocations may change it.
    """
    return holding.claim_id is None and holding.accepted_by is not None


def residue_of_migration(
    connection: Connection, migration: Holding, staying: Mapping[Pair, int]
) -> ConsumerChange | None:
    """Return the change that turns a migration into a residue of all it holds in the host's tree, or null.

    The caller writes it and then calls :func:`require_unreported`. See :func:`residue_of`.

    :param staying: its allocations that pass to another consumer.
    """
    kept = _of_guest(connection, migration, staying)
    if not kept:
        return None
    columns = {"claim_id": None, "owner": None, "claimed_at": None, "consumer_group_id": None, "consumer_type": RESIDUE}
    return ConsumerChange(uuid=migration.uuid, before=migration, after=kept, columns=columns, inherited=True)


def require_unreported(connection: Connection, attempt_id: str) -> None:
    """Verify that the guest of a residue is not being reported gone; call it after the residue is written.

    It is for residues that have their own uuid. The report writes the attempt's tombstone first and then reads its
    residues with a lock (:func:`require_none_of`). Each of the two transactions waits for the other's write, so one of
    them sees the other, or the database ends one of them as a deadlock.

    :raises StaleRead: the guest is gone; a new transaction leaves no residue.
    """
    # SELECT ... FROM tombstones WHERE consumer_uuid = :attempt LOCK IN SHARE MODE
    query = select(tombstone_table.c.consumer_uuid).where(tombstone_table.c.consumer_uuid == attempt_id)
    if connection.execute(query.with_for_update(read=True)).first() is not None:
        raise StaleRead


def residues_of_attempt(connection: Connection, attempt_id: str) -> dict[str, Holding]:
    """Return the residues of an attempt that have a uuid of their own, by that uuid."""
    return consumers.holdings(connection, list(connection.scalars(_of_attempt(attempt_id))))


def require_none_of(connection: Connection, attempt_id: str) -> None:
    """Verify that no residue of an attempt is being written; call it after the attempt is deleted for good.

    :raises StaleRead: there is one; a new transaction finds it.
    """
    if connection.execute(_of_attempt(attempt_id).with_for_update(read=True)).first() is not None:
        raise StaleRead


def _of_attempt(attempt_id: str) -> Select[Any]:
    # SELECT uuid FROM consumers WHERE accepted_by = :attempt AND claim_id IS NULL AND uuid <> :attempt
    table = consumer_table.c
    residue = (table.accepted_by == attempt_id, table.claim_id.is_(None), table.uuid != attempt_id)
    return select(table.uuid).where(*residue)
