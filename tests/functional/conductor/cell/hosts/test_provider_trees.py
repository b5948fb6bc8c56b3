"""Test that a cell forwards messages about the providers of hosts between its agents and the placement role."""

from typing import Any

import pytest
from support.conductor.builders import FakePlacement, World, node

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    Ensured,
    EnsureTrait,
    ListProviderTrees,
    ListProviderTreesInCell,
    ProvidersReported,
    ReportProviders,
    ReportProviderTree,
    ReshapeByInstructions,
    ReshapeProviderTree,
)
from moorage.messages.wire import Message
from moorage.model import ChildProvider, MoveInstruction, ProviderReport, ReshapePlan, ResourceProvider

TREE = ResourceProvider(uuid=node("a"), name="a", generation=4, root_provider_uuid=node("a"))
MOVE = MoveInstruction(from_resource_provider="a", moved_resources={"VGPU": 4}, to_resource_provider="a_gpu")


class Placement(FakePlacement):
    """Records all messages, and answers with recognisable values."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message[Any]] = []

    @serves(ListProviderTrees)
    def list_provider_trees(self, message: ListProviderTrees) -> list[ResourceProvider]:
        self.messages.append(message)
        return [TREE]

    @serves(ReportProviders)
    def report_providers(self, message: ReportProviders) -> ProvidersReported:
        self.messages.append(message)
        if message.providers and message.providers[0].generation == 3:
            raise errors.ProviderGenerationConflict(provider_uuid=node("a"), named=3, found=4)
        return ProvidersReported(generations={node("a"): 5})

    @serves(EnsureTrait)
    def ensure_trait(self, message: EnsureTrait) -> Ensured:
        self.messages.append(message)
        return Ensured(created=True)

    @serves(ReshapeByInstructions)
    def reshape_by_instructions(self, message: ReshapeByInstructions) -> ReshapePlan:
        self.messages.append(message)
        return ReshapePlan(created={ids.derived("gpu"): "a_gpu"})


@pytest.fixture
def placement(world: World) -> Placement:
    return world.replace(Placement())


def test_a_report_and_its_answer_are_forwarded_unchanged(world: World, placement: Placement) -> None:
    provider = ProviderReport(uuid=node("a"), name="a", generation=4)
    message = ReportProviderTree(request_id=ids.fresh(), agent="agent", providers=(provider,), gone=(node("b"),))

    answer = world.cell_call(message)

    assert answer.generations == {node("a"): 5}
    assert placement.messages == [
        ReportProviders(request_id=message.request_id, providers=(provider,), gone=(node("b"),)),
    ]


def test_a_generation_conflict_is_forwarded_to_the_agent(world: World, placement: Placement) -> None:
    stale = ProviderReport(uuid=node("a"), name="a", generation=3)

    with pytest.raises(errors.ProviderGenerationConflict) as caught:
        world.cell_call(ReportProviderTree(request_id=ids.fresh(), agent="agent", providers=(stale,)))

    assert (caught.value.named, caught.value.found) == (3, 4)


def test_trees_are_read_from_the_placement_role(world: World, placement: Placement) -> None:
    assert world.cell_call(ListProviderTreesInCell(uuids=(node("a"),))) == [TREE]
    assert placement.messages == [ListProviderTrees(uuids=(node("a"),))]


def test_a_reshape_keeps_its_request_id_and_the_traits_of_its_children_are_created_before_it(
    world: World, placement: Placement
) -> None:
    child = ChildProvider(name="a_gpu", parent="a", traits=("CUSTOM_TESLA", "HW_GPU_API_VULKAN"))
    message = ReshapeProviderTree(request_id=ids.fresh(), agent="agent", instructions=(MOVE,), providers=(child,))

    plan = world.cell_call(message)
    again = world.cell_call(message)

    assert plan == again == ReshapePlan(created={ids.derived("gpu"): "a_gpu"})
    first, *others = placement.messages
    assert isinstance(first, EnsureTrait)
    assert first.name == "CUSTOM_TESLA"
    reshape = ReshapeByInstructions(request_id=message.request_id, instructions=(MOVE,), providers=(child,))
    expected: list[Message[Any]] = [reshape, first, reshape]
    assert others == expected, "the repetition has the same request id for the placement role"
