"""Residues: what a guest that may still run goes on holding on its host, after its instance has been taken elsewhere.

A residue is a consumer of its own, under the id of the attempt that has accepted the claim. It goes when it is deleted
for good, which says that the host has nothing of that attempt any more.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from moorage import errors
from placement_store import allocations, consumers, given_up
from placement_store.allocations import Change
from placement_store.consumers import Holding, Pair
from placement_store.names import ResourceClassNames
from placement_store.races import Moved
from placement_store.schema import consumers as consumer_table

RESIDUE = "RESIDUE"


def left(connection: Connection, holding: Holding, kept: Mapping[Pair, int]) -> Change | None:
    """Return what keeps, for the attempt that has accepted a claim, all that its consumer gives up in the host's tree.

    Written together with the consumer's own change it is netted against that, so it never needs room. Shared providers
    hold nothing for a guest that nobody will use. Nothing is returned where no host has accepted the claim, or where
    the guest is known to be gone.

    :param kept: what the consumer still holds of what it held.
    """
    if holding.claim_id is None or holding.accepted_by is None or consumers.buried(connection, [holding.accepted_by]):
        return None
    tree = given_up.on_host(connection, holding)
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
    connection: Connection, change: Change, residue: Change | None, names: ResourceClassNames, **how: Any
) -> str | None:
    """Write a consumer's change together with the residue it leaves, if any; return the uuid of that.

    :param how: see :func:`placement_store.allocations.write`, also for what is raised.
    """
    if residue is None:
        allocations.write(connection, [change], names, **how)
        return None
    try:
        allocations.write(connection, [change, residue], names, **how)
    except errors.ConsumerDeleted as fault:
        # At this moment the guest was reported gone: begin again without a residue.
        raise Moved from fault
    return residue.uuid


def _whose(connection: Connection, holding: Holding) -> dict[str, Any]:
    """Return who the guest belongs to and where it is; at this generation of the consumer, which the write compares."""
    table = consumer_table.c
    query = select(table.project_id, table.user_id, table.accepted_by, table.accepted_host, table.accepted_at)
    found = connection.execute(query.where(table.id == holding.id)).one_or_none()
    # Nothing, where the consumer has gone since it was read: the write finds that out.
    return {} if found is None else found._asdict()
