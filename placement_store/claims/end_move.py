"""End a move: confirm it, so that the instance keeps the destination, or revert it, so that it gets the source back."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from moorage import errors
from moorage.messages import EndMove, MoveEnded
from placement_store.allocations import consumers
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import begin_move, move_split, released_amounts, residues, source_amounts
from placement_store.claims import claim as claims
from placement_store.claims.move_split import MoveParts, MovePlaces
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import writes
from placement_store.providers import rows as providers

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _MoveEnd:
    """Hold the changes that confirm or revert a move."""

    changes: Sequence[ConsumerChange]
    residue_uuid: str | None
    #: The claim that places the instance from now on.
    claim_id: str
    #: The foreign allocations of the host that is released, as the answer names them.
    foreign: Mapping[Pair, int]


def _log(message: EndMove, ended: MoveEnded) -> None:
    done = "confirmed" if message.outcome == "confirm" else "reverted"
    but = residues.left_behind(ended.residue_uuid)
    LOG.info("Migration %s of consumer %s is %s%s", message.migration_uuid, message.consumer_uuid, done, but)


@writes(EndMove, log=_log)
def end(connection: Connection, message: EndMove, names: ResourceClassNames) -> MoveEnded:
    """Confirm or revert a move.

    No usage grows: of every inventory, the instance afterwards holds at most the sum of what the two held.

    :raises ClaimReleased: the claim on the destination is not, or no longer, the claim of the instance.
    :raises ConsumerGenerationConflict: the instance or the migration is at another generation than the one named.
    :raises ConsumerNotFound: the move has ended.
    :raises InvalidRequest: the migration belongs to another instance.
    :raises InvalidState: a host has accepted the claim that is to be released, its guest is not known to be gone, and
        no residue may or can be left; or there is no source to go back to, because another client has released it.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises StaleRead: something has changed since it was read; a new transaction may succeed.
    """
    uuid = message.consumer_uuid
    # Both consumers in one statement: see `migration_of`.
    found = consumers.holdings(connection, [uuid, message.migration_uuid])
    instance = claims.placed_by(found, uuid, message.claim_id)
    consumers.compare_generation(uuid, message.consumer_generation, instance)
    # Raises if the move has ended: then the migration is deleted, or is a residue.
    migration = begin_move.migration_of(found, instance, message.migration_uuid)
    consumers.compare_generation(migration.uuid, message.migration_generation, migration)
    # Confirming releases the source, which the migration holds; reverting releases the destination.
    claims.require_releasable(migration if message.outcome == "confirm" else instance, message)
    held = released_amounts.claimed_with(connection, message.held.allocations, names)
    source = source_amounts.of_move(connection, instance, migration, held, names)
    claimed = released_amounts.claimed_with(connection, message.claimed.allocations, names)
    named = {*message.held.allocations, *message.claimed.allocations}
    keys = providers.keys_found(connection, named.union(source.amounts))
    places = MovePlaces(keys, migration.root_provider_id, instance.root_provider_id, held, claimed)
    # Split the allocations into those of the source, those of the destination, and foreign ones.
    parts = move_split.split_move(connection, instance, migration, source, claimed, places, names)
    outcome = _confirmed if message.outcome == "confirm" else _reverted
    ending = outcome(connection, message, instance, migration, parts)
    relied_on = allocations.generations_named([message.held.allocations, message.claimed.allocations], keys)
    require_unreported = None
    if ending.residue_uuid == migration.uuid:
        # The migration stays as the residue on the source.
        require_unreported = partial(residues.require_unreported, connection, str(migration.accepted_by))
    # One write changes both consumers and the residue: only the net growth counts.
    residues.write(
        connection,
        ending.changes,
        names,
        relied_on=relied_on,
        roots=dict(keys.values()),
        before_feed=require_unreported,
    )
    return MoveEnded(
        claim_id=ending.claim_id,
        consumer_generation=instance.generation + 1,
        residue_uuid=ending.residue_uuid,
        extras=move_split.as_allocations(connection, ending.foreign, names),
    )


def _confirmed(
    connection: Connection, message: EndMove, instance: Holding, migration: Holding, parts: MoveParts
) -> _MoveEnd:
    """Let the instance keep *new* and its foreign allocations; release the source, except for a residue.

    The foreign allocations of the migration are deleted, or pass to the instance if ``keep_extras`` is set.
    """
    staying = parts.foreign_on_migration if message.keep_extras else Counter()
    # If a host has accepted the claim and the guest is not gone, a residue may be left: see `require_releasable`.
    kept = None if message.guest_gone else residues.residue_of_migration(connection, migration, staying)
    after = Counter(instance.amounts) - parts.beyond_new + staying
    change = ConsumerChange(uuid=instance.uuid, before=instance, after=after, inherited=True)
    return _MoveEnd(
        changes=[change, kept or _buried(migration)],
        residue_uuid=None if kept is None else kept.uuid,
        claim_id=message.claim_id,
        foreign=parts.foreign_on_migration,
    )


def _reverted(
    connection: Connection, message: EndMove, instance: Holding, migration: Holding, parts: MoveParts
) -> _MoveEnd:
    """Give all allocations and the claim of the migration back to the instance; release the destination's tree."""
    if migration.claim_id is None:
        raise errors.InvalidState(reason=f"what migration {migration.uuid} held has been released by somebody else")
    places = parts.places
    tree = set() if places.on_source else parts.instance_tree
    # Foreign allocations of pools stay, also where a reshape has moved them; those of the destination itself do not.
    pools = places.pools | (parts.reshaped_pools - {places.root_id})
    left = move_split.within(parts.foreign_on_instance, tree - pools)
    kept = parts.kept_old + (parts.foreign_on_instance if message.keep_extras else parts.foreign_on_instance - left)
    change = ConsumerChange(
        uuid=instance.uuid,
        before=instance,
        after=kept + Counter(migration.amounts),
        columns=consumers.columns_of(connection, migration, UNCLAIMED),
        # A claim that was read as unaccepted must still be unaccepted: accepting it bumps no generation. A claim that
        # was read as accepted stays accepted at this generation.
        unaccepted=instance.accepted_by is None and not message.guest_gone,
        inherited=True,
    )
    # If a host has accepted the claim and the guest is not gone, a residue may be left: see `require_releasable`.
    residue = None if message.guest_gone else residues.residue_of(connection, instance, kept)
    return _MoveEnd(
        changes=[change, _buried(migration), *([] if residue is None else [residue])],
        residue_uuid=None if residue is None else residue.uuid,
        claim_id=migration.claim_id,
        foreign=left,
    )


def _buried(migration: Holding) -> ConsumerChange:
    return ConsumerChange(uuid=migration.uuid, before=migration, after={}, columns=UNCLAIMED, for_good=True)
