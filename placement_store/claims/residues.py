"""Residues: what a guest that may still run goes on holding on its host, after its instance has been taken elsewhere.

A residue is a consumer of its own, under the id of the attempt that has accepted the claim. It goes when it is deleted
for good, which says that the host has nothing of that attempt any more. A migration that is left as a residue keeps its
own uuid: it goes when that is deleted for good, or the attempt.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, select

from moorage import errors
from placement_store.allocations import consumers, tombstones
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import Holding, Pair
from placement_store.allocations.write import Change
from placement_store.claims import released
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.schema import consumers as consumer_table
from placement_store.schema import tombstones as tombstone_table

RESIDUE = "RESIDUE"


def left(connection: Connection, holding: Holding, kept: Mapping[Pair, int]) -> Change | None:
    """Return what keeps, for the attempt that has accepted a claim, all that its consumer gives up in the host's tree.

    Written together with the consumer's own change it is netted against that, so it never needs room. Shared providers
    hold nothing for a guest that nobody will use. Nothing is returned where no host has accepted the claim, or where
    the guest is known to be gone.

    :param kept: what the consumer still holds of what it held.
    """
    if holding.claim_id is None or holding.accepted_by is None or tombstones.buried(connection, [holding.accepted_by]):
        return None
    tree = released.on_host(connection, holding)
    leaving = {
        pair: amount - kept.get(pair, 0)
        for pair, amount in holding.amounts.items()
        if pair[0] in tree and amount > kept.get(pair, 0)
    }
    if not leaving:
        return None
    return Change(
        uuid=holding.accepted_by,
        before=None,
        after=leaving,
        columns={**_whose(connection, holding), "consumer_type": RESIDUE, "root_provider_id": holding.root_provider_id},
        inherited=True,
    )


def write(
    connection: Connection, changes: Sequence[Change], residue: Change | None, names: ResourceClassNames, **how: Any
) -> str | None:
    """Write the changes of consumers together with the residue that one of them leaves, if any; return its uuid.

    No other consumer may be created by it.

    :param how: see :func:`placement_store.allocations.write.write`, also for what is raised.
    """
    if residue is None:
        allocations.write(connection, changes, names, **how)
        return None
    write_all(connection, [*changes, residue], names, **how)
    return residue.uuid


def write_all(connection: Connection, changes: Sequence[Change], names: ResourceClassNames, **how: Any) -> None:
    """Write changes of which those that create a consumer leave a residue.

    :param how: see :func:`placement_store.allocations.write.write`, also for what is raised.
    """
    try:
        allocations.write(connection, changes, names, **how)
    except errors.ConsumerDeleted as fault:
        # At this moment the guest was reported gone: begin again without a residue.
        raise StaleRead from fault


# --- Migrations that stay as residues -------------------------------------------------------------------------------


def is_one(holding: Holding) -> bool:
    """Tell whether a consumer is a residue: no claim places it, and yet a host has accepted what it holds.

    The type does not tell: whoever puts allocations says which type it shall be.
    """
    return holding.claim_id is None and holding.accepted_by is not None


def becoming(connection: Connection, migration: Holding, staying: Mapping[Pair, int]) -> Change | None:
    """Return what makes a residue of a migration, of all that it holds in the host's tree; as in :func:`left`.

    :param staying: what of it stays elsewhere.

    Whoever writes it calls :func:`require_unreported` afterwards.
    """
    if migration.claim_id is None or migration.accepted_by is None:
        return None
    tree = released.on_host(connection, migration)
    guests = Counter(migration.amounts) - Counter(staying)
    kept = {pair: amount for pair, amount in guests.items() if pair[0] in tree}
    if not kept or tombstones.buried(connection, [migration.accepted_by]):
        return None
    columns = {"claim_id": None, "owner": None, "claimed_at": None, "consumer_group_id": None, "consumer_type": RESIDUE}
    return Change(uuid=migration.uuid, before=migration, after=kept, columns=columns, inherited=True)


def require_unreported(connection: Connection, migration: Holding) -> None:
    """Make sure, after a migration was made a residue, that its guest is not being reported gone at this moment.

    Whoever reports it writes the attempt's tombstone first and then looks for residues of it, with a lock
    (:func:`require_none_of`). Each waits for what the other has written, so one of the two sees the other, or the
    database ends one of them as a deadlock.

    :raises StaleRead: it was; a new transaction leaves no residue.
    """
    # SELECT ... FROM tombstones WHERE consumer_uuid = :attempt LOCK IN SHARE MODE
    query = select(tombstone_table.c.consumer_uuid).where(tombstone_table.c.consumer_uuid == migration.accepted_by)
    if connection.execute(query.with_for_update(read=True)).first() is not None:
        raise StaleRead


def of_attempt(connection: Connection, attempt_id: str) -> dict[str, Holding]:
    """Return the residues that hold something for an attempt under a uuid of their own, by that uuid."""
    return consumers.holdings(connection, list(connection.scalars(_of_attempt(attempt_id))))


def require_none_of(connection: Connection, attempt_id: str) -> None:
    """Make sure, after an attempt was buried with its residues, that it is not being given another one.

    :raises StaleRead: it was; a new transaction finds it.
    """
    if connection.execute(_of_attempt(attempt_id).with_for_update(read=True)).first() is not None:
        raise StaleRead


def _of_attempt(attempt_id: str) -> Select[Any]:
    # SELECT uuid FROM consumers WHERE accepted_by = :attempt AND claim_id IS NULL AND uuid <> :attempt
    table = consumer_table.c
    residue = (table.accepted_by == attempt_id, table.claim_id.is_(None), table.uuid != attempt_id)
    return select(table.uuid).where(*residue)


# --- Parts ----------------------------------------------------------------------------------------------------------


def _whose(connection: Connection, holding: Holding) -> dict[str, Any]:
    """Return who the guest belongs to and where it is; at this generation of the consumer, which the write compares."""
    table = consumer_table.c
    query = select(table.project_id, table.user_id, table.accepted_by, table.accepted_host, table.accepted_at)
    found = connection.execute(query.where(table.id == holding.id)).one_or_none()
    # Nothing, where the consumer has gone since it was read: the write finds that out.
    return {} if found is None else found._asdict()
