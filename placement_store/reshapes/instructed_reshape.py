"""Carry out a reshape by move instructions: the tree is locked, read, planned and written in one transaction."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, select

from moorage import errors, ids
from moorage.messages import PlanReshape, ReshapeByInstructions
from moorage.model import Inventory, ReshapePlan
from placement_store.allocations import consumers
from placement_store.allocations.consumers import Holding, Pair
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import isolated_groups
from placement_store.db import bulk, change_feed
from placement_store.db.names import ResourceClassNames, TraitNames
from placement_store.db.retries import StaleRead
from placement_store.db.store import reads, writes
from placement_store.providers import aggregates, traits
from placement_store.providers import create as new_providers
from placement_store.providers import rows as providers
from placement_store.providers.create import NewProvider
from placement_store.reshapes import move_instructions, reshape, reshape_tree
from placement_store.reshapes.described_children import NewChild
from placement_store.reshapes.move_instructions import InstructedChanges
from placement_store.reshapes.reshape_tree import ReshapeTree
from placement_store.schema import consumers as consumer_table

LOG = logging.getLogger(__name__)


@reads(PlanReshape)
def plan(connection: Connection, message: PlanReshape, names: ResourceClassNames) -> ReshapePlan:
    """Plan a reshape without carrying it out: nothing is locked or written.

    It raises the same errors as :func:`carry_out`.
    """
    root_id = reshape_tree.root_of(connection, move_instructions.references(message))
    tree = reshape_tree.read(connection, root_id, move_instructions.classes(message), names)
    changes = move_instructions.plan_changes(tree, message, lambda _name: ids.fresh())
    TraitNames.require(connection, {name for child in changes.new for name in child.described.traits})
    return changes.as_plan()


def _log(_message: ReshapeByInstructions, done: ReshapePlan) -> None:
    LOG.info(
        "Reshaped: inventories of %d providers, of which %d are new, and the allocations of %d consumers",
        len(done.inventories),
        len(done.created),
        len({part.consumer_uuid for part in done.dealt}),
    )


@writes(ReshapeByInstructions, log=_log)
def carry_out(connection: Connection, message: ReshapeByInstructions, names: ResourceClassNames) -> ReshapePlan:
    """Move inventories together with their allocations; return the changes.

    Once the tree is locked, earlier writers have ended and later ones have not begun: so the reshape succeeds unless it
    is impossible. The claims of the consumers do not change. See :func:`.move_instructions.plan_changes` for more
    errors.

    :raises ResourceClassNotFound: a resource class does not exist.
    :raises TraitNotFound: a trait of a new provider does not exist.
    :raises AlreadyExists: the uuid or name of a new provider is taken.
    :raises StaleRead: the tree, or a consumer's other allocations, have just changed; a new transaction may succeed.
    """
    root_id = reshape_tree.root_of(connection, move_instructions.references(message))
    classes = move_instructions.classes(message)
    # Claims on this tree wait while it is locked. So the plan is made before the lock, and is made again only if the
    # tree has changed by then.
    before = reshape_tree.read(connection, root_id, classes, names)
    planned = _planned(before, message)
    tree = reshape_tree.lock(connection, before, root_id, classes, names)
    changes = planned if tree == before else _planned(tree, message)
    # An error of the plan that was made before the lock counts only if the tree is still the same.
    if isinstance(changes, errors.MoorageError):
        raise changes
    # From here on the tree cannot change: create the children, then write inventories and allocations together.
    created = _create(connection, changes.new)
    numbers = {one.uuid: one.id for one in tree.providers.values()} | created
    pairs = {pair: (numbers[pair[0]], names.id_of(pair[1], connection)) for pair in changes.inventories}
    wanted = _wanted(connection, {pairs[pair]: inventory for pair, inventory in changes.inventories.items()})
    reshape.write(connection, wanted, _changes(connection, changes, pairs, numbers), names)
    # A child that gets no inventory is not recorded by the write, but may be the parent of one that does.
    change_feed.record(connection, provider_ids=created.values())
    return changes.as_plan()


def _planned(tree: ReshapeTree, message: ReshapeByInstructions) -> InstructedChanges | errors.MoorageError:
    """Plan the changes of a tree; return them, or the error that forbids them."""
    try:
        # A repeated request derives the same uuids for the children.
        return move_instructions.plan_changes(tree, message, partial(ids.derived, message.request_id))
    except errors.MoorageError as fault:
        return fault


def _create(connection: Connection, new: Sequence[NewChild]) -> dict[str, int]:
    """Create the children with their traits and aggregates, without inventories; return their ids by uuid.

    The caller writes the feed.
    """
    if not new:
        return {}
    created = new_providers.create(
        connection, [NewProvider(child.uuid, child.described.name, child.parent_uuid) for child in new]
    )
    traits.replace(connection, {created[child.uuid]: child.described.traits for child in new})
    aggregates.replace(connection, {created[child.uuid]: child.described.aggregates for child in new})
    return created


def _wanted(connection: Connection, changed: Mapping[Pair, Inventory | None]) -> dict[int, dict[int, Inventory]]:
    """Return all inventories, after the change, of the providers with an inventory that changes."""
    present = providers.inventories_of(connection, {provider_id for provider_id, _ in changed})
    wanted = {
        provider_id: {number: row.described for number, row in present.get(provider_id, {}).items()}
        for provider_id, _ in changed
    }
    for (provider_id, number), inventory in changed.items():
        if inventory is None:
            del wanted[provider_id][number]
        else:
            wanted[provider_id][number] = inventory
    return wanted


def _changes(
    connection: Connection,
    changes: InstructedChanges,
    pairs: Mapping[tuple[str, str], Pair],
    numbers: Mapping[str, int],
) -> list[ConsumerChange]:
    """Return the changes of the consumers whose allocations move, and of migrations whose isolated groups do."""
    uuids = {part.consumer_uuid for part in changes.reallocations}
    found = consumers.holdings(connection, uuids | _migrations_with_groups(connection, uuids))
    after = {uuid: Counter(holding.amounts) for uuid, holding in found.items()}
    moved: dict[str, dict[str, set[str]]] = {uuid: {} for uuid in found}
    for part in changes.reallocations:
        if part.consumer_uuid not in after:
            raise StaleRead
        moved[part.consumer_uuid].setdefault(part.from_resource_provider, set()).add(part.to_resource_provider)
        for name, amount in part.resources.items():
            after[part.consumer_uuid][pairs[part.from_resource_provider, name]] -= amount
            after[part.consumer_uuid][pairs[part.to_resource_provider, name]] += amount
    columns = {uuid: _isolated(holding, after, moved, numbers) for uuid, holding in found.items()}
    return [
        ConsumerChange(uuid=uuid, before=found[uuid], after=+held, columns=columns[uuid])
        for uuid, held in after.items()
        if uuid in uuids or columns[uuid]
    ]


def _migrations_with_groups(connection: Connection, instances: Collection[str]) -> set[str]:
    """Return the migrations with isolated groups of these consumers, as far as they are instances that are moving."""
    table = consumer_table.c
    query = select(table.uuid).where(table.claim_id.is_not(None), table.isolated_groups.is_not(None))
    return {row.uuid for row in bulk.select_in(connection, query, table.migration_of, sorted(instances))}


def _isolated(
    holding: Holding,
    after: Mapping[str, Mapping[Pair, int]],
    moved: Mapping[str, Mapping[str, Collection[str]]],
    numbers: Mapping[str, int],
) -> dict[str, Any]:
    """Return the column with the providers of a consumer's isolated groups, if it changes.

    The groups of a move's source are recorded with the migration. What a pool serves of them is held by the instance if
    the destination uses the pool as well; so it is where the instance has it and the migration has nothing.

    :param after: the amounts by consumer, also of providers where nothing is left.
    :param moved: by consumer and provider uuid, the providers to which amounts were moved from there.
    """
    if holding.isolated_groups is None:
        return {}
    own = {provider_id for provider_id, _ in holding.rows}
    targets: dict[str, Collection[str]] = {}
    emptied: set[str] = set()
    for uuid in after.keys() & {holding.uuid, holding.migration_of}:
        left = {provider_id for (provider_id, _), amount in after[uuid].items() if amount}
        for source, places in moved[uuid].items():
            if uuid == holding.uuid or numbers[source] not in own:
                targets[source] = places
                emptied |= {source} if numbers[source] not in left else set()
    document = isolated_groups.after_a_reshape(holding.isolated_groups, targets, emptied)
    return {} if document == holding.isolated_groups else {"isolated_groups": document}
