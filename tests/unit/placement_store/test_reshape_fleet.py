"""Test the reshape of a fleet: hosts that were moved before are recognised, and a refused host stops the rest."""

from typing import Any

import pytest
from msgspec import structs

from moorage import errors
from moorage.ids import derived
from moorage.messages import GetResourceProvider, ListResourceProviders, PlanReshape
from moorage.messages.wire import Message
from moorage.model import ChildProvider, Inventory, MoveInstruction, ReshapePlan, ResourceProvider
from placement_store.commands import reshape_fleet
from placement_store.commands.reshape_file import Entry, HostReshape
from placement_store.commands.reshape_fleet import (
    DONE,
    MOVED_BEFORE,
    NOT_BEGUN,
    PLANNED,
    REFUSED,
    UNKNOWN,
    EntryOutcome,
)


class FakePlacement:
    """A placement that has the given providers, and accepts every plan unless `refusal` is set."""

    def __init__(self, **totals: dict[str, int]) -> None:
        self.generation = 1
        self.totals = totals
        self.refusal: errors.MoorageError | None = None
        self.plan = ReshapePlan()

    def provider(self, name: str) -> ResourceProvider:
        inventories = {class_name: Inventory(total=total) for class_name, total in self.totals[name].items()}
        uuid = derived("fleet", name)
        return ResourceProvider(
            uuid=uuid, name=name, generation=self.generation, root_provider_uuid=uuid, inventories=inventories
        )

    def call(self, message: Message[Any]) -> Any:
        answer: Any
        match message:
            case ListResourceProviders(name=str(name)):
                answer = [self.provider(name)] if name in self.totals else []
            case GetResourceProvider(uuid=uuid):
                answer = next(self.provider(name) for name in self.totals if derived("fleet", name) == uuid)
            case PlanReshape():
                if self.refusal is not None:
                    raise self.refusal
                answer = self.plan
            case _:
                raise AssertionError(message)
        return answer


def entry(*moves: tuple[str, str, dict[str, int]], created: tuple[str, ...] = (), line: int = 1) -> Entry:
    return Entry(
        line,
        HostReshape(
            instructions=tuple(
                MoveInstruction(from_resource_provider=source, to_resource_provider=target, moved_resources=resources)
                for source, target, resources in moves
            ),
            providers=tuple(ChildProvider(name=name, parent="host") for name in created),
        ),
    )


def state(placement: FakePlacement, what: Entry, *, again: bool = False) -> str:
    return reshape_fleet.plan_entry(placement, what, 1000, again=again).state


EVERYTHING = entry(("host", "gpu0", {"VGPU": 4}), ("host", "gpu1", {"VGPU": 4}), created=("gpu0", "gpu1"))
HALF = entry(("host", "gpu0", {"VGPU": 4}), created=("gpu0",))
HALF_TO_ONE_THAT_IS_THERE = entry(("host", "gpu0", {"VGPU": 4}))


@pytest.mark.parametrize(
    ("totals", "what", "expected"),
    [
        ({"host": {"VGPU": 8}}, EVERYTHING, PLANNED),
        ({"host": {"VCPU": 8}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}, EVERYTHING, MOVED_BEFORE),
        ({"host": {"VGPU": 8}, "gpu0": {}, "gpu1": {}}, EVERYTHING, PLANNED),
        # Only a part was moved: the store decides whether the rest can be moved.
        ({"host": {"VGPU": 4}, "gpu0": {"VGPU": 4}}, EVERYTHING, PLANNED),
        ({"host": {"VGPU": 8}}, HALF, PLANNED),
        ({"host": {"VGPU": 4}, "gpu0": {"VGPU": 4}}, HALF, MOVED_BEFORE),
        ({"host": {}, "gpu0": {"VGPU": 4}}, HALF_TO_ONE_THAT_IS_THERE, MOVED_BEFORE),
        # The inventory was either moved before, or there from the beginning.
        ({"host": {"VGPU": 4}, "gpu0": {"VGPU": 4}}, HALF_TO_ONE_THAT_IS_THERE, REFUSED),
        ({"host": {"VGPU": 4}, "gpu0": {"VGPU": 3}}, HALF_TO_ONE_THAT_IS_THERE, PLANNED),
        ({}, EVERYTHING, PLANNED),
    ],
)
def test_a_host_that_was_moved_before_is_recognised_by_its_inventories(
    totals: dict[str, dict[str, int]], what: Entry, expected: str
) -> None:
    assert state(FakePlacement(**totals), what) == expected
    assert state(FakePlacement(**totals), what, again=True) == PLANNED


def test_a_host_whose_child_was_created_between_two_reads_is_refused() -> None:
    placement = FakePlacement(host={"VGPU": 8})
    child = derived("fleet", "gpu0")
    placement.plan = ReshapePlan(inventories={derived("fleet", "host"): {}, child: {"VGPU": Inventory(total=4)}})
    outcome = reshape_fleet.plan_entry(placement, HALF, 1000, again=False)
    assert (outcome.state, outcome.plan) == (REFUSED, None)
    assert outcome.reason == f"provider {child} was created meanwhile: run the same file again"

    placement.plan = structs.replace(placement.plan, created={child: "gpu0"})
    assert state(placement, HALF) == PLANNED


def test_a_chain_of_moves_is_judged_by_its_ends() -> None:
    chain = entry(("host", "numa0", {"VGPU": 4}), ("numa0", "gpu0", {"VGPU": 4}), created=("numa0", "gpu0"))
    assert state(FakePlacement(host={}, numa0={}, gpu0={"VGPU": 4}), chain) == MOVED_BEFORE
    assert state(FakePlacement(host={}, numa0={"VGPU": 4}), chain) == PLANNED


def test_a_provider_named_once_by_uuid_and_once_by_name_is_one() -> None:
    mixed = entry(("host", "gpu0", {"VGPU": 4}), (derived("fleet", "host"), "gpu0", {"VGPU": 4}))
    assert state(FakePlacement(host={"VGPU": 4}, gpu0={"VGPU": 8}), mixed) == MOVED_BEFORE


def test_a_refusal_concerns_one_host_and_an_unavailable_store_all_hosts() -> None:
    placement = FakePlacement(host={"VGPU": 8})
    placement.refusal = errors.ImpossibleDeal(consumer_uuid="c", provider_uuid="p", reason="too big")
    outcome = reshape_fleet.plan_entry(placement, EVERYTHING, 1000, again=False)
    assert (outcome.state, outcome.reason) == (REFUSED, str(placement.refusal))
    placement.refusal = errors.StoreUnavailable(schema="main", reason="gone")
    with pytest.raises(errors.StoreUnavailable):
        reshape_fleet.plan_entry(placement, EVERYTHING, 1000, again=False)


def test_an_order_is_repeated_with_the_same_request_id_only_in_the_same_state() -> None:
    def request_id() -> str:
        return reshape_fleet.request(reshape_fleet.plan_entry(placement, EVERYTHING, 10, again=False), 10).request_id

    placement = FakePlacement(host={"VGPU": 8})
    first = request_id()
    assert request_id() == first
    placement.generation += 1
    assert request_id() != first


class Refusing:
    """Reshapes each host except one."""

    def __init__(self, line: int, fault: BaseException) -> None:
        self.line, self.fault = line, fault
        self.asked: list[int] = []

    def __call__(self, outcome: EntryOutcome) -> ReshapePlan:
        self.asked.append(outcome.entry.line)
        if outcome.entry.line == self.line:
            raise self.fault
        return ReshapePlan()


PLAN = [EntryOutcome(entry(("host", "gpu", {"VGPU": 1}), line=line), PLANNED) for line in (1, 2, 3)]
IMPOSSIBLE = errors.ImpossibleDeal(consumer_uuid="c", provider_uuid="p", reason="too big")
UNANSWERED = errors.NoReply(topic="placement", method="reshape_by_instructions", seconds=60.0)


@pytest.mark.parametrize(
    ("fault", "skip_refused", "states"),
    [
        (IMPOSSIBLE, False, [DONE, REFUSED, NOT_BEGUN]),
        (IMPOSSIBLE, True, [DONE, REFUSED, DONE]),
        # A store that does not answer for one host would not answer for the next: going on would only take time.
        (UNANSWERED, True, [DONE, UNKNOWN, NOT_BEGUN]),
        (KeyboardInterrupt(), True, [DONE, UNKNOWN, NOT_BEGUN]),
    ],
)
def test_a_refused_host_stops_the_rest_unless_it_is_to_be_skipped(
    fault: BaseException, skip_refused: bool, states: list[str]
) -> None:
    reshape = Refusing(2, fault)
    outcomes = list(reshape_fleet.carry_out(PLAN, reshape, skip_refused=skip_refused))
    assert [outcome.state for outcome in outcomes] == states
    assert reshape.asked == [line for line, state in zip((1, 2, 3), states, strict=True) if state != NOT_BEGUN]
