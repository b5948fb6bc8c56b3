"""Deleting: all that a consumer holds is released; for good, its migrations and what others have put there with it."""

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection, select

from moorage import errors
from moorage.messages import DeleteAllocations, Released
from placement_store.allocations import consumers, tombstones
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import Change
from placement_store.claims import claim as claims
from placement_store.claims import foreign, move_split, residues
from placement_store.db.names import ResourceClassNames
from placement_store.schema import consumers as consumer_table


def delete(connection: Connection, message: DeleteAllocations, names: ResourceClassNames) -> Released:
    """Release all that a consumer holds; with ``for_good``, also bury it, whether or not it existed.

    With it go its migrations, residues apart that are not named, and whatever else holds something for it, if it is an
    attempt. What others have put on any of them stays on the consumer if that is asked for. As in Placement the
    generations of the providers are not bumped; their ``seq`` is.

    :raises InvalidRequest: it is to be released unaccepted, and no claim is named; or migrations are named that are not
        this consumer's; or something is asked for that is done only for good.
    :raises ConsumerGenerationConflict: the consumer, or its migration, is not at the generation that was named.
    :raises ClaimReleased: a claim is named, and it no longer stands.
    :raises InvalidState: it is to be released unaccepted, and a host has accepted it.
    :raises ConsumerNotFound: there is no such consumer, and it is not to be buried.
    :raises StaleRead: a consumer has changed since it was read; a new transaction may succeed.
    """
    _require_sense(message)
    uuid = message.consumer_uuid
    holding = consumers.holdings(connection, [uuid]).get(uuid)
    _require_generation(uuid, message.consumer_generation, holding)
    if message.claim_id is not None and (holding is None or holding.claim_id != message.claim_id):
        if not message.for_good or not _is_buried(connection, uuid, holding):
            raise errors.ClaimReleased(consumer_uuid=uuid, claim_id=message.claim_id)
        if not message.migration_uuids:
            return Released()
    if holding is None and not message.for_good:
        raise consumers.not_found(uuid)
    if message.unaccepted and holding is not None and holding.accepted_by is not None:
        raise claims.accepted(uuid)
    if holding is not None and not holding.rows and holding.claim_id is None and not message.for_good:
        return Released()
    return _release(connection, message, holding, names)


def _require_sense(message: DeleteAllocations) -> None:
    if message.unaccepted and message.claim_id is None:
        raise errors.InvalidRequest(path="$.claim_id", reason="needed where `unaccepted` is said")
    for name in ("migration_uuids", "keep_extras"):
        if getattr(message, name) and not message.for_good:
            raise errors.InvalidRequest(path=f"$.{name}", reason="done only for good")


def _require_generation(uuid: str, named: int | None, holding: Holding | None) -> None:
    found = None if holding is None else holding.generation
    if named not in (None, found):
        raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=named, found=found)


def _is_buried(connection: Connection, uuid: str, holding: Holding | None) -> bool:
    """Tell whether a consumer was deleted for good before, be it that others' allocations are still on it."""
    return (holding is None or not holding.known_over_rpc) and bool(tombstones.buried(connection, [uuid]))


def _release(
    connection: Connection, message: DeleteAllocations, holding: Holding | None, names: ResourceClassNames
) -> Released:
    uuid = message.consumer_uuid
    going: dict[str, Holding | None] = {uuid: holding}
    # It may be the id of an attempt: then this is its host's word that nothing is left there.
    is_attempt = message.for_good and (holding is None or residues.is_one(holding))
    if is_attempt:
        going |= residues.of_attempt(connection, uuid)
    migrations = _migrations_of(connection, message)
    staying = [one.uuid for one in migrations.values() if one is not None and _stays(connection, message, one)]
    leaving = {uuid: one for uuid, one in migrations.items() if uuid not in staying}
    going |= leaving
    extras: dict[str, Counter[Pair]] = {}
    if message.for_good or message.claimed_with:
        movers = [one for one in leaving.values() if one is not None]
        extras = foreign.among(connection, holding, movers, message.claimed_with, names)
    kept = extras if message.keep_extras else {}
    left = {uuid: _left(connection, message, one, kept.get(uuid, {})) for uuid, one in going.items() if one is not None}
    after = kept if holding is None else {uuid: _all_of(kept)}
    changes = [_change(message, uuid, one, after.get(uuid, {})) for uuid, one in going.items()]
    new = [residue for residue in left.values() if residue is not None]
    residues.write_all(connection, [*changes, *new], names, bumps_generations=False)
    if is_attempt:
        residues.require_none_of(connection, uuid)
    mine = left.get(uuid)
    return Released(
        residue_uuid=None if mine is None else mine.uuid,
        residue_uuids=tuple(sorted([*(residue.uuid for residue in new), *staying])),
        extras=move_split.described(connection, _all_of(extras), names),
    )


def _migrations_of(connection: Connection, message: DeleteAllocations) -> dict[str, Holding | None]:
    """Return the migrations that go: those named, and of others all but residues, which wait for their hosts.

    Nothing is returned of one that is named and not there, so that it never comes. Nobody else can be given one
    meanwhile: that bumps the consumer's generation.
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
        _require_generation(uuid, message.migration_generation, found.get(uuid))
    unnamed = {uuid: one for uuid, one in found.items() if uuid not in named and not residues.is_one(one)}
    return {uuid: found.get(uuid) for uuid in named} | unnamed


def _stays(connection: Connection, message: DeleteAllocations, migration: Holding) -> bool:
    """Tell whether a migration is a residue already, of a guest that is not known to be gone."""
    if not message.leave_residue or not residues.is_one(migration) or migration.accepted_by in message.guests_gone:
        return False
    return not tombstones.buried(connection, [str(migration.accepted_by)])


def _left(
    connection: Connection, message: DeleteAllocations, going: Holding, kept: Mapping[Pair, int]
) -> Change | None:
    """Return the residue that a consumer leaves, of all that does not stay where it is."""
    if not message.leave_residue or going.accepted_by in message.guests_gone:
        return None
    return residues.left(connection, going, kept)


def _all_of(parts: Mapping[str, Counter[Pair]]) -> Counter[Pair]:
    return sum(parts.values(), Counter())


def _change(message: DeleteAllocations, uuid: str, going: Holding | None, after: Mapping[Pair, int]) -> Change:
    root_id = None if going is None else going.root_provider_id
    return Change(
        uuid=uuid,
        before=going,
        after=after,
        # Of its host it may hold what it held: that it is not placed there any more is to be seen by its `seq` alone.
        named=frozenset() if root_id is None or not after else frozenset({root_id}),
        columns=UNCLAIMED,
        # Accepted meanwhile, it would have to be refused, or to leave a residue.
        unaccepted=going is not None and going.accepted_by is None and (message.unaccepted or message.leave_residue),
        for_good=message.for_good,
        # What stays of a migration's is the instance's from now on.
        inherited=True,
    )
