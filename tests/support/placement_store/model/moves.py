"""Moves in the model: the allocations of an instance and its migration from the beginning of a move to its end."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from moorage import errors
from moorage.messages import Claimed, DeleteAllocations, EndMove, MoveEnded, Released, SwapClaim
from moorage.model import AllocationRequest, Move, ProviderAmounts
from placement_store.claims.claim import NewClaim
from support.placement_store.model import consumers
from support.placement_store.model.basis import Held, Holder, Model, Pair, apply
from support.placement_store.model.consumers import UNCLAIMED, Change, flat, write
from support.placement_store.model.faults import Refused, refuse


@dataclass(frozen=True)
class BeginMove:
    """The beginning of an instance's move: the effect of `select_destinations` on the store, not a message."""

    new: NewClaim
    move: Move


@dataclass(frozen=True)
class Side:
    """The source or a destination of a move: their trees are identified by their roots."""

    root: str | None
    amounts: Held

    @property
    def providers(self) -> set[str]:
        """All providers of the side."""
        return {provider for provider, _ in self.amounts}


# --- Beginning ------------------------------------------------------------------------------------------------------


@apply.register
def begin(message: BeginMove, model: Model, found: Any) -> Claimed:
    """Give an instance's source to its migration, and claim a destination for it."""
    new, move = message.new, message.move
    uuid, held = new.consumer_uuid, consumers.present(model, move.held)
    request = {at: ProviderAmounts(resources=dict(resources)) for at, resources in new.allocations.items()}
    faults = [*_immovable(model, new, move), *consumers.absent(model, [request])]
    faults += model.missing([new.root_provider_uuid])
    holder = model.holders.get(uuid)
    if holder is None or new.root_provider_uuid not in model.providers:
        raise Refused([*faults, *_moved(model, [move.held.allocations])])
    source, next_ = Side(holder.root, held), Side(model.root_of(new.root_provider_uuid), flat(request))
    old = +consumers.released_amounts_of(model, holder, held)
    foreign = Counter(holder.held) - old
    tree = set() if next_.root == source.root else model.tree(source.root)
    leaving = _within(foreign, (tree | _pools(model, source)) - next_.providers)
    faults += _cannot_carry_over(uuid, leaving) if leaving and not move.drop_extras else []
    mine, others = _divided(old, next_.amounts, _shared(model, source, next_))
    migration = {
        "consumer_type": "MIGRATION",
        "migration_of": uuid,
        "group": holder.group,
        **{name: getattr(holder, name) for name in ("project_id", "user_id", *UNCLAIMED)},
    }
    answer = found if isinstance(found, Claimed) else None
    changes = {
        uuid: Change(dict(mine + (foreign - leaving)), consumers.placement(model, new, answer)),
        move.migration_uuid: Change(dict(others + leaving), migration, inherited=True),
    }
    _, relied_on = consumers.named_in(_still(model, [move.held.allocations]))
    write(model, changes, request.keys() | relied_on.keys(), relied_on, faults=faults)
    consumers.bind(model, [new])
    model.recorded[move.migration_uuid] = (move.held, AllocationRequest(allocations=request))
    model.located[move.migration_uuid] = dict(old)
    model.destinations[move.migration_uuid] = model.holders[uuid].claim_id
    return consumers.answer_to(model, uuid)


def _immovable(model: Model, new: NewClaim, move: Move) -> list[errors.MoorageError]:
    """Return all reasons to refuse the beginning of a move."""
    uuid, migration, holder = new.consumer_uuid, move.migration_uuid, model.holders.get(new.consumer_uuid)
    faults = consumers.stale(model, uuid, new.consumer_generation) if holder is not None else []
    if uuid in model.buried:
        faults.append(errors.ConsumerDeleted(consumer_uuid=uuid))
    if holder is None or holder.claim_id != move.claim_id:
        faults.append(errors.ClaimReleased(consumer_uuid=uuid, claim_id=move.claim_id))
    if holder is not None and holder.accepted_by is None:
        faults.append(errors.InvalidState(reason="no host has accepted the claim"))
    if migration in model.holders:
        faults.append(errors.AlreadyExists(kind="consumer", name=migration))
    if any(other.migration_of == uuid and other.claim_id for other in model.holders.values()):
        faults.append(errors.InvalidState(reason="another move has not ended"))
    return faults


def _cannot_carry_over(uuid: str, leaving: Mapping[Pair, int]) -> list[errors.MoorageError]:
    amounts = [
        {"provider_uuid": provider, "resource_class": name, "amount": amount}
        for (provider, name), amount in leaving.items()
    ]
    return [errors.CannotCarryOver(consumer_uuid=uuid, count=len(amounts), amounts=amounts)]


# --- The next destination -------------------------------------------------------------------------------------------


@apply.register
def swap(message: SwapClaim, model: Model, found: Any) -> Claimed:
    """Release the amounts of a claim on its host, and claim the next host, during a move or not."""
    if message.migration_uuid is None and message.held is None:
        return consumers.swap(message, model, found)
    uuid = message.consumer_uuid
    holder = consumers.swappable(model, message)
    if message.migration_uuid is None or message.held is None:
        raise Refused([errors.InvalidRequest(path="$.held", reason="the two go together")])
    released, held = (consumers.present(model, one) for one in (message.released, message.held))
    claimed = flat(message.claimed.allocations)
    faults = consumers.absent(model, [message.claimed.allocations])
    faults += model.missing([message.root_provider_uuid])
    requests = [message.released.allocations, message.claimed.allocations, message.held.allocations]
    migration, wrong = _migration(model, uuid, message.migration_uuid)
    faults += wrong
    if migration is None or faults:
        raise Refused([*faults, *_moved(model, requests)])
    source = Side(migration.root, held)
    present, next_ = Side(holder.root, released), Side(model.root_of(message.root_provider_uuid), claimed)
    parts = _parts(model, holder, migration, message.migration_uuid, present)
    tree = model.tree(holder.root)
    on_source = present.root == source.root
    whole = set() if on_source or next_.root == present.root else tree
    pools = _pools(model, source) | _reshaped_pools(model, parts, source, present)
    lost = _within(parts.foreign_on_instance, whole - next_.providers - pools)
    foreign = parts.foreign_on_instance - lost
    left = ((tree if on_source and next_.root != source.root else set()) | _pools(model, source)) - next_.providers
    left |= present.providers - tree - next_.providers
    leaving = _within(foreign, left)
    in_source = model.tree(source.root) if next_.root == source.root else set()
    returning = _within(parts.foreign_on_migration, next_.providers | in_source)
    old = parts.kept_old + parts.old
    mine, others = _divided(old, claimed, _shared(model, source, next_))
    residue = {} if message.guest_gone else consumers.residue_of(model, holder, parts.kept_old + foreign)
    answer = found if isinstance(found, Claimed) else None
    columns = {**UNCLAIMED, "owner": holder.owner, "claim_id": consumers.fresh(model, answer), "root": next_.root}
    changes = {
        uuid: Change(dict(mine + (foreign - leaving) + returning), columns),
        message.migration_uuid: Change(
            dict(others + leaving + (parts.foreign_on_migration - returning)), inherited=True
        ),
        **residue,
    }
    named, _ = consumers.named_in(_still(model, [message.released.allocations, message.claimed.allocations]))
    _, relied_on = consumers.named_in(_still(model, requests))
    write(model, changes, named | relied_on.keys(), relied_on, faults=faults)
    model.recorded[message.migration_uuid] = (message.held, message.claimed)
    model.located[message.migration_uuid] = dict(old)
    model.destinations[message.migration_uuid] = model.holders[uuid].claim_id
    swapped = consumers.answer_to(model, uuid, next(iter(residue), None))
    return structs.replace(swapped, extras=consumers.as_message(lost))


# --- Ending ---------------------------------------------------------------------------------------------------------


@apply.register
def end(message: EndMove, model: Model, _found: Any) -> MoveEnded:
    """Confirm or revert a move."""
    uuid, holder = message.consumer_uuid, model.holders.get(message.consumer_uuid)
    if holder is None or holder.claim_id != message.claim_id:
        raise Refused([errors.ClaimReleased(consumer_uuid=uuid, claim_id=message.claim_id)])
    held, claimed = (consumers.present(model, one) for one in (message.held, message.claimed))
    migration, faults = _migration(model, uuid, message.migration_uuid)
    faults += _other_generation(model, uuid, message.consumer_generation)
    faults += _other_generation(model, message.migration_uuid, message.migration_generation)
    if migration is None or faults:
        raise Refused([*faults, *_moved(model, [message.held.allocations, message.claimed.allocations])])
    leaver = migration if message.outcome == "confirm" else holder
    if leaver.accepted_by is not None and not (message.guest_gone or message.leave_residue):
        faults.append(errors.InvalidState(reason="a host has accepted the claim"))
    if message.outcome == "revert" and migration.claim_id is None:
        faults.append(errors.InvalidState(reason="there is nothing to go back to"))
    refuse(faults)
    source, present = Side(migration.root, held), Side(holder.root, claimed)
    parts = _parts(model, holder, migration, message.migration_uuid, present)
    may_be_used = message.leave_residue and not message.guest_gone
    if message.outcome == "confirm":
        changes, lost = _confirmed(model, message, holder, migration, parts, may_be_used)
        claim_id = message.claim_id
    else:
        changes, lost = _reverted(model, message, holder, migration, parts, (source, present), may_be_used)
        claim_id = str(migration.claim_id)
    residues = [one for one, change in changes.items() if one != uuid and not change.for_good]
    _, relied_on = consumers.named_in(_still(model, [message.held.allocations, message.claimed.allocations]))
    write(model, changes, relied_on.keys(), relied_on)
    return MoveEnded(
        claim_id=claim_id,
        consumer_generation=model.holders[uuid].generation,
        residue_uuid=next(iter(residues), None),
        extras=consumers.as_message(lost),
    )


def _confirmed(
    model: Model, message: EndMove, holder: Holder, migration: Holder, parts: "Parts", may_be_used: bool
) -> tuple[dict[str, Change], Counter[Pair]]:
    tree = model.tree(migration.root)
    staying = parts.foreign_on_migration if message.keep_extras else Counter[Pair]()
    of_host = dict(_within(Counter(migration.held) - staying, tree))
    stays = may_be_used and of_host and migration.claim_id and migration.accepted_by not in {None, *model.buried}
    residue = dict.fromkeys(("claim_id", "owner", "group")) | {"consumer_type": "RESIDUE"}
    after = Counter(holder.held) - parts.beyond_new + staying
    changes = {
        message.consumer_uuid: Change(dict(after), inherited=True),
        message.migration_uuid: Change(of_host, residue, inherited=True) if stays else Change({}, UNCLAIMED, True),
    }
    return changes, parts.foreign_on_migration


def _reverted(
    model: Model,
    message: EndMove,
    holder: Holder,
    migration: Holder,
    parts: "Parts",
    sides: tuple[Side, Side],
    may_be_used: bool,
) -> tuple[dict[str, Change], Counter[Pair]]:
    source, present = sides
    tree = set() if source.root == present.root else model.tree(present.root)
    pools = _pools(model, source) | _reshaped_pools(model, parts, source, present)
    lost = _within(parts.foreign_on_instance, tree - pools)
    kept = parts.kept_old + (parts.foreign_on_instance if message.keep_extras else parts.foreign_on_instance - lost)
    back = {name: getattr(migration, name) for name in UNCLAIMED}
    changes = {
        message.consumer_uuid: Change(dict(kept + Counter(migration.held)), back, inherited=True),
        message.migration_uuid: Change({}, UNCLAIMED, for_good=True),
    }
    return changes | (consumers.residue_of(model, holder, kept) if may_be_used else {}), lost


# --- Deleting -------------------------------------------------------------------------------------------------------


@apply.register
def delete(message: DeleteAllocations, model: Model, _found: Any) -> Released:
    """Release everything that a consumer holds, with its migrations and the residues of an attempt, if there are any.

    Consumers that are deleted for good become tombstones; no generation of a provider is bumped.
    """
    uuid, holder = message.consumer_uuid, model.holders.get(message.consumer_uuid)
    refuse(_inconsistent(message))
    refuse(_other_generation(model, uuid, message.consumer_generation))
    if message.claim_id is not None and (holder is None or holder.claim_id != message.claim_id):
        is_buried = uuid in model.buried and (holder is None or holder.left_behind)
        refuse([errors.ClaimReleased(consumer_uuid=uuid, claim_id=message.claim_id)] * (not is_buried))
        refuse([errors.ClaimReleased(consumer_uuid=uuid, claim_id=message.claim_id)] * (not message.for_good))
        if not message.migration_uuids:
            return Released()
    refuse([errors.ConsumerNotFound(kind="consumer", name=uuid)] * (holder is None and not message.for_good))
    if holder is not None and message.unaccepted and holder.accepted_by is not None:
        raise Refused([errors.InvalidState(reason="a host has accepted the claim")])
    if holder is not None and not (holder.held or holder.claim_id or message.for_good):
        return Released()
    going, staying = _going(model, message, holder)
    foreign = _foreign(model, message, going) if message.for_good or message.claimed_with else {}
    kept = foreign if message.keep_extras else {}
    left = {
        one: consumers.residue_of(model, other, kept.get(one, {}))
        for one, other in going.items()
        if message.leave_residue and other.accepted_by not in message.guests_gone
    }
    stays = kept if holder is None else {uuid: sum(kept.values(), Counter())}
    changes = {
        one: Change(dict(stays.get(one, {})), UNCLAIMED, for_good=message.for_good, inherited=True) for one in going
    }
    residues = {one: change for part in left.values() for one, change in part.items()}
    write(model, {**changes, **residues}, bumps_generations=False)
    model.buried |= {uuid, *message.migration_uuids} - staying if message.for_good else set()
    return Released(
        residue_uuid=next(iter(left.get(uuid, {})), None),
        residue_uuids=tuple(sorted([*residues, *staying])),
        extras=consumers.as_message(sum(foreign.values(), Counter())),
    )


def _inconsistent(message: DeleteAllocations) -> list[errors.MoorageError]:
    alone = [name for name in ("migration_uuids", "keep_extras") if getattr(message, name) and not message.for_good]
    wrong = [*alone, *["claim_id"] * (message.unaccepted and message.claim_id is None)]
    return [errors.InvalidRequest(path=f"$.{name}", reason="not without another field") for name in wrong]


def _other_generation(model: Model, uuid: str, named: int | None) -> list[errors.MoorageError]:
    """Return an error if the given generation of a consumer is not the current one."""
    found = model.holders[uuid].generation if uuid in model.holders else None
    conflict = errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=named, found=found)
    return [] if named in (None, found) else [conflict]


def _going(model: Model, message: DeleteAllocations, holder: Holder | None) -> tuple[dict[str, Holder], set[str]]:
    """Return the consumers that are deleted together, and those migrations that stay as residues."""
    uuid = message.consumer_uuid
    going = {} if holder is None else {uuid: holder}
    if not message.for_good:
        return going, set()
    for one in message.migration_uuids:
        if one in model.holders and model.holders[one].migration_of != uuid:
            raise Refused([errors.InvalidRequest(path="$.migration_uuids", reason="it is another's")])
        refuse(_other_generation(model, one, message.migration_generation))
    is_attempt = holder is None or _is_residue(holder)
    for one, other in model.holders.items():
        is_named = one in message.migration_uuids or not _is_residue(other)
        if (is_attempt and _is_residue(other) and other.accepted_by == uuid) or (
            other.migration_of == uuid and is_named
        ):
            going[one] = other
    staying = {
        one
        for one in going.keys() & set(message.migration_uuids)
        if message.leave_residue
        and _is_residue(going[one])
        and going[one].accepted_by not in {*message.guests_gone, *model.buried}
    }
    return {one: other for one, other in going.items() if one not in staying}, staying


def _foreign(model: Model, message: DeleteAllocations, going: Mapping[str, Holder]) -> dict[str, Counter[Pair]]:
    """Return the foreign allocations of an instance and its migrations, without those of residues."""
    uuid, named = message.consumer_uuid, message.claimed_with
    found = {
        one: Counter(consumers.foreign_of(model, other, message))
        for one, other in going.items()
        if one == uuid or not _is_residue(other)
    }
    instance = going.get(uuid)
    moved = next((one for one, other in going.items() if one != uuid and other.claim_id in named), None)
    if instance is not None and moved is not None and instance.claim_id in named:
        # An amount of a pool that both sides use is counted once.
        present = Side(instance.root, consumers.present(model, named[str(instance.claim_id)]))
        parts = _parts(model, instance, going[moved], moved, present)
        found |= {uuid: parts.foreign_on_instance, moved: parts.foreign_on_migration}
    return found


# --- Parts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The allocations of an instance and its migration: the claimed amounts of both sides, and foreign allocations."""

    kept_old: Counter[Pair]
    #: The part of ``kept_old`` that is not counted as the destination's as well.
    beyond_new: Counter[Pair]
    foreign_on_instance: Counter[Pair]
    old: Counter[Pair]
    foreign_on_migration: Counter[Pair]


def _parts(model: Model, holder: Holder, migration: Holder, migration_uuid: str, present: Side) -> Parts:
    """Match the recorded amounts of the source and those of the destination with the allocations of both consumers."""
    source = Side(migration.root, model.located[migration_uuid])
    shared = _shared(model, source, present)
    rest = Counter({one: amount for one, amount in source.amounts.items() if one[0] in shared})
    # The migration has what the destination does not share; a reshape may have moved it.
    old = +consumers.released_amounts_of(model, migration, dict(Counter(source.amounts) - rest))
    # The instance has the rest. Of what both claimed from one provider, they share the smaller amount.
    new, mine = Counter(present.amounts), Counter(holder.held)
    found: list[Counter[Pair]] = []
    parts = [rest & new, new - rest, rest - new]
    for part, later in zip(parts, (parts[1] + parts[2], parts[2], Counter[Pair]()), strict=True):
        free = {one: max(min(amount, part[one]), amount - later[one]) for one, amount in mine.items()}
        side = replace(holder, held=free)
        found.append(+consumers.released_amounts_of(model, side, part, deleted_pools=False))
        mine -= found[-1]
    return Parts(
        kept_old=found[0] + found[2],
        beyond_new=found[2],
        foreign_on_instance=mine,
        old=old,
        foreign_on_migration=Counter(migration.held) - old,
    )


def _migration(model: Model, uuid: str, migration_uuid: str) -> tuple[Holder | None, list[errors.MoorageError]]:
    """Return the migration of an instance, and the errors in it."""
    found = model.holders.get(migration_uuid)
    if found is None or _is_residue(found):
        return None, [errors.ConsumerNotFound(kind="consumer", name=migration_uuid)]
    if found.migration_of != uuid:
        return found, [errors.InvalidRequest(path="$.migration_uuid", reason="it is another's")]
    return found, []


def _is_residue(holder: Holder) -> bool:
    return holder.claim_id is None and holder.accepted_by is not None


def _pools(model: Model, source: Side) -> set[str]:
    """Return the providers that the source uses outside its host's tree."""
    return {one for one in source.providers if one in model.providers} - model.tree(source.root)


def _reshaped_pools(model: Model, parts: Parts, source: Side, present: Side) -> set[str]:
    """Return the providers to which reshapes may have moved amounts of pools of the source."""
    return {one for one, _ in parts.kept_old + parts.old} - model.tree(source.root) - {str(present.root)}


def _shared(model: Model, source: Side, other: Side) -> set[str]:
    """Return the providers whose amount is counted once if both sides use it."""
    return {one for one in other.providers if one in model.providers} - model.tree(source.root)


def _within(amounts: Mapping[Pair, int], providers: Collection[str]) -> Counter[Pair]:
    return Counter({pair: amount for pair, amount in amounts.items() if pair[0] in providers})


def _divided(
    old: Counter[Pair], new: Mapping[Pair, int], shared: Collection[str]
) -> tuple[Counter[Pair], Counter[Pair]]:
    """Return the amounts of the instance and of the migration, from the old and the new amounts."""
    of_both = _within(old, shared)
    return Counter(new) | of_both, old - of_both


def _moved(model: Model, requests: Collection[Mapping[str, ProviderAmounts]]) -> list[errors.MoorageError]:
    """Return an error for each provider whose generation is not the one that a request relies on."""
    return model.stale_generations(consumers.named_in(_still(model, requests))[1])


def _still(model: Model, requests: Collection[Mapping[str, ProviderAmounts]]) -> list[dict[str, ProviderAmounts]]:
    """Return requests without deleted providers."""
    return [{at: part for at, part in request.items() if at in model.providers} for request in requests]
