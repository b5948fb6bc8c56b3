"""Swap a claim: release one host and claim the next, also in the middle of a move."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import Claimed, SwapClaim
from moorage.model.allocations import amounts_of
from placement_store.allocations import consumers
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import begin_move, isolated_groups, move_split, released_amounts, residues, source_amounts
from placement_store.claims import claim as claims
from placement_store.claims.move_split import MovePlaces
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import writes
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _SwapResult:
    """Hold the allocations of an instance, and the change of its migration, that a swap results in."""

    #: All allocations of the instance afterwards.
    after: Mapping[Pair, int]
    #: Its former allocations that it, or the migration, still holds: they are not part of a residue.
    kept: Mapping[Pair, int]
    #: The foreign allocations on the released host: they are deleted.
    lost: Mapping[Pair, int]
    #: Null if the instance is not being moved.
    migration: ConsumerChange | None


def _log(message: SwapClaim, claimed: Claimed) -> None:
    but = residues.left_behind(claimed.residue_uuid)
    LOG.info("The claim of consumer %s is now on %s%s", message.consumer_uuid, message.root_provider_uuid, but)


@writes(SwapClaim, log=_log)
def swap(connection: Connection, message: SwapClaim, names: ResourceClassNames) -> Claimed:
    """Release the allocations of a claim on its host and claim the next host: both, or neither.

    All allocations on the released host are released, unless it is also the next host. So are all allocations on any
    other provider that is released and not claimed. On a provider that is both, foreign allocations stay. See
    :mod:`placement_store.claims.released_amounts`, and for moves :mod:`placement_store.claims.move_split`. If the guest
    may still run and ``leave_residue`` is set, a residue holds the amounts that are released on the host.

    :raises ClaimReleased: the claim was released or replaced.
    :raises InvalidState: a host has accepted it, the guest is not known to be gone, and no residue may or can be left.
    :raises CapacityExceeded: the next host has not enough room; the old claim stays.
    :raises GroupRuleRefused: the rule of the consumer's server group forbids the next host; the old claim stays.
    :raises ProviderNotFound: a provider that is named does not exist.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises InvalidRequest: the migration is not one of the consumer, or the amounts of its source are not named.
    :raises ConsumerNotFound: the migration has ended.
    :raises StaleRead: the consumer has changed since it was read; a new transaction may succeed.
    """
    # Both consumers of a move in one statement: see `migration_of`.
    uuids = [uuid for uuid in (message.consumer_uuid, message.migration_uuid) if uuid is not None]
    found = consumers.holdings(connection, uuids)
    holding = claims.placed_by(found, message.consumer_uuid, message.claim_id)
    claims.require_releasable(holding, message)
    requests = [part.allocations for part in (message.released, message.claimed, message.held) if part is not None]
    wanted = {message.root_provider_uuid, *message.claimed.allocations}
    keys = providers.keys_found(connection, wanted.union(*requests))
    # Not those of the former claim: a reshape may have emptied one of them, so that it is deleted by now.
    providers.require(wanted, keys)
    claimed = allocations.numbered(amounts_of(message.claimed.allocations), keys, names, connection)
    # Find out which allocations the consumer keeps and which it releases; in a move, also which the migration gets or
    # returns.
    in_a_move = message.migration_uuid is not None or message.held is not None
    claim_id = ids.fresh()
    if in_a_move:
        step = _next_destination(connection, found, message, keys, claimed, claim_id, names)
    else:
        step = _next_host(connection, found, message, keys, claimed, names)
    # On the released host, a residue keeps the amounts of a guest that may still run.
    residue = None if message.guest_gone else residues.residue_of(connection, holding, step.kept)
    change = ConsumerChange(
        uuid=message.consumer_uuid,
        before=holding,
        after=step.after,
        named=frozenset(keys[uuid].id for request in requests[:2] for uuid in request if uuid in keys),
        columns=_placement(holding, message, claim_id, keys[message.root_provider_uuid].root_id),
        claimed=True,
        # A claim that was read as unaccepted must still be unaccepted: accepting it bumps no generation. A claim that
        # was read as accepted stays accepted at this generation.
        unaccepted=holding.accepted_by is None and not message.guest_gone,
    )
    # One write: the next host is claimed and the former one released, or neither. Only the net growth counts.
    changes = [one for one in (change, step.migration, residue) if one is not None]
    relied_on = allocations.generations_named(requests, keys)
    residues.write(connection, changes, names, relied_on=relied_on, roots=dict(keys.values()))
    return Claimed(
        claim_id=claim_id,
        consumer_generation=holding.generation + 1,
        residue_uuid=None if residue is None else residue.uuid,
        extras=move_split.as_allocations(connection, step.lost, names),
    )


def _placement(holding: Holding, message: SwapClaim, claim_id: str, root_id: int) -> dict[str, Any]:
    """Return the columns of a consumer on its next host, with a new claim."""
    isolated = None if holding.isolated_groups is None else isolated_groups.suffixed(message.claimed.mappings)
    return {
        **UNCLAIMED,
        "claim_id": claim_id,
        "root_provider_id": root_id,
        "owner": holding.owner,
        "isolated_groups": None if isolated is None else isolated_groups.encoded(isolated),
    }


def _next_host(
    connection: Connection,
    found: Mapping[str, Holding],
    message: SwapClaim,
    keys: Mapping[str, ProviderKey],
    claimed: Mapping[Pair, int],
    names: ResourceClassNames,
) -> _SwapResult:
    """Return the result of a swap for a consumer that is not being moved."""
    holding = found[message.consumer_uuid]
    released = released_amounts.claimed_with(connection, message.released.allocations, names)
    in_tree = released_amounts.providers_on_host(connection, holding)
    located = +released_amounts.locate(connection, holding, released, keys, in_tree, names)
    left = {keys[uuid].id for uuid in released if uuid in keys} | {provider_id for provider_id, _ in located}
    left -= {provider_id for provider_id, _ in claimed}
    if keys[message.root_provider_uuid].root_id != holding.root_provider_id:
        left |= in_tree
    # Allocations beyond the claim are foreign. The consumer keeps them, except on the providers that it leaves.
    foreign = Counter(holding.amounts) - located
    lost = move_split.within(foreign, left)
    return _SwapResult(after=foreign - lost + Counter(claimed), kept=foreign - lost, lost=lost, migration=None)


def _next_destination(
    connection: Connection,
    found: Mapping[str, Holding],
    message: SwapClaim,
    keys: Mapping[str, ProviderKey],
    claimed: Mapping[Pair, int],
    claim_id: str,
    names: ResourceClassNames,
) -> _SwapResult:
    """Return the result of a swap in the middle of a move, for the instance and for the migration's part of pools.

    Foreign allocations of pools that the instance leaves pass to the migration, and come back with them.

    :param claim_id: the new claim, on the next destination.
    """
    if message.migration_uuid is None or message.held is None:
        raise errors.InvalidRequest(path="$.held", reason="`migration_uuid` and `held` go together")
    instance = found[message.consumer_uuid]
    migration = begin_move.migration_of(found, instance, message.migration_uuid)
    held = released_amounts.claimed_with(connection, message.held.allocations, names)
    source = source_amounts.of_move(connection, instance, migration, held, names)
    keys = {**keys, **providers.keys_found(connection, source.amounts.keys() - keys.keys())}
    released = released_amounts.claimed_with(connection, message.released.allocations, names)
    root_id = keys[message.root_provider_uuid].root_id
    before = MovePlaces(keys, migration.root_provider_id, instance.root_provider_id, held, released)
    after = MovePlaces(keys, migration.root_provider_id, root_id, held, message.claimed.allocations)
    parts = move_split.split_move(connection, instance, migration, source, released, before, names)
    on_host = parts.instance_tree
    # The foreign allocations on the released host are deleted, unless it is the source: the instance may return there.
    released_whole = set() if before.on_source or root_id == instance.root_provider_id else on_host
    pools = after.pools | (parts.reshaped_pools - {before.root_id})
    lost = move_split.within(parts.foreign_on_instance, released_whole - after.used - pools)
    foreign = parts.foreign_on_instance - lost
    # Foreign allocations of providers that the next destination does not use pass to the migration.
    left = begin_move.providers_left(after, on_host if before.on_source else ()) | (before.used - on_host - after.used)
    leaving = move_split.within(foreign, left)
    # Foreign allocations of the migration come back if the next destination uses their providers again.
    in_source = parts.migration_tree if after.on_source else set()
    returning = move_split.within(parts.foreign_on_migration, after.used | in_source)
    old = parts.kept_old + parts.old
    mine, migrations = move_split.divide(old, claimed, after.outside_source)
    return _SwapResult(
        after=mine + (foreign - leaving) + returning,
        kept=parts.kept_old + foreign,
        lost=lost,
        migration=ConsumerChange(
            uuid=migration.uuid,
            before=migration,
            after=migrations + leaving + (parts.foreign_on_migration - returning),
            columns=source_amounts.recording(claim_id, move_split.as_allocations(connection, old, names)),
            inherited=True,
        ),
    )
