"""Test that extra specs become resource groups, and that invalid ones are refused with their path."""

from typing import Any

import pytest
from support.scheduler.worded_requests import asked, group, narrowed

from moorage import errors
from moorage.ids import derived
from moorage.model import RequestSpec, ResourceGroup

AGGREGATE, OTHER = derived("tests", "aggregate", 1), derived("tests", "aggregate", 2)


def by_extra_specs(extra_specs: dict[str, str], **changes: Any) -> RequestSpec:
    return narrowed(asked(extra_specs, **changes), "extra_specs")


FLAVOR = {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 20}


@pytest.mark.parametrize(
    ("extra_specs", "resources"),
    [
        ({}, FLAVOR),
        ({"quota:disk_read_iops": "100", "hw:mem_page_size": "large", "anything": "goes"}, FLAVOR),
        ({"resources:CUSTOM_BAREMETAL_GOLD": "1"}, {**FLAVOR, "CUSTOM_BAREMETAL_GOLD": 1}),
        ({"resources:VCPU": "2"}, {**FLAVOR, "VCPU": 2}),
        ({"resources:VCPU": "0"}, {"MEMORY_MB": 4096, "DISK_GB": 20}),
        (
            {"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0", "resources:CUSTOM_NODE": "1"},
            {"CUSTOM_NODE": 1},
        ),
        # A class of a further group replaces the flavor's own amount of it.
        ({"resources1:VCPU": "4"}, {"MEMORY_MB": 4096, "DISK_GB": 20}),
        ({"resources1:VCPU": "4", "resources:VCPU": "1"}, {**FLAVOR, "VCPU": 1}),
        ({"resources1:VGPU": "1"}, FLAVOR),
    ],
)
def test_extra_specs_change_the_amounts_of_the_flavor(extra_specs: dict[str, str], resources: dict[str, int]) -> None:
    assert by_extra_specs(extra_specs).resource_request.groups[""].resources == resources


@pytest.mark.parametrize(
    ("extra_specs", "groups"),
    [
        ({"trait:HW_CPU_X86_AVX2": "required"}, {"": group(required=("HW_CPU_X86_AVX2",))}),
        ({"trait:CUSTOM_SLOW": "forbidden"}, {"": group(forbidden=("CUSTOM_SLOW",))}),
        ({"member_of": AGGREGATE}, {"": group(member_of=((AGGREGATE,),))}),
        ({"member_of": f"in:{AGGREGATE},{OTHER}"}, {"": group(member_of=((AGGREGATE, OTHER),))}),
        ({"member_of": f"!{AGGREGATE}"}, {"": group(not_member_of=(AGGREGATE,))}),
        ({"member_of": f"!in:{AGGREGATE},{OTHER}"}, {"": group(not_member_of=(AGGREGATE, OTHER))}),
        (
            {"resources1:VGPU": "1", "trait1:HW_GPU_API_VULKAN": "required", "member_of1": AGGREGATE},
            {"1": group({"VGPU": 1}, required=("HW_GPU_API_VULKAN",), member_of=((AGGREGATE,),))},
        ),
        (
            {"resources_GPU:VGPU": "2", "trait_GPU:CUSTOM_LOUD": "forbidden"},
            {"_GPU": group({"VGPU": 2}, forbidden=("CUSTOM_LOUD",))},
        ),
    ],
)
def test_extra_specs_become_resource_groups(extra_specs: dict[str, str], groups: dict[str, ResourceGroup]) -> None:
    assert by_extra_specs(extra_specs).groups == groups


def test_the_requests_own_groups_are_merged_with_those_of_extra_specs() -> None:
    own = {"": group({"CUSTOM_A": 1}, required=("CUSTOM_T",)), "_port": group({"SRIOV_NET_VF": 1})}
    narrow = by_extra_specs({"resources:CUSTOM_B": "2", "trait:CUSTOM_U": "required"}, groups=own)
    assert narrow.groups == {
        "": group({"CUSTOM_A": 1, "CUSTOM_B": 2}, required=("CUSTOM_T", "CUSTOM_U")),
        "_port": group({"SRIOV_NET_VF": 1}),
    }


def test_the_order_of_the_extra_specs_makes_no_difference() -> None:
    extra_specs = {"trait:CUSTOM_A": "required", "resources1:VGPU": "1", "trait:CUSTOM_B": "required"}
    ordered, reordered = (by_extra_specs(dict(each)) for each in (extra_specs.items(), reversed(extra_specs.items())))
    assert list(ordered.groups.items()) == list(reordered.groups.items())


@pytest.mark.parametrize(
    ("extra_specs", "changes", "policy"),
    [
        ({"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "isolate"}, {}, "isolate"),
        ({"resources1:VGPU": "1", "group_policy": "none"}, {}, "none"),
        # The policy is required if the flavor itself has several groups ...
        ({"resources1:VGPU": "1", "resources2:VGPU": "1"}, {}, None),
        # ... or if the request has several.
        ({"resources1:VGPU": "1"}, {"groups": {"_a": group({"VGPU": 1}), "_b": group({"VGPU": 1})}}, None),
        ({"resources1:VGPU": "1"}, {"groups": {"_a": group({"VGPU": 1})}}, "none"),
        ({"resources1:VGPU": "1"}, {}, None),
        ({"resources1:VGPU": "1"}, {"group_policy": "isolate"}, "isolate"),
        # The stricter policy counts.
        ({"group_policy": "none"}, {"group_policy": "isolate"}, "isolate"),
        ({"group_policy": "isolate"}, {"group_policy": "none"}, "isolate"),
    ],
)
def test_the_group_policy_is_the_stricter_one_or_depends_on_the_groups(
    extra_specs: dict[str, str], changes: dict[str, Any], policy: str | None
) -> None:
    assert by_extra_specs(extra_specs, **changes).group_policy == policy


def test_subtrees_are_lists_of_suffixes() -> None:
    narrow = by_extra_specs({"same_subtree": "_NUMA0,_GPU; 1,2"}, same_subtree=(("_a", "_b"),))
    assert narrow.same_subtree == (("_a", "_b"), ("_NUMA0", "_GPU"), ("1", "2"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("resources:VCPU", "many"),
        ("resources:VCPU", ""),
        ("resources:VCPU", "-1"),
        ("resources:VCPU", "1.5"),
        ("resources:VCPU", str(2**31)),
        ("resources:vcpu", "1"),
        ("resources:", "1"),
        ("resources1:VCPU", "0"),
        ("resources01:VCPU", "1"),
        ("resourcesGPU:VGPU", "1"),
        ("resources_:VGPU", "1"),
        ("resource:VGPU", "1"),
        ("resources_a b:VGPU", "1"),
        ("trait:HW_CPU_X86_AVX2", "yes"),
        ("trait:HW_CPU_X86_AVX2", ""),
        ("trait:hw_cpu", "required"),
        ("traits:HW_CPU_X86_AVX2", "required"),
        ("trait1-2:HW_CPU_X86_AVX2", "required"),
        ("member_of", "rack 12"),
        ("member_of", f"in:{AGGREGATE},"),
        ("member_of-1", AGGREGATE),
        ("member_ofGPU", AGGREGATE),
        ("group_policy", "some"),
        ("same_subtree", "_a,,_b"),
        ("same_subtree", ""),
        ("same_subtree", "GPU"),
        *((key, "x" * 4000) for key in ("resources:VCPU", "trait:HW_CPU", "member_of", "group_policy", "same_subtree")),
    ],
    ids=lambda text: text[:40],
)
def test_a_malformed_extra_spec_is_refused_with_its_path(key: str, value: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        by_extra_specs({key: value})
    assert caught.value.path == f"$.flavor.extra_specs[{key!r}]"
    assert len(caught.value.reason) < 300, "it does not repeat a long value"


@pytest.mark.parametrize(
    ("extra_specs", "changes", "key"),
    [
        ({"resources1:VGPU": "1"}, {"groups": {"1": group({"VGPU": 2})}}, "resources1:VGPU"),
        ({"resources:VCPU": "2"}, {"groups": {"": group({"VCPU": 3})}}, "resources:VCPU"),
        ({f"resources{n}:VGPU": "1" for n in range(10, 75)}, {}, "resources10:VGPU"),
    ],
)
def test_an_extra_spec_that_contradicts_the_request_is_refused(
    extra_specs: dict[str, str], changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        by_extra_specs(extra_specs, **changes)
    assert caught.value.path == f"$.flavor.extra_specs[{key!r}]"
