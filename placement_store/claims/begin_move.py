"""Begin a move: claim the destination for the instance, and let the migration hold the source until the move ends.

:mod:`placement_store.claims.end_move` confirms or reverts the move. Each function writes both consumers at once, and
only the net growth counts: no reader sees half of the change, and amounts that pass from one consumer to the other need
no free capacity. See :mod:`placement_store.claims.move_split` for the parts that each of the two holds.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, select

from moorage import errors
from moorage.messages import Claimed
from moorage.model import Move
from placement_store.allocations import consumers, tombstones
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import claim as claims
from placement_store.claims import move_split, released_amounts, residues, source_amounts
from placement_store.claims.claim import NewClaim
from placement_store.claims.move_split import MovePlaces
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.providers import rows as providers
from placement_store.schema import consumers as consumer_table
from placement_store.server_groups import rows as groups

MIGRATION = "MIGRATION"

# --- Beginning ------------------------------------------------------------------------------------------------------


def begin(connection: Connection, new: NewClaim, move: Move, names: ResourceClassNames) -> Claimed:
    """Transfer the claim on the source from an instance to its migration, and claim the destination for the instance.

    After any error, the transaction must be rolled back. See :func:`require_movable` for further errors.

    :raises ConsumerDeleted: the instance or the migration has been deleted for good.
    :raises CannotCarryOver: the instance has foreign allocations on providers that it leaves.
    :raises CapacityExceeded: the destination has not enough room; ``refusals`` names every provider that has refused.
    :raises GroupRuleRefused: the rule of the instance's server group forbids the destination.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises ProviderNotFound: a provider of the new claim does not exist.
    :raises ResourceClassNotFound: a resource class that is named does not exist.
    :raises ClaimContention: a concurrent transaction has changed something else.
    """
    try:
        return _begin(connection, new, move, names)
    except StaleRead as fault:
        raise _explain_stale_read(connection, new, move) from fault


def _begin(connection: Connection, new: NewClaim, move: Move, names: ResourceClassNames) -> Claimed:
    # Before anything is locked, since this creates groups that do not exist yet.
    bound = groups.bind(connection, [new.group])
    instance = require_movable(connection, new.consumer_uuid, new.consumer_generation, move)
    wanted = {new.root_provider_uuid, *new.allocations}
    keys = providers.keys_found(connection, {*wanted, *move.held.allocations})
    # Not those of the source: a reshape may have emptied one of them since the claim, so that it was deleted.
    providers.require(wanted, keys)
    held = released_amounts.claimed_with(connection, move.held.allocations, names)
    root_id = keys[new.root_provider_uuid].root_id
    places = MovePlaces(keys, instance.root_provider_id, root_id, held, new.allocations)
    # Foreign allocations stay with the instance where it still uses the provider; elsewhere the migration keeps them,
    # if the caller allows that.
    in_tree = released_amounts.providers_on_host(connection, instance)
    old = +released_amounts.locate(connection, instance, held, keys, in_tree, names)
    foreign = Counter(instance.amounts) - old
    leaving = move_split.within(foreign, providers_left(places, in_tree))
    if leaving and not move.drop_extras:
        raise _cannot_carry_over(connection, instance, leaving, names)
    claimed = allocations.numbered(new.allocations, keys, names, connection)
    mine, migrations = move_split.divide(old, claimed, places.outside_source)
    located = move_split.as_allocations(connection, old, names)
    changes = [
        ConsumerChange(
            uuid=instance.uuid,
            before=instance,
            after=mine + (foreign - leaving),
            named=frozenset(keys[uuid].id for uuid in new.allocations),
            columns=claims.placement_columns(new, root_id, bound),
            claimed=True,
        ),
        ConsumerChange(
            uuid=move.migration_uuid,
            before=None,
            after=migrations + leaving,
            columns=_migration(connection, instance) | source_amounts.recording(new.claim_id, located),
            inherited=True,
        ),
    ]
    relied_on = allocations.generations_named([move.held.allocations], keys)
    roots = dict(keys.values())
    allocations.write(connection, changes, names, relied_on=relied_on, roots=roots, groups=bound.values())
    return new.claimed


def require_movable(connection: Connection, uuid: str, generation: int | None, move: Move) -> Holding:
    """Return the instance that is to be moved, if the claim that the move names places it.

    :param generation: the one that the instance must be at.
    :raises ClaimReleased: that claim is not the instance's, or no longer.
    :raises ConsumerGenerationConflict: the instance is at another generation.
    :raises InvalidState: no host has accepted the claim, or another move of the instance has not ended.
    :raises ConsumerDeleted: the instance has been deleted for good.
    :raises AlreadyExists: the migration exists already.
    :raises StaleRead: the instance has changed meanwhile; a new transaction may succeed.
    """
    found = consumers.holdings(connection, [uuid, move.migration_uuid])
    tombstones.require_unburied(connection, uuid, found.get(uuid))
    instance = claims.placed_by(found, uuid, move.claim_id)
    if instance.generation != generation:
        raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=generation, found=instance.generation)
    if instance.accepted_by is None:
        raise errors.InvalidState(reason=f"no host has accepted the claim of consumer {uuid}")
    if move.migration_uuid in found:
        raise errors.AlreadyExists(kind="consumer", name=move.migration_uuid)
    table = consumer_table.c
    query = select(table.uuid).where(table.migration_of == uuid, table.claim_id.is_not(None)).limit(1)
    if (pending := connection.scalar(query)) is not None:
        if consumers.holdings(connection, [uuid]).get(uuid) != instance:
            raise StaleRead  # that migration has begun between the two statements
        raise errors.InvalidState(reason=f"migration {pending} of consumer {uuid} has not ended")
    return instance


def providers_left(places: MovePlaces, source_tree: Collection[int]) -> set[int]:
    """Return the ids of the providers that an instance leaves when it goes from the source to these places."""
    tree = set() if places.on_source else set(source_tree)
    return (tree | places.pools) - places.used


def _migration(connection: Connection, instance: Holding) -> dict[str, Any]:
    """Return the columns of a new migration, with the claim on the source unchanged."""
    return {
        **consumers.columns_of(connection, instance, (*UNCLAIMED, "project_id", "user_id")),
        "consumer_type": MIGRATION,
        "migration_of": instance.uuid,
        "consumer_group_id": instance.consumer_group_id,
        "known_over_rpc": True,
    }


def _cannot_carry_over(
    connection: Connection, instance: Holding, leaving: Mapping[Pair, int], names: ResourceClassNames
) -> errors.CannotCarryOver:
    amounts = [
        {"provider_uuid": uuid, "resource_class": name, "amount": amount}
        for uuid, part in move_split.as_allocations(connection, leaving, names).items()
        for name, amount in part.resources.items()
    ]
    return errors.CannotCarryOver(consumer_uuid=instance.uuid, count=len(amounts), amounts=amounts)


def _explain_stale_read(connection: Connection, new: NewClaim, move: Move) -> errors.MoorageError:
    """Re-read the instance, the migration and the providers; return the error that explains why the write was stale."""
    found = consumers.holdings(connection, [new.consumer_uuid, move.migration_uuid])
    instance = found.get(new.consumer_uuid)
    try:
        if instance is None or instance.claim_id != new.claim_id:
            require_movable(connection, new.consumer_uuid, new.consumer_generation, move)
        elif move.migration_uuid in found:
            return errors.AlreadyExists(kind="consumer", name=move.migration_uuid)
        providers.keys_of(connection, {new.root_provider_uuid, *new.allocations})
    except errors.MoorageError as reason:
        return reason
    except StaleRead:
        pass  # it has changed again
    return errors.ClaimContention(tries=1)


# --- Parts ----------------------------------------------------------------------------------------------------------


def migration_of(found: Mapping[str, Holding], instance: Holding, uuid: str) -> Holding:
    """Return the migration of an instance whose move has not ended, from the consumers that were found.

    Both must have been read by one statement. The move may end between two statements: then the instance is read with
    its claim, and its migration is no longer found.

    :raises ConsumerNotFound: no consumer has that uuid, or it is a residue by now.
    :raises InvalidRequest: the consumer is a migration of another instance.
    """
    migration = found.get(uuid)
    if migration is None or residues.is_residue(migration):
        raise errors.ConsumerNotFound(name=uuid)
    if migration.migration_of != instance.uuid:
        raise errors.InvalidRequest(path="$.migration_uuid", reason=f"no migration of consumer {instance.uuid}")
    return migration
