"""Test reshapes from a file on a real store: two operators with the same file move its amounts once."""

import pytest
from support.placement_store.builders import Store
from support.placement_store.reshape_builders import Move, Reshaping, child, dealt, instructions

from moorage import errors, ids
from placement_store.commands import reshape_fleet
from placement_store.commands.reshape_file import Entry, HostReshape
from placement_store.commands.reshape_fleet import PLANNED, EntryOutcome


@pytest.fixture
def node(store: Store) -> str:
    return store.provider("node", VCPU=16, VGPU=8)


def planned(reshaping: Reshaping, *moves: Move, again: bool = False) -> EntryOutcome:
    entry = Entry(1, HostReshape(instructions=instructions(moves), providers=(child("gpu", "node"),)))
    outcome = reshape_fleet.plan_entry(reshaping.dispatcher, entry, 1000, again=again)
    assert outcome.state == PLANNED, outcome.reason
    return outcome


@pytest.mark.parametrize("again", [False, True])
def test_a_part_is_moved_once_by_two_runs_of_one_file_though_a_claim_is_made_between_their_plans(
    store: Store, reshaping: Reshaping, node: str, again: bool
) -> None:
    part = ("node", {"VGPU": 4}, "gpu")
    first = planned(reshaping, part, again=again)
    store.claim(ids.fresh(), {node: {"VCPU": 1}})
    second = planned(reshaping, part, again=again)

    done = reshaping.dispatcher.call(reshape_fleet.request(first, 1000))
    with pytest.raises(errors.InvalidState, match="VGPU"):
        reshaping.dispatcher.call(reshape_fleet.request(second, 1000))

    assert reshaping.dispatcher.call(reshape_fleet.request(first, 1000)) == done, "a repetition gets the stored answer"
    assert store.get(node).inventories["VGPU"].total == 4
    assert store.get(store.uuid_of("gpu")).inventories["VGPU"].total == 4


def test_a_provider_may_be_named_by_a_uuid_in_another_spelling_as_in_other_commands(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    consumer, spelt = ids.fresh(), node.upper()
    store.claim(consumer, {node: {"VGPU": 2}})
    entry = Entry(
        1,
        HostReshape(
            instructions=instructions([(spelt, {"VGPU": 4}, "gpu")]),
            providers=(child("gpu", node.replace("-", "")),),
            allocations=(dealt(consumer, spelt, "gpu", VGPU=2),),
        ),
    )
    outcome = reshape_fleet.plan_entry(reshaping.dispatcher, entry, 1000, again=False)
    assert (outcome.state, outcome.reason) == (PLANNED, None)
    reshaping.dispatcher.call(reshape_fleet.request(outcome, 1000))
    assert store.held(consumer) == {store.uuid_of("gpu"): {"VGPU": 2}}
