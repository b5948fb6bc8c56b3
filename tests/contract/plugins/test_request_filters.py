"""Test the contract of request filters with each installed entry point, of Moorage and of other packages."""

import functools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stevedore import ExtensionManager
from support.scheduler.builders import host_cache, host_row
from support.scheduler.trees import TRAITS, node
from support.scheduler.worded_requests import AGGREGATES, StillCloud, asked

from filters.aggregates import AggregatesFilter
from filters.traits import TraitsFilter
from moorage import errors
from moorage.config import options
from moorage.model import RequestSpec
from moorage.plugin import Aggregate, RequestFilter, RequestRefused
from moorage.plugin.request_filter import valid_request
from placement_store import candidates
from scheduler.decide.request_filters import Refusal, RequestFilterChain
from scheduler.plugins.loading import Named, load_request_filters
from scheduler.view.snapshot import Snapshot

NAMES = ExtensionManager[Any]("moorage.request_filters").names()


@functools.cache
def loaded(names: tuple[str, ...]) -> tuple[Named[RequestFilter], ...]:
    return tuple(load_request_filters(options.new(), names))


def by_default() -> tuple[str, ...]:
    return tuple(options.new().scheduler.enabled_request_filters)


# --- Random extra specs and image properties, most of them valid ------------------------------------------------------

_numbers = st.integers(0, 5).map(str)
_words = st.sampled_from(["required", "forbidden", "maybe"])
_masks = st.sampled_from(["0", "0-1", "^0", "2,3", "7"])
_extra_spec_words: dict[str, st.SearchStrategy[str]] = {
    "resources:VCPU": _numbers,
    "resources:CUSTOM_A": _numbers,
    "resources1:VGPU": _numbers,
    "resources_GPU:VGPU": _numbers,
    "resources_GPU:MEMORY_MB": _numbers,
    **{f"trait:{trait}": _words for trait in TRAITS},
    f"trait1:{TRAITS[0]}": _words,
    "member_of": st.sampled_from([AGGREGATES[0], f"!{AGGREGATES[1]}", f"in:{AGGREGATES[0]},{AGGREGATES[2]}"]),
    "group_policy": st.sampled_from(["none", "isolate"]),
    "same_subtree": st.just("1,_GPU"),
    "hw:cpu_policy": st.sampled_from(["shared", "dedicated", "mixed"]),
    "hw:cpu_dedicated_mask": _masks,
    "hw:cpu_thread_policy": st.sampled_from(["prefer", "isolate", "require"]),
    "hw:emulator_threads_policy": st.sampled_from(["share", "isolate"]),
    "hw:numa_nodes": st.sampled_from(["1", "2", "4"]),
    "hw:numa_cpus.0": _masks,
    "hw:numa_cpus.1": _masks,
    "pci_passthrough:alias": st.just("unknown:1"),
}
_image_words: dict[str, st.SearchStrategy[str]] = {
    "disk_format": st.sampled_from(["raw", "qcow2", "tape"]),
    **{f"trait:{trait}": _words for trait in TRAITS},
    "hw_cpu_policy": st.sampled_from(["shared", "dedicated"]),
    "hw_numa_nodes": st.sampled_from(["1", "2"]),
}


def _some(words: dict[str, st.SearchStrategy[str]], most: int) -> st.SearchStrategy[dict[str, str]]:
    some = st.lists(st.sampled_from(sorted(words)), max_size=most, unique=True)
    return some.flatmap(lambda keys: st.fixed_dictionaries({key: words[key] for key in keys}))


requests = st.builds(
    asked,
    extra_specs=_some(_extra_spec_words, 4),
    properties=_some(_image_words, 2),
    vcpus=st.sampled_from([2, 4, 8]),
    memory_mb=st.sampled_from([4, 8]),
    root_gb=st.sampled_from([0, 2]),
    availability_zone=st.sampled_from([None, "az1", "az2"]),
    root_required=st.sampled_from([(), (), TRAITS[:1]]).map(tuple),
)
_metadata = st.fixed_dictionaries(
    {},
    optional={
        "filter_tenant_id": st.sampled_from(["project", "other", "other,project"]),
        "availability_zone": st.sampled_from(["az1", "az2"]),
        **{f"trait:{trait}": st.just("required") for trait in TRAITS[:2]},
    },
)
aggregates = st.lists(_metadata, max_size=len(AGGREGATES)).map(
    lambda each: [Aggregate(uuid, uuid, metadata) for uuid, metadata in zip(AGGREGATES, each, strict=False)]
)
clouds = st.builds(StillCloud, aggregates, st.sampled_from([(), ("COMPUTE_STATUS_DISABLED",)]))


def outcome(plugin: RequestFilter, request: RequestSpec, cloud: StillCloud) -> object:
    """Return a request filter's result: the narrowed request, the path of an invalid field, or a refusal's reason."""
    try:
        return plugin.narrow(request, cloud)
    except errors.InvalidRequest as fault:
        return fault.path
    except RequestRefused as refused:
        return refused.reason


@pytest.mark.parametrize("name", NAMES)
def test_a_request_without_anything_for_a_filter_stays_the_same(name: str) -> None:
    [(_, plugin)] = loaded((name,))
    for request in (asked(), asked({"quota:cpu_shares": "9"}, {"os_distro": "debian"})):
        assert plugin.narrow(request, StillCloud()) is request


@pytest.mark.parametrize("name", NAMES)
@given(request=requests, cloud=clouds)
@settings(deadline=None, max_examples=40)
def test_a_filter_makes_valid_requests_and_leaves_them_unchanged(
    name: str, request: RequestSpec, cloud: StillCloud
) -> None:
    [(_, plugin)] = loaded((name,))
    once = outcome(plugin, request, cloud)
    if isinstance(once, RequestSpec):
        assert valid_request(once) is once
        assert outcome(plugin, once, cloud) is once


@pytest.mark.parametrize("name", NAMES)
@given(request=requests, cloud=clouds)
@settings(deadline=None, max_examples=20)
def test_two_schedulers_narrow_a_request_in_the_same_way(name: str, request: RequestSpec, cloud: StillCloud) -> None:
    [(_, plugin)] = loaded((name,))
    [(_, other)] = load_request_filters(options.new(), [name])
    before = repr(request)
    assert outcome(plugin, request, cloud) == outcome(other, request, cloud)
    assert repr(request) == before


# --- All request filters of Moorage together --------------------------------------------------------------------------


def view_of(*described: dict[str, Any]) -> Snapshot:
    hosts = [host_row(number, availability_zone=one.pop("zone", "az1")) for number, one in enumerate(described)]
    return host_cache(hosts, [node(number, VCPU=8, **one) for number, one in enumerate(described)]).snapshot()


def narrowed(
    request: RequestSpec, names: tuple[str, ...], view: Snapshot, known: list[Aggregate]
) -> RequestSpec | Refusal | None:
    """Return a request after these filters; None if it is invalid."""
    try:
        return RequestFilterChain(loaded(names), lambda _begun_after: known).narrow(request, view, 0.0)
    except errors.InvalidRequest:
        return None


_hosts = st.lists(
    st.fixed_dictionaries(
        {
            "traits": st.lists(st.sampled_from([*TRAITS, "COMPUTE_STATUS_DISABLED"]), max_size=2),
            "aggregates": st.lists(st.sampled_from(AGGREGATES), max_size=2),
        }
    ),
    min_size=1,
    max_size=4,
)
EVERY = (
    *("extra_specs", "image_traits", "image_type", "dedicated_cpus", "pci", "disabled_hosts"),
    *("tenant_aggregate", "zone_aggregate", "isolated_aggregates"),
)


@given(request=requests, hosts=_hosts, known=aggregates)
@settings(deadline=None, max_examples=150)
def test_a_narrowed_request_passes_no_host_that_the_original_request_does_not_pass(
    request: RequestSpec, hosts: list[dict[str, Any]], known: list[Aggregate]
) -> None:
    view = view_of(*hosts)
    found = narrowed(request, EVERY, view, known)
    if isinstance(found, RequestSpec):
        for plugin in (TraitsFilter({}), AggregatesFilter({})):
            assert not (plugin.mask(view, found) & ~plugin.mask(view, request)).any()


@given(request=requests, hosts=_hosts, known=aggregates)
@settings(deadline=None, max_examples=150)
def test_a_narrowed_request_is_unchanged_by_a_second_pass_through_all_filters(
    request: RequestSpec, hosts: list[dict[str, Any]], known: list[Aggregate]
) -> None:
    view = view_of(*hosts)
    found = narrowed(request, EVERY, view, known)
    if isinstance(found, RequestSpec):
        assert narrowed(found, EVERY, view, known) == found


@given(request=requests)
@settings(deadline=None, max_examples=150)
def test_dedicated_cpus_and_numa_nodes_do_not_change_the_size_of_a_server(request: RequestSpec) -> None:
    found = narrowed(request, ("dedicated_cpus",), view_of({}), [])
    if isinstance(found, RequestSpec):
        amounts: Counter[str] = Counter()
        for group in found.resource_request.groups.values():
            amounts.update(group.resources)
        isolated = request.flavor.extra_specs.get("hw:emulator_threads_policy") == "isolate"
        assert amounts["VCPU"] + amounts["PCPU"] == request.flavor.vcpus + isolated
        assert amounts["MEMORY_MB"] == request.flavor.memory_mb
        assert amounts["DISK_GB"] == request.flavor.root_gb


def test_a_request_with_all_kinds_of_groups_is_valid() -> None:
    extra_specs = {
        "resources_GPU:VGPU": "1",
        "trait:HW_CPU_X86_AVX2": "required",
        "hw:numa_nodes": "2",
        "hw:cpu_policy": "dedicated",
    }
    request = asked(extra_specs, is_volume_backed=True)
    found = narrowed(request, by_default(), view_of({}), [])
    assert isinstance(found, RequestSpec)
    candidates.check(found.resource_request)
    assert found.resource_request.groups.keys() == {"_GPU", "_NUMA0", "_NUMA1"}
    # The unsuffixed group has no resources, so its trait is required of the root.
    assert found.root_required == ("HW_CPU_X86_AVX2",)
