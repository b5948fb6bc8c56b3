"""Claims: placing consumers on a host, moving a claim to the next host, releasing it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from moorage import errors, ids
from moorage.messages import Claimed, DeleteAllocations, Released, SwapClaim
from placement_store import allocations, bulk, consumers, given_up, providers, residues
from placement_store.allocations import Change
from placement_store.consumers import UNCLAIMED, Holding
from placement_store.names import ResourceClassNames
from placement_store.races import Moved
from placement_store.schema import consumers as consumer_table


@dataclass(frozen=True, slots=True, kw_only=True)
class NewClaim:
    """A consumer to be placed: all that it shall hold, and the root provider that is its host's.

    ``consumer_generation`` is the one that the caller relies on; null means that there is no such consumer yet.
    ``owner`` can be asked whether a claim that nobody has accepted is still wanted.
    """

    consumer_uuid: str
    project_id: str
    user_id: str
    root_provider_uuid: str
    allocations: Mapping[str, Mapping[str, int]]
    owner: str | None
    consumer_type: str = "INSTANCE"
    consumer_generation: int | None = None


def claim(connection: Connection, claims: Sequence[NewClaim], names: ResourceClassNames) -> list[Claimed]:
    """Place all these consumers, or none: whatever is raised, the transaction must be rolled back.

    What a consumer that exists holds is replaced. A claim of it that a host has accepted stays its placement.

    :raises CapacityExceeded: it does not fit; ``refusals`` names every provider that has refused.
    :raises ConsumerGenerationConflict: a consumer is not at the generation that was named.
    :raises ConsumerDeleted: a consumer has been deleted for good.
    :raises InvalidState: a host has accepted the claim of one of the consumers.
    :raises ProviderNotFound: a provider that is named does not exist.
    :raises ResourceClassNotFound: a resource class that is named does not exist.
    :raises ClaimContention: something else has changed at this very moment.
    """
    if len({new.consumer_uuid for new in claims}) != len(claims):
        raise errors.InvalidRequest(path="$.instance_uuids", reason="a consumer is named twice")
    keys = providers.keys_of(connection, _providers_named(claims))
    # A consumer that nobody has named a generation of need not be looked for: its uuid is unique.
    expected = {new.consumer_uuid for new in claims if new.consumer_generation is not None}
    found = consumers.holdings(connection, expected) if expected else {}
    for new in claims:
        _require_claimable(connection, new, found.get(new.consumer_uuid))
    claim_ids = [ids.fresh() for _ in claims]
    changes = [
        Change(
            uuid=new.consumer_uuid,
            before=found.get(new.consumer_uuid),
            after=allocations.numbered(new.allocations, keys, names, connection),
            named=frozenset(keys[uuid].id for uuid in new.allocations),
            columns=_placement(new, claim_id, keys[new.root_provider_uuid].root_id),
            claimed=True,
            unaccepted=True,
        )
        for new, claim_id in zip(claims, claim_ids, strict=True)
    ]
    try:
        allocations.write(connection, changes, names, roots=dict(keys.values()))
    except Moved as fault:
        raise _why(connection, claims) from fault
    return [
        Claimed(claim_id=claim_id, consumer_generation=(new.consumer_generation or 0) + 1)
        for new, claim_id in zip(claims, claim_ids, strict=True)
    ]


def standing(connection: Connection, consumer_uuids: Collection[str]) -> dict[str, tuple[str | None, int]]:
    """Return the claim, if any, and the generation of those of these consumers that exist."""
    table = consumer_table
    query = select(table.c.uuid, table.c.claim_id, table.c.generation)
    rows = bulk.select_in(connection, query, table.c.uuid, sorted(consumer_uuids))
    return {row.uuid: (row.claim_id, row.generation) for row in rows}


def swap(connection: Connection, message: SwapClaim, names: ResourceClassNames) -> Claimed:
    """Release what a claim holds on its host and claim the next one: both, or neither.

    The host is left whole, unless it is the next one too, and so is any other provider that is released and not
    claimed; on one that is both, what others have put there stays. See :mod:`placement_store.given_up`.
    Where the guest may still run, what leaves the host goes to a residue instead, if that is asked for.

    :raises ClaimReleased: the claim no longer stands.
    :raises InvalidState: a host has accepted it, the guest is not known to be gone, and no residue may be left.
    :raises CapacityExceeded: the next host has not enough room; the old claim stands.
    :raises ProviderNotFound: a provider that is named does not exist.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises Moved: the consumer has changed since it was read; a new transaction may succeed.
    """
    holding = consumers.holdings(connection, [message.consumer_uuid]).get(message.consumer_uuid)
    if holding is None or holding.claim_id != message.claim_id:
        raise errors.ClaimReleased(consumer_uuid=message.consumer_uuid, claim_id=message.claim_id)
    if holding.accepted_by is not None and not (message.guest_gone or message.leave_residue):
        raise _accepted(message.consumer_uuid)
    requests = [message.released.allocations, message.claimed.allocations]
    keys = providers.keys_of(connection, {message.root_provider_uuid, *requests[1]})
    # What was claimed of may be gone, emptied by a reshape.
    keys |= providers.keys_found(connection, requests[0])
    released, wanted = ({uuid: part.resources for uuid, part in request.items()} for request in requests)
    claimed = allocations.numbered(wanted, keys, names, connection)
    next_root_id = keys[message.root_provider_uuid].root_id
    in_tree = given_up.on_host(connection, holding)
    left = {keys[uuid].id for uuid in released if uuid in keys} - {provider_id for provider_id, _ in claimed}
    if next_root_id != holding.root_provider_id:
        left |= in_tree
    kept = given_up.kept(holding, given_up.located(connection, holding, released, keys, in_tree, names), left)
    residue = None if message.guest_gone else residues.left(connection, holding, kept)
    claim_id = ids.fresh()
    change = Change(
        uuid=message.consumer_uuid,
        before=holding,
        after={pair: kept.get(pair, 0) + claimed.get(pair, 0) for pair in kept.keys() | claimed.keys()},
        named=frozenset(keys[uuid].id for request in requests for uuid in request if uuid in keys),
        columns={
            **UNCLAIMED,
            "claim_id": claim_id,
            "root_provider_id": next_root_id,
            "owner": holding.owner,
        },
        claimed=True,
        # What was read as unaccepted must still be; what was accepted cannot be otherwise at this generation.
        unaccepted=holding.accepted_by is None and not message.guest_gone,
    )
    relied_on = allocations.generations_named(requests, keys)
    roots = dict(keys.values())
    residue_uuid = residues.write(connection, change, residue, names, relied_on=relied_on, roots=roots)
    return Claimed(claim_id=claim_id, consumer_generation=holding.generation + 1, residue_uuid=residue_uuid)


def delete(connection: Connection, message: DeleteAllocations, names: ResourceClassNames) -> Released:
    """Release all that a consumer holds; with ``for_good``, also bury it, whether or not it existed.

    As in Placement the generations of the providers do not move; their ``seq`` does.

    :raises InvalidRequest: it is to be released unaccepted, and no claim is named.
    :raises ClaimReleased: a claim is named, and it no longer stands.
    :raises InvalidState: it is to be released unaccepted, and a host has accepted it.
    :raises ConsumerNotFound: there is no such consumer, and it is not to be buried.
    :raises Moved: the consumer has changed since it was read; a new transaction may succeed.
    """
    uuid = message.consumer_uuid
    if message.unaccepted and message.claim_id is None:
        raise errors.InvalidRequest(path="$.claim_id", reason="needed where `unaccepted` is said")
    holding = consumers.holdings(connection, [uuid]).get(uuid)
    if message.claim_id is not None and (holding is None or holding.claim_id != message.claim_id):
        if holding is None and message.for_good and consumers.buried(connection, [uuid]):
            return Released()
        raise errors.ClaimReleased(consumer_uuid=uuid, claim_id=message.claim_id)
    if holding is None:
        if not message.for_good:
            raise consumers.not_found(uuid)
        return _release(connection, message, None, None, names)
    if message.unaccepted and holding.accepted_by is not None:
        raise _accepted(uuid)
    if not holding.rows and holding.claim_id is None and not message.for_good:
        return Released()
    residue = residues.left(connection, holding, {}) if message.leave_residue else None
    return _release(connection, message, holding, residue, names)


def _release(
    connection: Connection,
    message: DeleteAllocations,
    holding: Holding | None,
    residue: Change | None,
    names: ResourceClassNames,
) -> Released:
    change = Change(
        uuid=message.consumer_uuid,
        before=holding,
        after={},
        columns=UNCLAIMED,
        # Accepted meanwhile, it would have to be refused, or to leave a residue.
        unaccepted=holding is not None
        and holding.accepted_by is None
        and (message.unaccepted or message.leave_residue),
        for_good=message.for_good,
    )
    return Released(residue_uuid=residues.write(connection, change, residue, names, moves_generations=False))


# --- Parts ----------------------------------------------------------------------------------------------------------


def _providers_named(claims: Sequence[NewClaim]) -> set[str]:
    return {uuid for new in claims for uuid in (new.root_provider_uuid, *new.allocations)}


def _require_claimable(connection: Connection, new: NewClaim, holding: Holding | None) -> None:
    found = None if holding is None else holding.generation
    # A new consumer is looked for among the deleted ones when it is created.
    if holding is not None or new.consumer_generation is not None:
        consumers.require_unburied(connection, new.consumer_uuid, holding)
    if found != new.consumer_generation:
        raise errors.ConsumerGenerationConflict(
            consumer_uuid=new.consumer_uuid, named=new.consumer_generation, found=found
        )
    if holding is not None and holding.accepted_by is not None:
        raise _accepted(new.consumer_uuid)


def _accepted(consumer_uuid: str) -> errors.InvalidState:
    return errors.InvalidState(reason=f"a host has accepted the claim of consumer {consumer_uuid}")


def _placement(new: NewClaim, claim_id: str, root_id: int) -> dict[str, Any]:
    return {
        **UNCLAIMED,
        "claim_id": claim_id,
        "root_provider_id": root_id,
        "owner": new.owner,
        "project_id": new.project_id,
        "user_id": new.user_id,
        "consumer_type": new.consumer_type,
        "known_over_rpc": True,
    }


def _why(connection: Connection, claims: Sequence[NewClaim]) -> errors.MoorageError:
    """Return what has become of the consumers and providers of a claim since they were read."""
    uuids = {new.consumer_uuid for new in claims}
    gone = consumers.buried(connection, uuids)
    found = consumers.holdings(connection, uuids)
    try:
        for new in claims:
            if new.consumer_uuid in gone:
                return errors.ConsumerDeleted(consumer_uuid=new.consumer_uuid)
            _require_claimable(connection, new, found.get(new.consumer_uuid))
        providers.keys_of(connection, _providers_named(claims))
    except errors.MoorageError as reason:
        return reason
    return errors.ClaimContention(tries=1)
