"""Test that the reasons of default filters name the part of the request that a host does not meet."""

from typing import Any

import pytest

from filters.aggregates import AggregatesFilter
from filters.destination import DestinationFilter
from filters.resources import ResourcesFilter
from filters.traits import TraitsFilter
from moorage.ids import derived
from moorage.model import Destination, ResourceGroup
from moorage.plugin import Filter
from moorage.testing import host, inventory, request

ROOT, POOL, OTHER, MORE = (derived("tests", "aggregate", number) for number in range(4))
HOST = host(
    0,
    aggregates=frozenset({ROOT, POOL}),
    root_aggregates=frozenset({ROOT}),
    traits=frozenset({"CUSTOM_A", "CUSTOM_ROOT"}),
    root_traits=frozenset({"CUSTOM_ROOT"}),
)


def check(plugin: Filter, asked: dict[str, Any], why: str) -> None:
    asking = request(**asked)

    assert not plugin.passes(HOST, asking)
    assert plugin.why(HOST, asking) == why


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"root_member_of": ((ROOT, OTHER), (OTHER,))}, f"is not in aggregate {OTHER}"),
        ({"root_member_of": ((OTHER, MORE),)}, f"is in none of the aggregates {OTHER}, {MORE}"),
        ({"root_not_member_of": (ROOT, OTHER)}, f"is in aggregate {ROOT}, where it must not be"),
        ({"groups": {"": ResourceGroup(member_of=((POOL,), (MORE,)))}}, f"is not in aggregate {MORE}"),
        ({"groups": {"": ResourceGroup(not_member_of=(POOL,))}}, f"is in aggregate {POOL}, where it must not be"),
        ({"groups": {"": ResourceGroup(in_tree=OTHER)}}, f"has no provider {OTHER}"),
    ],
)
def test_missing_and_forbidden_aggregates_and_trees_are_named(asked: dict[str, Any], why: str) -> None:
    check(AggregatesFilter({}), asked, why)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"ignore_hosts": ("HOST0",)}, "is one that the request leaves out"),
        ({"force_hosts": ("host1",)}, "is none of the hosts that the request insists on"),
        ({"force_nodes": ("node1",)}, "has none of the nodes that the request insists on"),
        (
            {"requested_destination": Destination(host="host1")},
            "is not the host host1 that the request wants to go to",
        ),
        (
            {"requested_destination": Destination(host="host0", node="node1")},
            "has not the node node1 that the request wants to go to",
        ),
        (
            {"requested_destination": Destination(host="host0", node="node0", node_uuid=OTHER)},
            f"has not the node {OTHER} that the request wants to go to",
        ),
        (
            {"requested_destination": Destination(cell=derived("tests", "cell"))},
            "is in another cell than the request may go to",
        ),
    ],
)
def test_the_part_of_the_request_that_excludes_a_host_is_named(asked: dict[str, Any], why: str) -> None:
    check(DestinationFilter({}), asked, why)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"root_required": ("CUSTOM_ROOT", "CUSTOM_A")}, "has not CUSTOM_A on its root"),
        ({"root_forbidden": ("CUSTOM_ROOT", "CUSTOM_A")}, "has CUSTOM_ROOT on its root, which it must not"),
        ({"groups": {"": ResourceGroup(required=("CUSTOM_A", "CUSTOM_B"))}}, "has not CUSTOM_B"),
        ({"groups": {"_G": ResourceGroup(any_of=(("CUSTOM_B", "CUSTOM_C"),))}}, "has none of CUSTOM_B, CUSTOM_C"),
        ({"groups": {"": ResourceGroup(forbidden=("CUSTOM_A",))}}, "has CUSTOM_A, which it must not"),
        (
            {"groups": {"": ResourceGroup(required=("CUSTOM_B",)), "_G": ResourceGroup(required=("CUSTOM_B",))}},
            "has not CUSTOM_B",
        ),
        (
            {"root_required": ("CUSTOM_B",), "groups": {"": ResourceGroup(required=("CUSTOM_C",))}},
            "has not CUSTOM_B on its root; has not CUSTOM_C",
        ),
    ],
)
def test_missing_and_forbidden_traits_are_named(asked: dict[str, Any], why: str) -> None:
    check(TraitsFilter({}), asked, why)


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (inventory(8, used=6), "has not enough room: VCPU, 3 asked, 2 free"),
        (inventory(8, max_unit=2), "has VCPU, but cannot give 3 at once (8 free)"),
        (inventory(8, min_unit=4), "has VCPU, but cannot give 3 at once (8 free)"),
        (inventory(8, step_size=2), "has VCPU, but cannot give 3 at once (8 free)"),
        ([inventory(2), inventory(2)], "has VCPU, but cannot give 3 at once (4 free)"),
    ],
)
def test_a_host_with_room_that_cannot_give_it_at_once_is_not_short_of_it(held: Any, why: str) -> None:
    refusing = host(0, inventories={"VCPU": held, "MEMORY_MB": inventory(2048)})
    assert not ResourcesFilter({}).passes(refusing, request(vcpus=3))
    assert ResourcesFilter({}).why(refusing, request(vcpus=3)) == why


def test_amounts_that_are_lacking_are_named_before_those_that_are_not_given_at_once() -> None:
    refusing = host(0, inventories={"VCPU": inventory(8, max_unit=2), "MEMORY_MB": inventory(64)})
    assert ResourcesFilter({}).why(refusing, request(vcpus=3)) == (
        "has not enough room: MEMORY_MB, 1,024 asked, 64 free; has VCPU, but cannot give 3 at once (8 free)"
    )


@pytest.mark.parametrize("policy", [{"group_policy": "isolate"}, {"group_policy": "none", "apart": (("1", "2"),)}])
@pytest.mark.parametrize(("flat", "held"), [(True, inventory(8)), (False, [inventory(8), inventory(1, used=1)])])
def test_groups_that_find_too_few_providers_are_not_explained_as_a_lack_of_room(
    policy: dict[str, Any], flat: bool, held: Any
) -> None:
    refusing = host(0, flat=flat, inventories={"VCPU": inventory(16), "MEMORY_MB": inventory(1024), "VGPU": held})
    asking = request(groups={suffix: ResourceGroup(resources={"VGPU": 1}) for suffix in ("1", "2")}, **policy)
    assert not ResourcesFilter({}).passes(refusing, asking)
    assert ResourcesFilter({}).why(refusing, asking) == "has too few providers for groups that must not share one"
