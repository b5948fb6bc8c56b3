"""Test when two positions of the search for candidates count as the same, up to a swap of equal providers."""

from collections.abc import Hashable
from typing import Any

from support.placement_store.candidate_strategies import row

from moorage.model import ResourceGroup, ResourceRequest
from placement_store.candidates import CandidateProvider, HostTree
from placement_store.candidates.problem import SearchRequest, compile_problem
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.state import assign, first_state, signature

FIRST = "_first"
TAKEN = ResourceGroup(resources={"VGPU": 1})


def device(uuid: str, parent: str = "host", *, size: int = 1, traits: tuple[str, ...] = ()) -> CandidateProvider:
    return CandidateProvider(uuid, "host", parent, {"VGPU": row(size)}, frozenset(traits))


def after_taking(
    uuid: str, devices: list[CandidateProvider], same_subtree: Any = (), **groups: ResourceGroup
) -> Hashable:
    """Return the signature of the position in which a device serves the first group, and other groups are open."""
    tree = HostTree([CandidateProvider("host", "host", None, {"VCPU": row(8)}), *devices])
    request = ResourceRequest(groups={FIRST: TAKEN, **groups}, group_policy="none", same_subtree=same_subtree)
    problem = compile_problem(tree, SearchRequest(request), None, SearchBudget())
    group = next(number for number, variable in enumerate(problem.variables) if variable.suffix == FIRST)
    place = next(number for number, provider in enumerate(problem.providers) if provider.uuid == uuid)
    return signature(problem, assign(problem, first_state(problem), group, place))


def test_it_does_not_matter_which_of_several_equal_devices_is_taken() -> None:
    devices = [device(name, size=3) for name in "abc"]
    other = ResourceGroup(resources={"VGPU": 2})

    assert after_taking("a", devices, _other=other) == after_taking("c", devices, _other=other)


def test_room_beyond_the_remaining_amounts_does_not_matter() -> None:
    devices = [device("large", size=100), device("larger", size=200)]
    other = ResourceGroup(resources={"VGPU": 2})

    assert after_taking("large", devices, _other=other) == after_taking("larger", devices, _other=other)


def test_it_matters_how_much_room_is_left() -> None:
    devices = [device("a", size=4), device("b", size=5)]
    others = {"_1": ResourceGroup(resources={"VGPU": 2}), "_2": ResourceGroup(resources={"VGPU": 2})}

    # Either device can still serve either group, but the smaller one cannot serve both after the first group.
    assert after_taking("a", devices, **others) != after_taking("b", devices, **others)


def test_it_matters_which_groups_can_still_be_served() -> None:
    devices = [device("fast", traits=("CUSTOM_FAST",)), device("slow"), device("slower")]
    groups = {
        "_1": ResourceGroup(resources={"VGPU": 1}, required=("CUSTOM_FAST",)),
        "_2": ResourceGroup(resources={"VGPU": 1}, forbidden=("CUSTOM_FAST",)),
    }

    assert after_taking("slow", devices, **groups) == after_taking("slower", devices, **groups)
    assert after_taking("slow", devices, **groups) != after_taking("fast", devices, **groups)


def test_it_matters_which_traits_of_the_unsuffixed_group_can_still_be_covered() -> None:
    devices = [device("a", traits=("CUSTOM_A",)), device("b", traits=("CUSTOM_B",)), device("c", traits=("CUSTOM_B",))]
    unsuffixed = {"": ResourceGroup(resources={"VCPU": 1, "VGPU": 1}, any_of=(("CUSTOM_A",),))}

    assert after_taking("b", devices, **unsuffixed) == after_taking("c", devices, **unsuffixed)
    assert after_taking("a", devices, **unsuffixed) != after_taking("b", devices, **unsuffixed)


def test_ancestry_matters_as_long_as_a_subtree_has_no_root() -> None:
    devices = [device("upper"), device("lower", "upper"), device("aside"), device("beside")]
    groups = {"_1": TAKEN, "_2": TAKEN}

    def after(uuid: str, same_subtree: Any) -> Hashable:
        return after_taking(uuid, devices, same_subtree, **groups)

    together = (("_1", "_2"),)
    assert after("aside", together) == after("beside", together)
    assert after("aside", together) != after("lower", together)
