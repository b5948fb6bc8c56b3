"""Test that dedicated CPUs become PCPU and NUMA nodes become groups, and that invalid words are refused."""

from typing import Any

import pytest
from support.scheduler.worded_requests import asked, group, narrowed

from moorage import errors
from moorage.model import RequestSpec, ResourceGroup

HYPERTHREADING = ("HW_CPU_HYPERTHREADING",)
DEDICATED, MIXED = {"hw:cpu_policy": "dedicated"}, {"hw:cpu_policy": "mixed"}


def by_cpus(extra_specs: dict[str, str], properties: dict[str, str] | None = None, **changes: Any) -> RequestSpec:
    return narrowed(asked(extra_specs, properties, **changes), "dedicated_cpus")


@pytest.mark.parametrize(
    ("extra_specs", "properties", "cpus"),
    [
        ({}, {}, {"VCPU": 4}),
        ({"hw:cpu_policy": "shared", "hw:emulator_threads_policy": "share"}, {}, {"VCPU": 4}),
        (DEDICATED, {}, {"PCPU": 4}),
        ({}, {"hw_cpu_policy": "dedicated"}, {"PCPU": 4}),
        (DEDICATED, {"hw_cpu_policy": "shared"}, {"PCPU": 4}),
        ({**DEDICATED, "hw:emulator_threads_policy": "isolate"}, {}, {"PCPU": 5}),
        ({**DEDICATED, "hw:emulator_threads_policy": "share"}, {}, {"PCPU": 4}),
        ({**MIXED, "hw:cpu_dedicated_mask": "0"}, {}, {"VCPU": 3, "PCPU": 1}),
        ({**MIXED, "hw:cpu_dedicated_mask": "0-1,3"}, {}, {"VCPU": 1, "PCPU": 3}),
        ({**MIXED, "hw:cpu_dedicated_mask": "^0-1"}, {}, {"VCPU": 2, "PCPU": 2}),
        ({**MIXED, "hw:cpu_dedicated_mask": "0-3,^1"}, {}, {"VCPU": 1, "PCPU": 3}),
        ({**MIXED, "hw:cpu_dedicated_mask": "0", "hw:emulator_threads_policy": "isolate"}, {}, {"VCPU": 3, "PCPU": 2}),
    ],
)
def test_the_classes_of_cpus(extra_specs: dict[str, str], properties: dict[str, str], cpus: dict[str, int]) -> None:
    narrow = by_cpus(extra_specs, properties)
    assert narrow.resource_request.groups == {"": group({**cpus, "MEMORY_MB": 4096, "DISK_GB": 20})}


@pytest.mark.parametrize(
    ("extra_specs", "properties", "required", "forbidden"),
    [
        ({"hw:cpu_thread_policy": "prefer"}, {}, (), ()),
        ({"hw:cpu_thread_policy": "require"}, {}, HYPERTHREADING, ()),
        ({"hw:cpu_thread_policy": "isolate"}, {}, (), HYPERTHREADING),
        ({}, {"hw_cpu_thread_policy": "isolate"}, (), HYPERTHREADING),
        ({"hw:cpu_thread_policy": "prefer"}, {"hw_cpu_thread_policy": "require"}, HYPERTHREADING, ()),
    ],
)
def test_the_thread_policy_becomes_a_trait_of_the_root(
    extra_specs: dict[str, str], properties: dict[str, str], required: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    narrow = by_cpus({**DEDICATED, **extra_specs}, properties)
    assert (narrow.root_required, narrow.root_forbidden) == (required, forbidden)


def numa(*amounts: dict[str, int]) -> dict[str, ResourceGroup]:
    return {f"_NUMA{number}": group(each, required=("HW_NUMA_ROOT",)) for number, each in enumerate(amounts)}


HALF = {"VCPU": 2, "MEMORY_MB": 2048}


@pytest.mark.parametrize(
    ("extra_specs", "properties", "groups"),
    [
        ({"hw:numa_nodes": "1"}, {}, numa({"VCPU": 4, "MEMORY_MB": 4096})),
        ({"hw:numa_nodes": "2"}, {}, numa(HALF, HALF)),
        ({}, {"hw_numa_nodes": "2"}, numa(HALF, HALF)),
        ({"hw:numa_nodes": "2"}, {"hw_numa_nodes": "2"}, numa(HALF, HALF)),
        (
            {"hw:numa_nodes": "2", **DEDICATED},
            {},
            numa({"PCPU": 2, "MEMORY_MB": 2048}, {"PCPU": 2, "MEMORY_MB": 2048}),
        ),
        (
            {"hw:numa_nodes": "2", **DEDICATED, "hw:emulator_threads_policy": "isolate"},
            {},
            numa({"PCPU": 3, "MEMORY_MB": 2048}, {"PCPU": 2, "MEMORY_MB": 2048}),
        ),
        (
            {"hw:numa_nodes": "2", **MIXED, "hw:cpu_dedicated_mask": "0-2"},
            {},
            numa({"PCPU": 2, "MEMORY_MB": 2048}, {"VCPU": 1, "PCPU": 1, "MEMORY_MB": 2048}),
        ),
        (
            {
                "hw:numa_nodes": "2",
                "hw:numa_cpus.0": "0-2",
                "hw:numa_cpus.1": "3",
                "hw:numa_mem.0": "3072",
                "hw:numa_mem.1": "1024",
            },
            {},
            numa({"VCPU": 3, "MEMORY_MB": 3072}, {"VCPU": 1, "MEMORY_MB": 1024}),
        ),
        (
            {"hw:numa_nodes": "2", "hw:numa_cpus.0": "0,2", "hw:numa_cpus.1": "1,3"},
            {},
            numa(HALF, HALF),
        ),
    ],
)
def test_each_numa_node_is_a_group_on_a_node_of_the_host(
    extra_specs: dict[str, str], properties: dict[str, str], groups: dict[str, ResourceGroup]
) -> None:
    wanted = by_cpus(extra_specs, properties).resource_request
    assert wanted.groups == {"": group({"DISK_GB": 20}), **groups}
    assert wanted.apart == ((tuple(groups),) if len(groups) > 1 else ())
    assert wanted.group_policy == ("none" if len(groups) > 1 else None)


def test_numa_nodes_set_no_group_policy_for_several_groups_of_the_request() -> None:
    ports = {f"_port{number}": group({"SRIOV_NET_VF": 1}) for number in range(2)}
    assert by_cpus({"hw:numa_nodes": "2"}, groups=ports).group_policy is None
    assert by_cpus({"hw:numa_nodes": "2"}, groups=ports, group_policy="none").group_policy == "none"
    one = {"_port0": ports["_port0"]}
    assert by_cpus({"hw:numa_nodes": "2"}, groups=one).group_policy == "none"


FLAVOR, IMAGE = "$.flavor.extra_specs[{!r}]".format, "$.image.properties[{!r}]".format
TWO_NODES = {"hw:numa_nodes": "2"}


@pytest.mark.parametrize(
    ("extra_specs", "properties", "path"),
    [
        ({"hw:cpu_policy": "exclusive"}, {}, FLAVOR("hw:cpu_policy")),
        ({}, {"hw_cpu_policy": "exclusive"}, IMAGE("hw_cpu_policy")),
        ({"hw:cpu_policy": "shared"}, {"hw_cpu_policy": "dedicated"}, IMAGE("hw_cpu_policy")),
        ({"hw:cpu_thread_policy": "require"}, {}, FLAVOR("hw:cpu_thread_policy")),
        ({**DEDICATED, "hw:cpu_thread_policy": "avoid"}, {}, FLAVOR("hw:cpu_thread_policy")),
        (
            {**DEDICATED, "hw:cpu_thread_policy": "require"},
            {"hw_cpu_thread_policy": "isolate"},
            IMAGE("hw_cpu_thread_policy"),
        ),
        ({"hw:emulator_threads_policy": "isolate"}, {}, FLAVOR("hw:emulator_threads_policy")),
        ({**DEDICATED, "hw:emulator_threads_policy": "pin"}, {}, FLAVOR("hw:emulator_threads_policy")),
        (MIXED, {}, FLAVOR("hw:cpu_policy")),
        ({**DEDICATED, "hw:cpu_dedicated_mask": "0"}, {}, FLAVOR("hw:cpu_dedicated_mask")),
        *(
            ({**MIXED, "hw:cpu_dedicated_mask": mask}, {}, FLAVOR("hw:cpu_dedicated_mask"))
            for mask in ("", "first", "4", "2-1", "0-3", "^0-3", "0,^0", "0--1", "^^1")
        ),
        *(({"hw:numa_nodes": count}, {}, FLAVOR("hw:numa_nodes")) for count in ("", "0", "-1", "two", "3", "5", "1.0")),
        ({}, {"hw_numa_nodes": "none"}, IMAGE("hw_numa_nodes")),
        (TWO_NODES, {"hw_numa_nodes": "1"}, IMAGE("hw_numa_nodes")),
        ({"hw:numa_cpus.0": "0"}, {}, FLAVOR("hw:numa_cpus.0")),
        ({**TWO_NODES, "hw:numa_cpus.0": "0-1"}, {}, FLAVOR("hw:numa_cpus.0")),
        ({**TWO_NODES, "hw:numa_cpus.2": "0-1"}, {}, FLAVOR("hw:numa_cpus.2")),
        ({**TWO_NODES, "hw:numa_cpus.first": "0-1"}, {}, FLAVOR("hw:numa_cpus.first")),
        ({**TWO_NODES, "hw:numa_cpus.0": "0-1", "hw:numa_cpus.1": "1-3"}, {}, FLAVOR("hw:numa_cpus.1")),
        ({**TWO_NODES, "hw:numa_cpus.0": "0-1", "hw:numa_cpus.1": "3"}, {}, FLAVOR("hw:numa_cpus.1")),
        ({**TWO_NODES, "hw:numa_mem.0": "0", "hw:numa_mem.1": "4096"}, {}, FLAVOR("hw:numa_mem.0")),
        ({**TWO_NODES, "hw:numa_mem.0": "1024", "hw:numa_mem.1": "1024"}, {}, FLAVOR("hw:numa_mem.1")),
        ({**TWO_NODES, "hw:numa_mem.0": "half", "hw:numa_mem.1": "half"}, {}, FLAVOR("hw:numa_mem.0")),
        ({**DEDICATED, "resources:PCPU": "4"}, {}, FLAVOR("resources:PCPU")),
        ({**DEDICATED, "resources1:VCPU": "4"}, {}, FLAVOR("resources1:VCPU")),
        ({**TWO_NODES, "resources_a:MEMORY_MB": "4"}, {}, FLAVOR("resources_a:MEMORY_MB")),
    ],
)
def test_invalid_extra_specs_and_properties_are_refused_with_their_path(
    extra_specs: dict[str, str], properties: dict[str, str], path: str
) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        by_cpus(extra_specs, properties)
    assert caught.value.path == path


@pytest.mark.parametrize("words", [{"hw:numa_nodes": "65"}, {**MIXED, "hw:cpu_dedicated_mask": "0-99999"}])
def test_a_server_that_no_host_could_hold_is_refused_before_its_cpus_are_counted(words: dict[str, str]) -> None:
    with pytest.raises(errors.InvalidRequest):
        by_cpus(words, vcpus=2**20, memory_mb=2**30)


@pytest.mark.parametrize("groups", [{"": group({"VCPU": 2})}, {"_NUMA0": group({"VGPU": 1})}])
def test_numa_nodes_that_contradict_the_requests_own_groups_are_refused(groups: dict[str, ResourceGroup]) -> None:
    with pytest.raises(errors.InvalidRequest):
        by_cpus({"hw:numa_nodes": "2"}, groups=groups)
