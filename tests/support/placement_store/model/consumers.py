"""The allocations of consumers in the model: puts, claims, swaps and releases."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from moorage import errors
from moorage.messages import (
    AcceptClaim,
    Claimed,
    ConsumerWritten,
    DeleteAllocations,
    Done,
    PostAllocations,
    PutAllocations,
    SwapClaim,
)
from moorage.model import AllocationRequest, ConsumerAllocations, Inventory, ProviderAmounts
from placement_store.claims.claim import NewClaim
from support.placement_store.model import groups
from support.placement_store.model.basis import Held, Holder, Model, Pair, apply, described
from support.placement_store.model.faults import Refused, refuse

#: The fields of a consumer without a claim.
UNCLAIMED: Mapping[str, None] = dict.fromkeys(("claim_id", "root", "accepted_by", "accepted_host", "owner"))


@dataclass(frozen=True)
class Claim:
    """The placement of consumers, all or none: the effect of `select_destinations` on the store, not a message."""

    new: tuple[NewClaim, ...]
    #: Existing consumers keep their allocations, and get the new ones in addition.
    keep_held: bool = False


@dataclass(frozen=True)
class Change:
    """The allocations of one consumer after a write."""

    after: Held
    columns: Mapping[str, Any] = field(default_factory=dict)
    for_good: bool = False
    #: Amounts that belonged to another consumer before: unit rules do not apply.
    inherited: bool = False


# --- Raw writes -----------------------------------------------------------------------------------------------------


@apply.register
def put(message: PutAllocations, model: Model, _found: Any) -> ConsumerWritten:
    """Replace all allocations of one consumer."""
    return _put(model, {message.consumer_uuid: message.wanted})[message.consumer_uuid]


@apply.register
def post(message: PostAllocations, model: Model, _found: Any) -> dict[str, ConsumerWritten]:
    """Replace all allocations of several consumers at once."""
    return _put(model, message.consumers)


def _put(model: Model, wanted: Mapping[str, ConsumerAllocations]) -> dict[str, ConsumerWritten]:
    changes, named, relied_on, faults = asked_for(model, wanted)
    # As for claims: without a generation, a consumer counts as new until its row is found.
    faults += exceeded(model, changes, new={uuid for uuid, one in wanted.items() if one.consumer_generation is None})
    write(model, changes, named, relied_on, faults=faults)
    return {uuid: ConsumerWritten(consumer_generation=model.holders[uuid].generation) for uuid in wanted}


def asked_for(
    model: Model, wanted: Mapping[str, ConsumerAllocations]
) -> tuple[dict[str, Change], set[str], dict[str, set[int]], list[errors.MoorageError]]:
    """Return the effects of a put: changes, named providers, generations that it relies on, and errors."""
    faults = [fault for uuid, one in wanted.items() for fault in stale(model, uuid, one.consumer_generation)]
    faults += absent(model, (one.allocations for one in wanted.values()))
    changes = {uuid: _put_one(model, uuid, one) for uuid, one in wanted.items()}
    return changes, *named_in(one.allocations for one in wanted.values()), faults


def _put_one(model: Model, uuid: str, wanted: ConsumerAllocations) -> Change:
    columns: dict[str, Any] = {name: getattr(wanted, name) for name in ("project_id", "user_id", "consumer_type")}
    holder = model.holders.get(uuid)
    if holder is not None and holder.claim_id:
        # What keeps the claim: the host's tree, or what it has of pools if they serve it alone.
        tree, held = model.tree(holder.root), {provider for provider, _ in holder.held}
        keeping = tree if tree & held else tree | held
        columns |= {} if keeping & wanted.allocations.keys() else UNCLAIMED
    return Change(flat(wanted.allocations), columns)


# --- Claims ---------------------------------------------------------------------------------------------------------


@apply.register
def claim(message: Claim, model: Model, found: Any) -> list[Claimed]:
    """Place all these consumers or none."""
    requests = [{u: ProviderAmounts(resources=dict(r)) for u, r in new.allocations.items()} for new in message.new]
    faults = [*absent(model, requests), *model.missing(new.root_provider_uuid for new in message.new)]
    is_twice = len({new.consumer_uuid for new in message.new}) < len(message.new)
    refuse([errors.InvalidRequest(path="$.instance_uuids", reason="a consumer is named twice")] * is_twice)
    for new in message.new:
        faults += stale(model, new.consumer_uuid, new.consumer_generation)
        holder = model.holders.get(new.consumer_uuid)
        if holder is not None and holder.accepted_by is not None:
            faults.append(errors.InvalidState(reason="a host has accepted the claim"))
        if holder is not None and message.keep_held and holder.claim_id:
            # Already placed. Without a claim, the model does not know which providers with allocations are hosts.
            generations = {"named": new.consumer_generation, "found": holder.generation}
            faults.append(errors.ConsumerGenerationConflict(consumer_uuid=new.consumer_uuid, **generations))
    answers = found if isinstance(found, list) else [None] * len(message.new)
    changes = {
        new.consumer_uuid: Change(
            dict(Counter(flat(request)) + Counter(_held(model, new) if message.keep_held else {})),
            placement(model, new, answer),
        )
        for new, request, answer in zip(message.new, requests, answers, strict=True)
    }
    # If the caller takes a consumer for new, it counts as new until its row is found.
    faults += exceeded(model, changes, new={new.consumer_uuid for new in message.new if not new.consumer_generation})
    write(model, changes, *named_in(requests), faults=faults)
    bind(model, message.new)
    return [answer_to(model, new.consumer_uuid) for new in message.new]


def _held(model: Model, new: NewClaim) -> Held:
    return model.holders[new.consumer_uuid].held if new.consumer_uuid in model.holders else {}


def placement(model: Model, new: NewClaim, answer: Claimed | None) -> dict[str, Any]:
    kept = {name: getattr(new, name) for name in ("project_id", "user_id", "consumer_type", "owner")}
    # If the claim names no group, the consumer stays in its own.
    kept |= {} if new.group is None else {"group": new.group.uuid}
    return {**UNCLAIMED, **kept, "claim_id": fresh(model, answer), "root": _root_of(model, new.root_provider_uuid)}


def bind(model: Model, claims: Iterable[NewClaim]) -> None:
    """Create the groups that claims name, if they do not exist yet."""
    for new in claims:
        if new.group is not None:
            model.groups.setdefault(new.group.uuid, (None, None))


@apply.register
def swap(message: SwapClaim, model: Model, found: Any) -> Claimed:
    """Release the amounts of a claim on its host, and claim the next host."""
    holder = swappable(model, message)
    released, claimed = present(model, message.released), flat(message.claimed.allocations)
    faults = absent(model, [message.claimed.allocations])
    faults += model.missing([message.root_provider_uuid])
    kept, lost = _kept(model, holder, released, claimed, _root_of(model, message.root_provider_uuid))
    columns = {
        **UNCLAIMED,
        "owner": holder.owner,
        "claim_id": fresh(model, found if isinstance(found, Claimed) else None),
        "root": _root_of(model, message.root_provider_uuid),
    }
    residue = {} if message.guest_gone else residue_of(model, holder, kept)
    changes = {message.consumer_uuid: Change(dict(Counter(kept) + Counter(claimed)), columns), **residue}
    # Providers of the released claim may have been deleted.
    still = {u: part for u, part in message.released.allocations.items() if u in model.providers}
    write(model, changes, *named_in([still, message.claimed.allocations]), faults=faults)
    answer = answer_to(model, message.consumer_uuid, next(iter(residue), None))
    return structs.replace(answer, extras=as_message(lost))


def swappable(model: Model, message: SwapClaim) -> Holder:
    """Return the consumer whose claim the message swaps, or refuse."""
    holder = model.holders.get(message.consumer_uuid)
    if holder is None or holder.claim_id != message.claim_id:
        gone = errors.ClaimReleased(consumer_uuid=message.consumer_uuid, claim_id=message.claim_id)
        # The client that took the claim may also have changed a provider that the caller relies on: both are true.
        requests = [part.allocations for part in (message.released, message.claimed, message.held) if part is not None]
        _, relied_on = named_in(requests)
        raise Refused(
            [gone, *model.stale_generations({uuid: g for uuid, g in relied_on.items() if uuid in model.providers})]
        )
    if holder.accepted_by is not None and not (message.guest_gone or message.leave_residue):
        raise Refused([errors.InvalidState(reason="a host has accepted the claim")])
    return holder


def _kept(model: Model, holder: Holder, released: Held, claimed: Held, next_root: str | None) -> tuple[Held, Held]:
    """Return the foreign allocations that a consumer keeps between two hosts, and those that it loses."""
    tree = model.tree(holder.root)
    released_amounts = +released_amounts_of(model, holder, released)
    left = {p for p, _ in (*released, *released_amounts)} - {p for p, _ in claimed}
    left |= tree if next_root != holder.root else set()
    foreign = Counter(holder.held) - released_amounts
    return (
        {pair: amount for pair, amount in foreign.items() if pair[0] not in left},
        {pair: amount for pair, amount in foreign.items() if pair[0] in left},
    )


def released_amounts_of(model: Model, holder: Holder, released: Held, *, deleted_pools: bool = True) -> Counter[Pair]:
    """Return the allocations that now hold the claimed amounts.

    :param deleted_pools: whether amounts of deleted providers are also looked for outside the host's tree.
    """
    released_amounts = Counter(holder.held) & Counter(released)
    # Amounts that a reshape has moved within a tree are released at their new place.
    missing: Counter[tuple[str | None, str]] = Counter()
    for (provider, name), amount in released.items():
        root = model.root_of(provider) if provider in model.providers else holder.root
        missing[root, name] += amount - released_amounts[provider, name]
    for provider in model.providers:
        for root, name in missing:
            if model.root_of(provider) == root:
                more = min(missing[root, name], holder.held.get((provider, name), 0) - released_amounts[provider, name])
                released_amounts[provider, name] += more
                missing[root, name] -= more
    # A deleted provider may have been a pool that a reshape had emptied: what it had may be outside the host's tree.
    deleted: Counter[str] = Counter()
    for (provider, name), amount in released.items():
        deleted[name] += amount if deleted_pools and provider not in model.providers else 0
    left = Counter({name: min(amount, missing[holder.root, name]) for name, amount in deleted.items()})
    for provider in model.providers:
        for name in left if model.root_of(provider) != holder.root else ():
            more = min(left[name], holder.held.get((provider, name), 0) - released_amounts[provider, name])
            released_amounts[provider, name] += more
            left[name] -= more
    return released_amounts


@apply.register
def accept(message: AcceptClaim, model: Model, _found: Any) -> Done:
    """Let an attempt's host accept a claim that still stands."""
    holder, wanted = model.holders.get(message.consumer_uuid), (message.attempt_id, message.host)
    stands = holder is not None and holder.claim_id == message.claim_id
    if holder is None or not stands or (holder.accepted_by, holder.accepted_host) not in ((None, None), wanted):
        raise Refused([errors.ClaimReleased(consumer_uuid=message.consumer_uuid, claim_id=message.claim_id)])
    holder.accepted_by, holder.accepted_host = wanted
    return Done()


def foreign_of(model: Model, holder: Holder, message: DeleteAllocations) -> Held:
    """Return the foreign allocations of a consumer that is released."""
    is_residue = holder.claim_id is None and holder.accepted_by is not None
    is_unnamed = holder.claim_id is not None and holder.claim_id not in message.claimed_with
    if is_residue or is_unnamed:
        return {}
    if holder.left_behind:
        return dict(holder.held)
    own: Counter[Pair] = Counter()
    on_host = model.tree(holder.root) & {provider for provider, _ in holder.held}
    for claim_id, request in message.claimed_with.items():
        claimed = present(model, request)
        if claim_id == holder.claim_id:
            own |= released_amounts_of(model, holder, claimed)
        else:
            # Another's claim, or an earlier one of its own: outside its host, it explains the consumer's allocations.
            outside = {pair: n for pair, n in claimed.items() if pair[0] in model.providers and pair[0] not in on_host}
            located = released_amounts_of(model, holder, outside)
            own |= Counter({pair: n for pair, n in located.items() if pair[0] not in on_host})
    return dict(Counter(holder.held) - own)


def present(model: Model, request: AllocationRequest) -> Held:
    """Return the claimed amounts, without classes that were deleted."""
    return {pair: amount for pair, amount in flat(request.allocations).items() if pair[1] in model.classes}


# --- The common write path ------------------------------------------------------------------------------------------


def write(
    model: Model,
    changes: Mapping[str, Change],
    named: Collection[str] = (),
    relied_on: Mapping[str, Collection[int]] | None = None,
    *,
    faults: Iterable[errors.MoorageError] = (),
    bumps_generations: bool = True,
) -> None:
    """Write these changes of consumers, or refuse; ``faults`` are the errors found so far."""
    found = [*faults, *exceeded(model, changes)]
    found += model.stale_generations(
        {uuid: named for uuid, named in (relied_on or {}).items() if uuid in model.providers}
    )
    # If the consumer exists despite that, its foreign allocations may be released or moved.
    new = changes.keys() - model.holders.keys()
    found += [errors.ConsumerDeleted(consumer_uuid=uuid) for uuid in model.buried & new]
    after = _after(model, changes)
    found += groups.refusals(model.holders, after, changes.keys())
    refuse(found)
    touched = {*named, *(pair[0] for uuid, change in changes.items() for pair in differing(model, uuid, change))}
    for provider in touched if bumps_generations else ():
        model.providers[provider].generation += 1
    model.buried |= {uuid for uuid, change in changes.items() if change.for_good}
    model.holders = after


def _after(model: Model, changes: Mapping[str, Change]) -> dict[str, Holder]:
    """Return all consumers after these changes."""
    after = dict(model.holders)
    for uuid, change in changes.items():
        before = after.pop(uuid, Holder())
        moved = replace(before, **change.columns, generation=before.generation + 1, held=dict(change.after))
        if change.for_good or before.left_behind:
            moved = replace(moved, left_behind=True, group=None)
        if change.after or not moved.left_behind:
            after[uuid] = moved
    return after


def differing(model: Model, uuid: str, change: Change) -> set[Pair]:
    """Return the pairs of which a consumer will hold a different amount."""
    held = model.holders[uuid].held if uuid in model.holders else {}
    return {pair for pair, _ in held.items() ^ change.after.items()}


def exceeded(model: Model, changes: Mapping[str, Change], new: Collection[str] = ()) -> list[errors.MoorageError]:
    """Return one error with every inventory that refuses these changes, if there is any.

    :param new: consumers that count as new, whatever they hold.
    """
    before = model.used()
    after = Counter(before)
    wanted: dict[Pair, list[int]] = {}
    for uuid, change in changes.items():
        held = model.holders[uuid].held if uuid in model.holders and uuid not in new else {}
        after.subtract(held)
        after.update(change.after)
        for pair in {pair for pair, _ in change.after.items() - held.items()}:
            wanted.setdefault(pair, []).extend([] if change.inherited else [change.after[pair]])
    refusals = [
        {"provider_uuid": pair[0], "resource_class": pair[1], **why}
        for pair, amounts in wanted.items()
        if (why := _refusal(model.inventory(pair), before[pair], after[pair], amounts))
    ]
    return [
        errors.CapacityExceeded(
            provider_uuid=first["provider_uuid"],
            resource_class=first["resource_class"],
            count=len(refusals),
            refusals=refusals,
        )
        for first in refusals[:1]
    ]


def _refusal(inventory: Inventory | None, before: int, after: int, amounts: Collection[int]) -> dict[str, Any]:
    """Return the reason why an inventory refuses to grow from ``before`` to ``after`` by these new amounts, if any."""
    growth = after - before
    if inventory is None:
        return {"asked": max(amounts, default=growth), "free": 0.0, "reason": "no inventory"}
    free = inventory.capacity - before
    if any(not inventory.min_unit <= one <= inventory.max_unit for one in amounts):
        reason = f"not between min_unit {inventory.min_unit} and max_unit {inventory.max_unit}"
    elif any(one % inventory.step_size for one in amounts):
        reason = f"not a multiple of step_size {inventory.step_size}"
    elif growth > 0 and after > inventory.capacity:
        return {"asked": growth, "free": free, "reason": "not enough room"}
    else:
        return {}
    return {"asked": max(amounts), "free": free, "reason": reason}


# --- Parts ----------------------------------------------------------------------------------------------------------


def flat(allocations: Mapping[str, ProviderAmounts]) -> Held:
    """Return amounts by provider and resource class."""
    return {(uuid, name): amount for uuid, part in allocations.items() for name, amount in part.resources.items()}


def as_message(amounts: Held) -> dict[str, ProviderAmounts]:
    """Return amounts in the form of a message."""
    return {uuid: ProviderAmounts(resources=resources) for uuid, resources in described(amounts).items()}


def named_in(requests: Iterable[Mapping[str, ProviderAmounts]]) -> tuple[set[str], dict[str, set[int]]]:
    """Return the named providers, and the generations that the requests rely on."""
    named: set[str] = set()
    relied_on: dict[str, set[int]] = {}
    for request in requests:
        named |= request.keys()
        for uuid, part in request.items():
            if part.generation is not None:
                relied_on.setdefault(uuid, set()).add(part.generation)
    return named, relied_on


def stale(model: Model, uuid: str, named: int | None) -> list[errors.MoorageError]:
    if uuid in model.buried:
        return [errors.ConsumerDeleted(consumer_uuid=uuid)]
    found = model.holders[uuid].generation if uuid in model.holders else None
    conflict = errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=named, found=found)
    return [] if named == found else [conflict]


def absent(model: Model, requests: Iterable[Mapping[str, ProviderAmounts]]) -> list[errors.MoorageError]:
    """Return an error for each named provider and resource class that does not exist."""
    faults: list[errors.MoorageError] = []
    for request in requests:
        faults += model.missing(request)
        faults += model.unknown({name for part in request.values() for name in part.resources})
    return faults


def residue_of(model: Model, holder: Holder, kept: Mapping[Pair, int]) -> dict[str, Change]:
    """Return the residue of an accepted claim on its host, where the guest may still run."""
    attempt = holder.accepted_by
    if holder.claim_id is None or attempt is None or attempt in model.buried:
        return {}
    tree = model.tree(holder.root)
    released_amounts = Counter({p: n for p, n in holder.held.items() if p[0] in tree}) - Counter(kept)
    names = ("project_id", "user_id", "root", "accepted_by", "accepted_host")
    columns = {name: getattr(holder, name) for name in names} | {"consumer_type": "RESIDUE"}
    return {attempt: Change(dict(released_amounts), columns, inherited=True)} if released_amounts else {}


def answer_to(model: Model, uuid: str, residue: str | None = None) -> Claimed:
    holder = model.holders[uuid]
    return Claimed(claim_id=str(holder.claim_id), consumer_generation=holder.generation, residue_uuid=residue)


def fresh(model: Model, answer: Claimed | None) -> str | None:
    """Return the id that the store has given a claim; it must be new."""
    if answer is None:
        return None
    assert answer.claim_id not in model.claim_ids
    model.claim_ids.add(answer.claim_id)
    return answer.claim_id


def _root_of(model: Model, uuid: str) -> str | None:
    return model.root_of(uuid) if uuid in model.providers else None
