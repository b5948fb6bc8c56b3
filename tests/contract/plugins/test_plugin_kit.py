"""Test the kit for plug-ins of operators: its view is like the scheduler's, and correct plug-ins pass its checks."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec import structs
from support.scheduler.plugin_strategies import INSTANCES, snapshots

from filters.io_ops import IoOpsFilter
from filters.requests.extra_specs import ExtraSpecsRequestFilter
from moorage.model import RequestSpec
from moorage.plugin import Cloud, Filter, HostView, RequestFilter
from moorage.testing import (
    ListedHosts,
    Words,
    check_filter,
    check_request_filter,
    check_weigher,
    host,
    request,
    samples,
    settings_of,
    view,
)
from scheduler.view.snapshot import Snapshot
from weighers.build_failure import BuildFailureWeigher

#: All methods and properties of a view that a plug-in may use.
COLUMNS: dict[str, Callable[[HostView], Any]] = {
    "up": lambda view: view.up,
    "enabled": lambda view: view.enabled,
    "flat": lambda view: view.flat,
    "group_members_here": lambda view: view.group_members_here,
    "group_members_elsewhere": lambda view: view.group_members_elsewhere,
    "instances": lambda view: view.instances,
    "io_ops": lambda view: view.io_ops,
    "failed_builds": lambda view: view.failed_builds,
    "where_attribute": lambda view: view.where_attribute("rack", lambda value: value == "a1"),
    "where_metadata": lambda view: view.where_metadata("ssd", lambda values: "true" in values),
    "where_metadata_under": lambda view: view.where_metadata_under("s", lambda values: len(values) > 1),
    "number_from": lambda view: view.number_from("rack", lambda value: float(value is None)),
    "has_neighbour": lambda view: view.has_neighbour(INSTANCES[:1]),
    "servers_with": lambda view: view.servers_with("os_distro", "debian"),
    "capacity": lambda view: view.capacity("VCPU"),
    "used": lambda view: view.used("VCPU"),
    "free": lambda view: view.free("VCPU"),
    "room": lambda view: view.room("VCPU"),
    "fits": lambda view: view.fits("VCPU", 2),
    "fitting": lambda view: view.fitting("VCPU", 2),
    "has_trait": lambda view: view.has_trait("HW_CPU_X86_AVX2"),
    "root_has_trait": lambda view: view.root_has_trait("HW_CPU_X86_AVX2"),
    "in_zone": lambda view: view.in_zone("a"),
    "named": lambda view: view.named(["HOST0"]),
    "nodes_named": lambda view: view.nodes_named(["node1"]),
}


@settings(deadline=None, max_examples=100)
@given(snapshot=snapshots())
def test_a_view_of_listed_hosts_has_the_columns_of_the_schedulers_view(snapshot: Snapshot) -> None:
    listed = ListedHosts(snapshot.host(row) for row in range(len(snapshot)))
    assert len(listed) == len(snapshot)
    for name, column in COLUMNS.items():
        found, expected = column(listed), column(snapshot)
        assert found.dtype == expected.dtype, name
        assert found.tolist() == pytest.approx(expected.tolist()), name
    here = {name for one in listed.hosts for name in one.resource_classes}
    assert set(listed.resource_classes) == here


def test_samples_are_the_same_for_the_same_seed() -> None:
    words = Words(attributes={"rack.row": ["r1", "r2"]}, traits=["CUSTOM_A"], hints={"rack": ["r1"]})
    first, again, other = (list(samples(words, 20, seed)) for seed in (1, 1, 2))
    assert [(one.view.hosts, one.request) for one in first] == [(one.view.hosts, one.request) for one in again]
    assert [one.request for one in first] != [one.request for one in other]


def test_correct_plugins_pass_the_checks() -> None:
    check_filter(IoOpsFilter, {"max_io_ops_per_host": 2}, Words(metadata={"max_io_ops_per_host": ["1", "3", "many"]}))
    check_weigher(BuildFailureWeigher)
    words = Words(extra_specs={"resources:VCPU": ["2", "many"], "trait:CUSTOM_A": ["required", "forbidden"]})
    check_request_filter(ExtraSpecsRequestFilter, words=words)


def blocks_of_the_guide() -> list[str]:
    guide = (Path(__file__).parents[3] / "docs" / "writing-a-plugin.md").read_text()
    return [textwrap.dedent(block) for block in re.findall(r"(?:(?:^ {4}.*)?\n)+", guide, re.MULTILINE)]


def test_the_plugins_and_tests_of_the_guide_pass_as_they_are_written() -> None:
    blocks = blocks_of_the_guide()
    plugins = [block for block in blocks if re.match(r"from moorage.plugin import (Filter|Weigher)\n", block.lstrip())]
    [tests] = [block for block in blocks if "def test_the_filter_is_sound" in block]
    names: dict[str, Any] = {}
    for plugin in plugins:
        exec(plugin, names)
    exec(re.sub(r"from moorage_racks.*\n", "", tests), names)
    checks = [name for name in names if name.startswith("test_")]
    assert (len(plugins), len(checks)) == (2, 3)
    for check in checks:
        names[check]()


def test_the_guides_filter_of_candidates_passes_the_checks_with_failing_gpus() -> None:
    [block] = [block for block in blocks_of_the_guide() if "class HealthyGpuFilter" in block]
    names: dict[str, Any] = {"Filter": Filter}
    exec(block, names)
    failing = [[uuid] for uuid in sorted(host(0).providers)]
    words = Words(attributes={"failing_gpus": failing}, resource_classes=["VGPU"])
    check_filter(names["HealthyGpuFilter"], words=words, decides=False)


def test_hosts_and_requests_can_be_built_with_only_the_values_of_a_test() -> None:
    plugin = IoOpsFilter(settings_of(IoOpsFilter, max_io_ops_per_host=2))
    asked = request(vcpus=2, hints={"rack": "r1"}, extra_specs={"rack": "r1"})
    assert plugin.mask(view(host(0, io_ops=1), host(1, io_ops=2)), asked).tolist() == [True, False]
    assert asked.resources == {"VCPU": 2, "MEMORY_MB": 1024}


def test_settings_that_an_option_cannot_have_are_refused() -> None:
    with pytest.raises(AssertionError, match="options of IoOpsFilter"):
        settings_of(IoOpsFilter, max_io_ops_per_host=0)
    with pytest.raises(AssertionError, match="options of IoOpsFilter"):
        settings_of(IoOpsFilter, max_ops=1)


def test_an_attribute_and_a_name_below_it_are_drawn_beside_each_other() -> None:
    words = Words(attributes={"gpu": ["broken", {"model": "x"}], "gpu.count": [2]})

    drawn = [one.attributes.get("gpu") for sample in samples(words, 100) for one in sample.view.hosts]

    assert {repr(one) for one in drawn} == {
        "None", "'broken'", "{'model': 'x'}", "{'count': 2}", "{'model': 'x', 'count': 2}"
    }  # fmt: skip
    assert words.attributes["gpu"] == ["broken", {"model": "x"}]


class TakesHint(RequestFilter):
    """Takes a hint away, and fails on its own result."""

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        if not request.scheduler_hints and request.root_required:
            raise KeyError("rack")
        return structs.replace(request, scheduler_hints={}, root_required=("CUSTOM_A",))


def test_a_request_filter_that_fails_on_its_own_result_is_named() -> None:
    with pytest.raises(AssertionError, match="TakesHint raises KeyError: 'rack'; asked by a request with "):
        check_request_filter(TakesHint, words=Words(hints={"rack": ["r1"]}))
