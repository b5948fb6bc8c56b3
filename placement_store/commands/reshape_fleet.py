"""Reshaping many hosts, one transaction each: all are looked at first, and what was moved before is told apart."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moorage import errors, ids
from moorage.messages import PlanReshape, ReshapeByInstructions
from moorage.model import ReshapePlan, ResourceProvider
from placement_store.commands.named_providers import find_if_there
from placement_store.commands.reshape_file import Entry, HostReshape

if TYPE_CHECKING:
    from placement_store.in_process import PlacementClient

#: What may become of an entry.
PLANNED, REFUSED, NOT_BEGUN, UNKNOWN, DONE, MOVED_BEFORE = (
    "planned",
    "refused",
    "not begun",
    "unknown",
    "done",
    "moved before",
)
#: Whoever must act on these is not the writer of the file, and the rest of the fleet would fare alike.
_STOPPING = (errors.Unavailable, errors.TryAgain, errors.InternalError)

#: The providers that an entry names, by the name used; null where there is none.
Named = Mapping[str, ResourceProvider | None]


@dataclass(frozen=True, slots=True)
class EntryOutcome:
    """What has become of an entry so far; ``before`` is what was there when it was looked at."""

    entry: Entry
    state: str
    before: Named = field(default_factory=dict)
    plan: ReshapePlan | None = None
    reason: str | None = None


# --- Looking --------------------------------------------------------------------------------------------------------


def look(placement: "PlacementClient", entry: Entry, search_steps: int, *, again: bool) -> EntryOutcome:
    """Return what would become of an entry now: planned, refused or moved before.

    :param again: plan it even where it looks as if it had been done before.
    :raises Unavailable: nobody could say.
    """
    before = {named: find_if_there(placement, named) for named in entry.reshape.named}
    if not again:
        change = _NetChange(entry.reshape, before)
        if change.has_arrived and change.is_proof:
            return EntryOutcome(entry, MOVED_BEFORE, before)
        if change.has_arrived:
            reason = "what is to be moved may have been moved before, since as much of it is there; see --again"
            return EntryOutcome(entry, REFUSED, before, reason=reason)
    try:
        plan = placement.call(PlanReshape(**_words(entry, search_steps)))
    except _STOPPING:
        raise
    except errors.MoorageError as refusal:
        return EntryOutcome(entry, REFUSED, before, reason=str(refusal))
    return EntryOutcome(entry, PLANNED, before, plan)


class _NetChange:
    """What an entry adds to each inventory and takes from it, held against what is there.

    An answer that the store keeps would tell for as long as it is kept; what is there tells for ever.
    """

    def __init__(self, reshape: HostReshape, before: Named) -> None:
        net: Counter[tuple[str, str]] = Counter()
        for move in reshape.instructions:
            for class_name, amount in move.moved_resources.items():
                net[_key(move.from_resource_provider, before), class_name] -= amount
                net[_key(move.to_resource_provider, before), class_name] += amount
        self._gained = {place: amount for place, amount in net.items() if amount > 0}
        self._lost = {place: -amount for place, amount in net.items() if amount < 0}
        self._described = {_key(child.uuid or child.name, before) for child in reshape.providers}
        self._totals = {
            (provider.uuid, class_name): inventory.total
            for provider in before.values()
            if provider is not None
            for class_name, inventory in provider.inventories.items()
        }

    @property
    def has_arrived(self) -> bool:
        """Whether as much as is to be moved is where it is to go."""
        return bool(self._gained) and all(self._total(place) >= amount for place, amount in self._gained.items())

    @property
    def is_proof(self) -> bool:
        """Whether that can be so only because it was moved: it was taken away, or the file itself creates its place."""
        is_taken = any(self._total(place) < amount for place, amount in self._lost.items())
        return is_taken or all(provider in self._described for provider, _ in self._gained)

    def _total(self, place: tuple[str, str]) -> int:
        return self._totals.get(place, 0)


def _key(named: str, before: Named) -> str:
    """Return what a provider goes by, whether it was named by uuid or by name."""
    known = before.get(named)
    return named if known is None else known.uuid


def _words(entry: Entry, search_steps: int) -> dict[str, Any]:
    return {
        "instructions": entry.reshape.instructions,
        "providers": entry.reshape.providers,
        "dealt": entry.reshape.allocations,
        "search_steps": search_steps,
    }


# --- Doing ----------------------------------------------------------------------------------------------------------


def request(outcome: EntryOutcome, search_steps: int) -> ReshapeByInstructions:
    """Return the message that does what was planned.

    Its request id follows from what is to be done and from the generations that were seen: two who begin at the same
    state do it once; ordered again after it was moved back, it is another request.
    """
    seen = sorted(f"{known.uuid}={known.generation}" for known in outcome.before.values() if known is not None)
    request_id = ids.derived("reshape", outcome.entry.reshape.digest(), search_steps, *seen)
    return ReshapeByInstructions(request_id=request_id, **_words(outcome.entry, search_steps))


def carry_out(
    planned: Sequence[EntryOutcome], reshape: Callable[[EntryOutcome], ReshapePlan], *, skip_refused: bool
) -> Iterator[EntryOutcome]:
    """Do what was planned, one entry after the other, and yield what has become of each.

    :param reshape: does one of them and returns what was done.
    :param skip_refused: go on after one that is refused.
    """
    stopped = False
    for outcome in planned:
        if stopped:
            yield replace(outcome, state=NOT_BEGUN)
            continue
        result = _attempt(outcome, reshape)
        stopped = result.state == UNKNOWN or (result.state == REFUSED and not skip_refused)
        yield result


def _attempt(outcome: EntryOutcome, reshape: Callable[[EntryOutcome], ReshapePlan]) -> EntryOutcome:
    try:
        return replace(outcome, state=DONE, plan=reshape(outcome))
    except _STOPPING as fault:
        return replace(outcome, state=UNKNOWN, reason=str(fault))
    except errors.MoorageError as refusal:
        return replace(outcome, state=REFUSED, reason=str(refusal))
    except KeyboardInterrupt:
        return replace(outcome, state=UNKNOWN, reason="interrupted; run the same file again to go on")
