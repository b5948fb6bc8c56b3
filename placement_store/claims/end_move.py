"""How a move ends: the instance keeps the destination, or takes back all that the migration holds."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from moorage import errors
from moorage.messages import EndMove, MoveEnded
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import Change
from placement_store.claims import begin_move, move_split, released, residues
from placement_store.claims import claim as claims
from placement_store.claims.move_split import Places
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers


@dataclass(frozen=True, slots=True)
class _Ending:
    """What an outcome makes of the two consumers."""

    instance: Change
    migration: Change
    residue: Change | None
    claim_id: str
    extras: Mapping[Pair, int]


def end(connection: Connection, message: EndMove, names: ResourceClassNames) -> MoveEnded:
    """End a move: the instance keeps the destination, or takes back what the migration holds.

    Nothing grows: of every inventory the instance holds afterwards at most what the two held together.

    :raises ClaimReleased: the claim on the destination is not the instance's, or no longer.
    :raises ConsumerGenerationConflict: the instance, or the migration, is not at the generation that was named.
    :raises ConsumerNotFound: the move has ended.
    :raises InvalidRequest: the migration is none of this instance.
    :raises InvalidState: a host has accepted what is given up, its guest is not known to be gone, and no residue may be
        left; or there is nothing to go back to, because somebody else has released what the migration held.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises StaleRead: something has changed since it was read; a new transaction may succeed.
    """
    uuid = message.consumer_uuid
    instance = claims.placed_by(connection, uuid, message.claim_id)
    if message.consumer_generation not in (None, instance.generation):
        raise errors.ConsumerGenerationConflict(
            consumer_uuid=uuid, named=message.consumer_generation, found=instance.generation
        )
    migration = begin_move.migration_of(connection, instance, message.migration_uuid)
    if message.migration_generation not in (None, migration.generation):
        raise errors.ConsumerGenerationConflict(
            consumer_uuid=migration.uuid, named=message.migration_generation, found=migration.generation
        )
    claims.require_given_up(migration if message.outcome == "confirm" else instance, message)
    held, claimed = move_split.amounts_of(message.held), move_split.amounts_of(message.claimed)
    keys = providers.keys_found(connection, {*held, *claimed})
    places = Places.of(keys, migration.root_provider_id, instance.root_provider_id, held, claimed)
    parts = move_split.of_a_move(connection, instance, migration, held, claimed, places, names)
    outcome = _confirmed if message.outcome == "confirm" else _reverted
    ending = outcome(connection, message, instance, migration, places, parts)
    changes = [ending.instance, ending.migration]
    relied_on = allocations.generations_named([message.held.allocations, message.claimed.allocations], keys)
    residue_uuid = residues.write(
        connection, changes, ending.residue, names, relied_on=relied_on, roots=dict(keys.values())
    )
    if not ending.migration.for_good:
        residues.require_unreported(connection, migration)
        residue_uuid = migration.uuid
    return MoveEnded(
        claim_id=ending.claim_id,
        consumer_generation=instance.generation + 1,
        residue_uuid=residue_uuid,
        extras=move_split.described(connection, ending.extras, names),
    )


def _confirmed(
    connection: Connection,
    message: EndMove,
    instance: Holding,
    migration: Holding,
    _places: Places,
    parts: move_split.Parts,
) -> _Ending:
    """Let the instance keep what is new, and what others have put beside it; leave of the source at most a residue.

    What others have put on the source goes, or else becomes the instance's.
    """
    may_be_used = message.leave_residue and not message.guest_gone
    staying = parts.left_extras if message.keep_extras else Counter()
    kept = residues.becoming(connection, migration, staying) if may_be_used else None
    return _Ending(
        instance=Change(
            uuid=instance.uuid,
            before=instance,
            after=Counter(instance.amounts) - parts.beyond_new + staying,
            inherited=True,
        ),
        migration=kept or _buried(migration),
        residue=None,
        claim_id=message.claim_id,
        extras=parts.left_extras,
    )


def _reverted(
    connection: Connection,
    message: EndMove,
    instance: Holding,
    migration: Holding,
    places: Places,
    parts: move_split.Parts,
) -> _Ending:
    """Give the instance all that the migration holds, and its claim; the destination's tree is given up."""
    if migration.claim_id is None:
        raise errors.InvalidState(reason=f"what migration {migration.uuid} held has been released by somebody else")
    tree = set() if places.on_source else released.on_host(connection, instance)
    left = move_split.within(parts.extras, tree - places.pools)
    kept = parts.kept_old + (parts.extras if message.keep_extras else parts.extras - left)
    may_be_used = message.leave_residue and not message.guest_gone
    return _Ending(
        instance=Change(
            uuid=instance.uuid,
            before=instance,
            after=kept + Counter(migration.amounts),
            columns=begin_move.claim_among(begin_move.columns_of(connection, migration)),
            # What was read as unaccepted must still be; what was accepted cannot be otherwise at this generation.
            unaccepted=instance.accepted_by is None and not message.guest_gone,
            inherited=True,
        ),
        migration=_buried(migration),
        residue=residues.left(connection, instance, kept) if may_be_used else None,
        claim_id=migration.claim_id,
        extras=left,
    )


def _buried(migration: Holding) -> Change:
    return Change(uuid=migration.uuid, before=migration, after={}, columns=UNCLAIMED, for_good=True)
