"""Write inventories of many providers and allocations of many consumers in one transaction."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from sqlalchemy import Connection

from moorage.messages import Done, Reshape
from moorage.model import Inventory, ReshapedInventories
from placement_store.allocations import write as allocations
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import put as puts
from placement_store.claims.put import Put
from placement_store.db import change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.db.store import writes
from placement_store.providers import inventories
from placement_store.providers import rows as providers
from placement_store.providers.inventories import Wanted

LOG = logging.getLogger(__name__)


def _log(message: Reshape, _done: Done) -> None:
    LOG.info("Reshaped: %d providers, %d consumers", len(message.inventories), len(message.allocations))


@writes(Reshape, log=_log)
def reshape(connection: Connection, message: Reshape, names: ResourceClassNames) -> None:
    """Replace inventories and allocations over RPC; see :func:`carry_out`, also for the errors raised."""
    puts_of = {uuid: Put.over_rpc(wanted) for uuid, wanted in message.allocations.items()}
    carry_out(connection, message.inventories, puts_of, names)


def carry_out(
    connection: Connection,
    described: Mapping[str, ReshapedInventories],
    puts_of: Mapping[str, Put],
    names: ResourceClassNames,
) -> None:
    """Replace all inventories of the named providers and all allocations of the named consumers.

    See :func:`.claims.put.write` and :func:`write` for further errors.

    :raises InvalidInventory: more is reserved than the total, or the capacity is out of range.
    """
    ids = {uuid: key.id for uuid, key in providers.keys_of(connection, described).items()}
    # Consumers first, as in Placement: a stale consumer generation is reported before any other fault.
    put_plan = puts.plan(connection, puts_of, names)
    wanted = {
        ids[uuid]: inventories.numbered(connection, uuid, reshaped.inventories, names)
        for uuid, reshaped in described.items()
    }
    for uuid, reshaped in described.items():
        put_plan.relied_on.setdefault(ids[uuid], set()).add(reshaped.generation)
    # Lock before the comparison: what was read so far is valid only if no generation has changed until now.
    locked = providers.lock(connection, wanted.keys() | allocations.providers_touched(put_plan.changes))
    for id_, generations in put_plan.relied_on.items():
        for generation in generations:
            providers.compare_generation(locked[id_], generation)
    # The plan relies on the providers' roots as they were read; a provider may have changed its tree since.
    if any(locked[id_].root_id != root_id for id_, root_id in put_plan.roots.items()):
        raise StaleRead
    write(connection, wanted, put_plan.changes, names)


def write(
    connection: Connection, wanted: Mapping[int, Wanted], changes: Sequence[ConsumerChange], names: ResourceClassNames
) -> None:
    """Write inventories, by provider id, together with allocations; all providers that either names must be locked.

    The generation of each of these providers is bumped by one.

    :raises InventoryInUse: a class is to be removed, but a consumer, named or not, would still have allocations of it.
    :raises CapacityExceeded: the allocations do not fit.
    :raises ConsumerDeleted: a consumer to be created has been deleted for good.
    :raises ResourceClassNotFound: a resource class has been deleted.
    :raises StaleRead: a consumer has changed since it was read; a new transaction may succeed.
    """
    others = wanted.keys() - allocations.providers_touched(changes)
    providers.bump_generations(connection, others, by=1)
    # Allocations need an inventory both before and after they move: so for a moment, old and new inventories coexist.
    inventories.replace(connection, _interim(connection, wanted, changes), names)
    final = partial(inventories.replace, connection, wanted, names)
    allocations.write(connection, changes, names, before_feed=final)
    change_feed.record(connection, provider_ids=others)


def _interim(
    connection: Connection, wanted: Mapping[int, Wanted], changes: Sequence[ConsumerChange]
) -> dict[int, dict[int, Inventory]]:
    """Return the present inventories together with the wanted ones.

    An inventory that gains an allocation already has its wanted form, since the allocation must fit into that. One that
    only loses allocations keeps its present form until they are moved, so that no warning about an over-committed
    inventory is logged.
    """
    given = {pair for change in changes for pair in change.measured if pair in change.after}
    present = providers.inventories_of(connection, wanted)
    interim: dict[int, dict[int, Inventory]] = {}
    for id_, described in wanted.items():
        rows = {number: row.described for number, row in present.get(id_, {}).items()}
        new = {n: one for n, one in described.items() if n not in rows or (id_, n) in given}
        interim[id_] = {**rows, **new}
    return interim
