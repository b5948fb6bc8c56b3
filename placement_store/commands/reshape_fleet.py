"""Reshape many hosts, one transaction each: all are planned first, and those that are already done are skipped."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from moorage import errors, ids
from moorage.cli.lists import MessageClient
from moorage.messages import PlanReshape, ReshapeByInstructions
from moorage.model import ReshapePlan, ResourceProvider
from placement_store.commands.placement_command import find
from placement_store.commands.reshape_file import Entry, HostReshape

#: The states of an entry.
PLANNED, REFUSED, NOT_BEGUN = "planned", "refused", "not begun"
UNKNOWN, DONE, MOVED_BEFORE = "unknown", "done", "moved before"
#: Errors that end the run: the file is not at fault, and the other hosts would fail in the same way.
_STOPPING = (errors.Unavailable, errors.TryAgain, errors.InternalError)

#: The existing providers of an entry, by the uuid or name that it uses.
Named = Mapping[str, ResourceProvider]


@dataclass(frozen=True, slots=True)
class EntryOutcome:
    """The outcome of an entry so far; ``before`` has its providers as they were when it was planned."""

    entry: Entry
    state: str
    before: Named = field(default_factory=dict)
    plan: ReshapePlan | None = None
    reason: str | None = None


# --- Planning -------------------------------------------------------------------------------------------------------


def plan_entry(placement: MessageClient, entry: Entry, search_steps: int, *, again: bool) -> EntryOutcome:
    """Plan an entry; the outcome is planned, refused or moved before.

    :param again: plan it even if it seems to have been carried out before.
    :raises Unavailable: the call failed.
    """
    before: dict[str, ResourceProvider] = {}
    for named in entry.reshape.named:
        with suppress(errors.ProviderNotFound):
            before[named] = find(placement, named)
    # Repeating the same file must not move the same amounts twice.
    if not again and (state := _state_by_totals(entry.reshape, before)) is not None:
        reason = "the entry may be done already, because the destination has this amount; see --again"
        return EntryOutcome(entry, state, before, reason=reason if state == REFUSED else None)
    try:
        plan = placement.call(PlanReshape(**_request_fields(entry, search_steps)))
    except _STOPPING:
        raise
    except errors.MoorageError as refusal:
        return EntryOutcome(entry, REFUSED, before, reason=str(refusal))
    if appeared := plan.inventories.keys() - plan.created.keys() - {known.uuid for known in before.values()}:
        # Neither its inventories before the reshape are known, nor whether the entry has been carried out.
        reason = f"provider {min(appeared)} was created meanwhile: run the same file again"
        return EntryOutcome(entry, REFUSED, before, reason=reason)
    return EntryOutcome(entry, PLANNED, before, plan)


def _state_by_totals(reshape: HostReshape, before: Named) -> str | None:
    """Compare the net change of an entry to each inventory with the present totals; null if it is not done yet.

    It is moved before if only this move explains the totals: a source lacks the amount, or the file creates all
    targets. It is refused if the targets have at least the amounts to be moved for another reason, too. The store's
    stored answers would show whether the entry was carried out, but they expire; the totals do not.
    """
    totals = Counter(
        {
            (provider.uuid, class_name): inventory.total
            for provider in before.values()
            for class_name, inventory in provider.inventories.items()
        }
    )
    net: Counter[tuple[str, str]] = Counter()
    for move in reshape.instructions:
        for class_name, amount in move.moved_resources.items():
            net[_key(move.from_resource_provider, before), class_name] -= amount
            net[_key(move.to_resource_provider, before), class_name] += amount
    gained, lost = +net, -net
    if not gained or not gained <= totals:
        return None
    described = {_key(child.uuid or child.name, before) for child in reshape.providers}
    is_proof = not lost <= totals or all(provider in described for provider, _ in gained)
    return MOVED_BEFORE if is_proof else REFUSED


def _key(named: str, before: Named) -> str:
    """Return one key for a provider, whether it was named by uuid or by name."""
    return before[named].uuid if named in before else named


def _request_fields(entry: Entry, search_steps: int) -> dict[str, Any]:
    return {
        "instructions": entry.reshape.instructions,
        "providers": entry.reshape.providers,
        "dealt": entry.reshape.allocations,
        "search_steps": search_steps,
    }


# --- Carrying out ---------------------------------------------------------------------------------------------------


def request(outcome: EntryOutcome, search_steps: int) -> ReshapeByInstructions:
    """Build the message that carries out a plan.

    Its request id is derived from the entry and from the generations at planning: two operators who start from the same
    state carry it out once; after the amounts were moved back, the same entry is another request. It names the totals
    at planning, too: a claim changes the generations, and the same amounts must not be moved twice even then.
    """
    seen = sorted(f"{known.uuid}={known.generation}" for known in outcome.before.values())
    request_id = ids.derived("reshape", outcome.entry.reshape.digest(), search_steps, *seen)
    totals: dict[str, dict[str, int]] = {}
    for move in outcome.entry.reshape.instructions:
        for named in (move.from_resource_provider, move.to_resource_provider):
            inventories = outcome.before[named].inventories if named in outcome.before else {}
            present = {name: inventories[name].total if name in inventories else 0 for name in move.moved_resources}
            totals.setdefault(named, {}).update(present)
    fields = _request_fields(outcome.entry, search_steps)
    return ReshapeByInstructions(request_id=request_id, totals=totals, **fields)


def carry_out(
    planned: Sequence[EntryOutcome], reshape: Callable[[EntryOutcome], ReshapePlan], *, skip_refused: bool
) -> Iterator[EntryOutcome]:
    """Carry out planned entries, one after the other, and yield the outcome of each.

    :param reshape: carries out one of them and returns the changes made.
    :param skip_refused: go on after a refused entry.
    """
    stopped = False
    for outcome in planned:
        result = replace(outcome, state=NOT_BEGUN) if stopped else _attempt(outcome, reshape)
        stopped |= result.state == UNKNOWN or (result.state == REFUSED and not skip_refused)
        yield result


def _attempt(outcome: EntryOutcome, reshape: Callable[[EntryOutcome], ReshapePlan]) -> EntryOutcome:
    try:
        return replace(outcome, state=DONE, plan=reshape(outcome))
    except _STOPPING as fault:
        return replace(outcome, state=UNKNOWN, reason=str(fault))
    except errors.MoorageError as refusal:
        return replace(outcome, state=REFUSED, reason=str(refusal))
    except KeyboardInterrupt:
        return replace(outcome, state=UNKNOWN, reason="interrupted; run the same file again to continue")
