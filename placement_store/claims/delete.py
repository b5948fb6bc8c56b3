"""Delete the allocations of a consumer; for good, also the consumer, its migrations and foreign allocations."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial

from sqlalchemy import Connection, select

from moorage import errors
from moorage.messages import DeleteAllocations, Released
from moorage.model import AllocationRequest
from moorage.model.allocations import Amounts
from placement_store.allocations import consumers, tombstones
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import claim as claims
from placement_store.claims import move_split, released_amounts, residues, source_amounts
from placement_store.claims.move_split import MovePlaces
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import writes
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey
from placement_store.schema import consumers as consumer_table

LOG = logging.getLogger(__name__)


def _log(message: DeleteAllocations, released: Released) -> None:
    but = residues.left_behind(released.residue_uuid)
    LOG.info("Consumer %s has released all allocations%s", message.consumer_uuid, but)


@writes(DeleteAllocations, log=_log)
def delete(connection: Connection, message: DeleteAllocations, names: ResourceClassNames) -> Released:
    """Release all allocations of a consumer; with ``for_good``, also write its tombstone, whether or not it existed.

    With ``for_good``, its migrations are deleted too, except for residues that the message does not name. If the uuid
    is the id of an attempt, all residues of that attempt are deleted as well. With ``keep_extras``, the foreign
    allocations of all of these stay on the consumer. As in Placement, the generations of the providers are not bumped;
    their ``seq`` is.

    :raises InvalidRequest: ``unaccepted`` is set, and no claim is named; or a named migration is not one of this
        consumer; or a field is set that has a meaning only with ``for_good``.
    :raises ConsumerGenerationConflict: the consumer or its migration is at another generation than the one named.
    :raises ClaimReleased: a claim is named, and it was released or replaced.
    :raises InvalidState: ``unaccepted`` is set, and a host has accepted the claim; or a residue cannot be left.
    :raises ConsumerNotFound: the consumer does not exist, and ``for_good`` is not set.
    :raises StaleRead: a consumer has changed since it was read; a new transaction may succeed.
    """
    _require_consistent(message)
    uuid = message.consumer_uuid
    holding = consumers.holdings(connection, [uuid]).get(uuid)
    consumers.compare_generation(uuid, message.consumer_generation, holding)
    if message.claim_id is not None and (holding is None or holding.claim_id != message.claim_id):
        if not message.for_good or not tombstones.is_buried(connection, uuid, holding):
            raise errors.ClaimReleased(consumer_uuid=uuid, claim_id=message.claim_id)
        if not message.migration_uuids:
            return Released()
    if holding is None and not message.for_good:
        raise errors.ConsumerNotFound(name=uuid)
    if message.unaccepted and holding is not None and holding.accepted_by is not None:
        raise claims.already_accepted(uuid)
    if holding is not None and not holding.rows and holding.claim_id is None and not message.for_good:
        return Released()
    return _release(connection, message, holding, names)


def _require_consistent(message: DeleteAllocations) -> None:
    if message.unaccepted and message.claim_id is None:
        raise errors.InvalidRequest(path="$.claim_id", reason="needed where `unaccepted` is said")
    for name in ("migration_uuids", "keep_extras"):
        if getattr(message, name) and not message.for_good:
            raise errors.InvalidRequest(path=f"$.{name}", reason="done only for good")


def _release(
    connection: Connection, message: DeleteAllocations, holding: Holding | None, names: ResourceClassNames
) -> Released:
    uuid = message.consumer_uuid
    going: dict[str, Holding | None] = {uuid: holding}
    # The uuid may be the id of an attempt: then its host has reported that it has no guest of the attempt any more,
    # and the residues of the attempt are deleted.
    is_attempt = message.for_good and (holding is None or residues.is_residue(holding))
    if is_attempt:
        going |= residues.residues_of_attempt(connection, uuid)
    # Migrations that are residues of guests which may still run are not deleted.
    migrations = _migrations_of(connection, message)
    staying = [one.uuid for one in migrations.values() if one is not None and _stays(connection, message, one)]
    leaving = {uuid: one for uuid, one in migrations.items() if uuid not in staying}
    going |= leaving
    # The answer names foreign allocations; with `keep_extras`, they stay on the consumer.
    foreign_amounts: dict[str, Counter[Pair]] = {}
    if message.for_good or message.claimed_with:
        movers = [one for one in leaving.values() if one is not None]
        foreign_amounts = _foreign_allocations(connection, holding, movers, message.claimed_with, names)
    kept = foreign_amounts if message.keep_extras else {}
    # Each deleted consumer may leave a residue of all amounts that are not kept.
    left = {uuid: _left(connection, message, one, kept.get(uuid, {})) for uuid, one in going.items() if one is not None}
    after = kept if holding is None else {uuid: _all_of(kept)}
    changes = [_change(message, uuid, one, after.get(uuid, {})) for uuid, one in going.items()]
    new = [residue for residue in left.values() if residue is not None]
    # Only after the tombstone of the attempt is written: see `residues.require_unreported`.
    require_none = partial(residues.require_none_of, connection, uuid) if is_attempt else None
    residues.write(connection, [*changes, *new], names, bumps_generations=False, before_feed=require_none)
    mine = left.get(uuid)
    return Released(
        residue_uuid=None if mine is None else mine.uuid,
        residue_uuids=tuple(sorted([*(residue.uuid for residue in new), *staying])),
        extras=move_split.as_allocations(connection, _all_of(foreign_amounts), names),
    )


def _migrations_of(connection: Connection, message: DeleteAllocations) -> dict[str, Holding | None]:
    """Return the migrations to be deleted, by uuid: the named ones, and all others of the consumer except residues.

    A residue stays until its host has reported. A named migration that does not exist is returned as null: it gets a
    tombstone, so that it cannot be created later. No other migration can begin meanwhile, since that would bump the
    consumer's generation.
    """
    if not message.for_good:
        return {}
    named, table = message.migration_uuids, consumer_table.c
    others = set(connection.scalars(select(table.uuid).where(table.migration_of == message.consumer_uuid)))
    uuids = {*named, *others}
    found = consumers.holdings(connection, uuids) if uuids else {}
    for uuid in named:
        if uuid in found and found[uuid].migration_of != message.consumer_uuid:
            raise errors.InvalidRequest(path="$.migration_uuids", reason=f"{uuid} is no migration of this consumer")
        consumers.compare_generation(uuid, message.migration_generation, found.get(uuid))
    unnamed = {uuid: one for uuid, one in found.items() if uuid not in named and not residues.is_residue(one)}
    return {uuid: found.get(uuid) for uuid in named} | unnamed


def _stays(connection: Connection, message: DeleteAllocations, migration: Holding) -> bool:
    """Return whether a migration is a residue already, of a guest that is not known to be gone."""
    if not message.leave_residue or not residues.is_residue(migration) or migration.accepted_by in message.guests_gone:
        return False
    return not tombstones.buried(connection, [str(migration.accepted_by)])


def _left(
    connection: Connection, message: DeleteAllocations, going: Holding, kept: Mapping[Pair, int]
) -> ConsumerChange | None:
    """Return the residue of a deleted consumer, if it leaves one: all its allocations except those ``kept``."""
    if not message.leave_residue or going.accepted_by in message.guests_gone:
        return None
    return residues.residue_of(connection, going, kept)


def _all_of(parts: Mapping[str, Counter[Pair]]) -> Counter[Pair]:
    return sum(parts.values(), Counter())


def _change(message: DeleteAllocations, uuid: str, going: Holding | None, after: Mapping[Pair, int]) -> ConsumerChange:
    root_id = None if going is None else going.root_provider_id
    return ConsumerChange(
        uuid=uuid,
        before=going,
        after=after,
        # If its allocations of the host stay, only the `seq` of the root shows that it is no longer placed there.
        named=frozenset() if root_id is None or not after else frozenset({root_id}),
        columns=UNCLAIMED,
        # If a host accepted the claim meanwhile, the delete would have to be refused or to leave a residue.
        unaccepted=going is not None and going.accepted_by is None and (message.unaccepted or message.leave_residue),
        for_good=message.for_good,
        # Foreign allocations of a migration pass to the instance.
        inherited=True,
    )


# --- Foreign allocations: the allocations of a consumer beyond its claims ---------------------------------------------


def _foreign_allocations(
    connection: Connection,
    instance: Holding | None,
    migrations: Collection[Holding],
    claimed_with: Mapping[str, AllocationRequest],
    names: ResourceClassNames,
) -> dict[str, Counter[Pair]]:
    """Return the allocations of an instance and its migrations that exceed those of their claims, by consumer.

    A residue has none, since all its allocations are for its guest. A consumer whose claim ``claimed_with`` does not
    name has none either, since its allocations cannot be distinguished.

    :param claimed_with: by claim id, the amounts that were claimed with it.
    """
    requests = {
        claim_id: released_amounts.claimed_with(connection, request.allocations, names)
        for claim_id, request in claimed_with.items()
    }
    keys = providers.keys_found(connection, {uuid for amounts in requests.values() for uuid in amounts})
    going = ([] if instance is None else [instance]) + list(migrations)
    found = {one.uuid: _beyond(connection, one, requests, keys, names) for one in going}
    moved = next((one for one in migrations if one.claim_id in requests), None)
    if instance is not None and moved is not None and instance.claim_id in requests:
        # On a pool that both sides use, the larger of the two amounts counts and not their sum.
        held, claimed = requests[str(moved.claim_id)], requests[str(instance.claim_id)]
        source = source_amounts.of_move(connection, instance, moved, held, names)
        keys |= providers.keys_found(connection, source.amounts.keys() - keys.keys())
        places = MovePlaces(keys, moved.root_provider_id, instance.root_provider_id, held, claimed)
        parts = move_split.split_move(connection, instance, moved, source, claimed, places, names)
        # Replace the entries made above, which treat the two consumers separately.
        found |= {instance.uuid: parts.foreign_on_instance, moved.uuid: parts.foreign_on_migration}
    return found


def _beyond(
    connection: Connection,
    holding: Holding,
    requests: Mapping[str, Amounts],
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
) -> Counter[Pair]:
    """Return the allocations of one consumer that exceed its own claim and, outside its host, the other claims.

    The other claims count because another client may have cleared a claim and left its allocations of pools, or may
    have ended one half of a move and not the other.
    """
    if residues.is_residue(holding) or (holding.claim_id is not None and holding.claim_id not in requests):
        return Counter()
    if not holding.known_over_rpc:
        # Either nothing was ever claimed for it, or it was deleted before and holds only foreign allocations.
        return Counter(holding.amounts)
    in_tree = released_amounts.providers_on_host(connection, holding)
    own: Counter[Pair] = Counter()
    for claim_id, amounts in requests.items():
        if claim_id == holding.claim_id:
            own |= released_amounts.locate(connection, holding, amounts, keys, in_tree, names)
        else:
            elsewhere = {u: part for u, part in amounts.items() if u in keys and keys[u].id not in in_tree}
            own |= released_amounts.locate(connection, holding, elsewhere, keys, (), names)
    return Counter(holding.amounts) - own
