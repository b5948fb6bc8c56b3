"""Swaps: a claim goes from one host to the next one, also in the middle of a move."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import Claimed, SwapClaim
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import Change
from placement_store.claims import begin_move, isolated_groups, move_split, residues
from placement_store.claims import claim as claims
from placement_store.claims import released as given_up
from placement_store.claims.move_split import Places
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey


@dataclass(frozen=True, slots=True)
class _Step:
    """What becomes of an instance, and of its migration, when a claim goes to another host."""

    #: All that the instance holds then, and how much of what it held before is still its own or the migration's.
    after: Mapping[Pair, int]
    kept: Mapping[Pair, int]
    #: What is nobody's any more: what others had put on the host that is given up.
    lost: Mapping[Pair, int]
    #: Of a move only.
    migration: Change | None


def swap(connection: Connection, message: SwapClaim, names: ResourceClassNames) -> Claimed:
    """Release what a claim holds on its host and claim the next one: both, or neither.

    The host is left whole, unless it is the next one too, and so is any other provider that is released and not
    claimed; on one that is both, what others have put there stays. See :mod:`placement_store.claims.released`, and for
    moves :mod:`placement_store.claims.move_split`.
    Where the guest may still run, what leaves the host goes to a residue instead, if that is asked for.

    :raises ClaimReleased: the claim no longer stands.
    :raises InvalidState: a host has accepted it, the guest is not known to be gone, and no residue may be left.
    :raises CapacityExceeded: the next host has not enough room; the old claim stands.
    :raises GroupRuleRefused: the rule of the consumer's server group forbids the next host; the old claim stands.
    :raises ProviderNotFound: a provider that is named does not exist.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises InvalidRequest: a migration is named that is none of the consumer, or without what its source holds.
    :raises ConsumerNotFound: the migration has ended.
    :raises StaleRead: the consumer has changed since it was read; a new transaction may succeed.
    """
    holding = claims.placed_by(connection, message.consumer_uuid, message.claim_id)
    claims.require_given_up(holding, message)
    requests = [part.allocations for part in (message.released, message.claimed, message.held) if part is not None]
    keys = providers.keys_of(connection, {message.root_provider_uuid, *message.claimed.allocations})
    # What was claimed of may be gone, emptied by a reshape.
    keys |= providers.keys_found(connection, {uuid for request in requests for uuid in request})
    claimed = allocations.numbered(move_split.amounts_of(message.claimed), keys, names, connection)
    root_id = keys[message.root_provider_uuid].root_id
    in_a_move = message.migration_uuid is not None or message.held is not None
    step = (_next_destination if in_a_move else _next_host)(connection, holding, message, keys, claimed, names)
    residue = None if message.guest_gone else residues.left(connection, holding, step.kept)
    claim_id = ids.fresh()
    change = Change(
        uuid=message.consumer_uuid,
        before=holding,
        after=step.after,
        named=frozenset(keys[uuid].id for request in requests[:2] for uuid in request if uuid in keys),
        columns={
            **UNCLAIMED,
            "claim_id": claim_id,
            "root_provider_id": root_id,
            "owner": holding.owner,
            "isolated_groups": _isolated(holding, message),
        },
        claimed=True,
        # What was read as unaccepted must still be; what was accepted cannot be otherwise at this generation.
        unaccepted=holding.accepted_by is None and not message.guest_gone,
    )
    changes = [change] if step.migration is None else [change, step.migration]
    relied_on = allocations.generations_named(requests, keys)
    residue_uuid = residues.write(connection, changes, residue, names, relied_on=relied_on, roots=dict(keys.values()))
    return Claimed(
        claim_id=claim_id,
        consumer_generation=holding.generation + 1,
        residue_uuid=residue_uuid,
        extras=move_split.described(connection, step.lost, names),
    )


def _isolated(holding: Holding, message: SwapClaim) -> bytes | None:
    """Return where the groups of a consumer are on the next host, if they are isolated."""
    if holding.isolated_groups is None:
        return None
    return isolated_groups.encoded(isolated_groups.suffixed(message.claimed.mappings))


def _next_host(
    connection: Connection,
    holding: Holding,
    message: SwapClaim,
    keys: Mapping[str, ProviderKey],
    claimed: Mapping[Pair, int],
    names: ResourceClassNames,
) -> _Step:
    """Return what a swap makes of a consumer that is not being moved."""
    released = move_split.amounts_of(message.released)
    in_tree = given_up.on_host(connection, holding)
    left = {keys[uuid].id for uuid in released if uuid in keys} - move_split.providers_in(claimed)
    if keys[message.root_provider_uuid].root_id != holding.root_provider_id:
        left |= in_tree
    located = given_up.located(connection, holding, released, keys, in_tree, names)
    kept = Counter(given_up.kept(holding, located, left))
    return _Step(
        after=kept + Counter(claimed), kept=kept, lost=Counter(holding.amounts) - located - kept, migration=None
    )


def _next_destination(
    connection: Connection,
    instance: Holding,
    message: SwapClaim,
    keys: Mapping[str, ProviderKey],
    claimed: Mapping[Pair, int],
    names: ResourceClassNames,
) -> _Step:
    """Return what a swap in the middle of a move makes of the instance, and of what the migration has of pools.

    What others have put on pools that are left goes with the migration, and comes back with it.

    :raises InvalidRequest: what the source holds is not said, or the migration is none of this instance.
    :raises ConsumerNotFound: the migration has ended.
    """
    if message.migration_uuid is None or message.held is None:
        raise errors.InvalidRequest(path="$.held", reason="`migration_uuid` and `held` go together")
    migration = begin_move.migration_of(connection, instance, message.migration_uuid)
    held, released = move_split.amounts_of(message.held), move_split.amounts_of(message.released)
    root_id = keys[message.root_provider_uuid].root_id
    before = Places.of(keys, migration.root_provider_id, instance.root_provider_id, held, released)
    after = Places.of(keys, migration.root_provider_id, root_id, held, move_split.amounts_of(message.claimed))
    parts = move_split.of_a_move(connection, instance, migration, held, released, before, names)
    on_host = given_up.on_host(connection, instance)
    # The host that is given up is left whole, unless it is the source, to which the instance may come back.
    given_up_whole = set() if before.on_source or root_id == instance.root_provider_id else on_host
    lost = move_split.within(parts.extras, given_up_whole - after.used - after.pools)
    extras = parts.extras - lost
    left = begin_move.left(after, on_host if before.on_source else ()) | (before.used - on_host - after.used)
    leaving = move_split.within(extras, left)
    in_source = given_up.on_host(connection, migration) if after.on_source else set()
    returning = move_split.within(parts.left_extras, after.used | in_source)
    mine, others = move_split.divided(parts.kept_old + parts.old, claimed, after.shared)
    return _Step(
        after=mine + (extras - leaving) + returning,
        kept=parts.kept_old + extras,
        lost=lost,
        migration=Change(
            uuid=migration.uuid,
            before=migration,
            after=others + leaving + (parts.left_extras - returning),
            inherited=True,
        ),
    )
