"""Test the kit for plug-ins of operators: its view agrees with the scheduler's, and its checks find each defect."""

import math
import re
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec import structs
from oslo_config import cfg
from support.scheduler.plugin_strategies import INSTANCES, snapshots

from filters.io_ops import IoOpsFilter
from filters.requests.extra_specs import ExtraSpecsRequestFilter
from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import Amount, BoolArray, Cloud, Filter, FloatArray, Host, HostView, RequestFilter, Weigher
from moorage.testing import (
    ListedHosts,
    Words,
    check_filter,
    check_request_filter,
    check_weigher,
    conformance,
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


def test_the_plugins_and_tests_of_the_guide_pass_as_they_are_written() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "writing-a-plugin.md").read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:(?:^ {4}.*)?\n)+", guide, re.MULTILINE)]
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


# --- Findings about filters -----------------------------------------------------------------------------------------


class Sound(Filter):
    """Passes hosts with an even number of servers; each of the other filters below has one defect."""

    reason = "has an odd number of servers"

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.instances % 2 == 0


class AnotherMask(Sound):
    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        return np.equal(view.instances, 2)


class Integers(Sound):
    def mask(self, view: HostView, request: RequestSpec) -> Any:
        return view.instances % 2


class Unconcerned(Sound):
    def concerns(self, request: RequestSpec) -> bool:
        return False


class Counting(Sound):
    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.asked = 0

    def passes(self, host: Host, request: RequestSpec) -> bool:
        self.asked += 1
        return self.asked % 3 == 0

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        before = self.asked
        found = super().mask(view, request)
        self.asked = before
        return found


class Remembering(Sound):
    """Answers correctly, and collects the hosts in an attribute of its class."""

    asked: ClassVar[list[str]] = []

    def passes(self, host: Host, request: RequestSpec) -> bool:
        self.asked.append(host.service_host)
        return super().passes(host, request)


class Inventing(Sound):
    """Adds an attribute to its class."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        type(self).last = host.service_host  # type: ignore[attr-defined]
        return super().passes(host, request)


class Clock:
    """The clock of the kit, which a slow plug-in advances without a real delay."""

    skipped = 0.0

    def advance(self, seconds: float) -> None:
        self.skipped += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped


CLOCK = Clock()


class Dawdling(Sound):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        CLOCK.advance(0.6)
        return super().passes(host, request)


class Scribbling(Sound):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        request.scheduler_hints["seen"] = "yes"
        return super().passes(host, request)


class Writing(Sound):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        host.attributes["seen"] = True  # type: ignore[index]
        return super().passes(host, request)


class Speechless(Sound):
    reason = Filter.reason


class Vague(Sound):
    def passes(self, host: Host, request: RequestSpec) -> Any:
        return host.instances % 2 == 0 or None


class Worded(Sound):
    def passes(self, host: Host, request: RequestSpec) -> Any:
        return "yes"


class Raising(Sound):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        return bool(host.attributes["rack"])


class Assigning(Sound):
    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        found = view.up
        found[:] = True
        return found


class AllPass(Sound):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True


class BadOption(Sound):
    options: ClassVar[Sequence[cfg.Opt]] = [
        cfg.IntOpt("most", default=1, help="How many."),
        cfg.StrOpt("most", default="1", help="How many again."),
    ]


class NoHelp(Sound):
    options: ClassVar[Sequence[cfg.Opt]] = [cfg.IntOpt("most", default=1)]


class VagueOfCandidates(Sound):
    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:
        return "yes"  # type: ignore[return-value]


class WritingCandidates(Sound):
    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:
        candidate.allocations.clear()
        return True


class Alternating(Sound):
    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.last = False

    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:
        self.last = not self.last
        return self.last


class UnconcernedByCandidates(Filter):
    reason = "has no candidate that is liked"

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True

    def concerns(self, request: RequestSpec) -> bool:
        return False

    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:
        return False


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (VagueOfCandidates, "'yes' of a candidate of host., which is neither true nor false"),
        (WritingCandidates, "has changed a candidate of host."),
        (Alternating, "says True of a candidate of host., and then False"),
        (UnconcernedByCandidates, "is not concerned, and refuses hosts"),
        (AnotherMask, "AnotherMask says True of host0 alone, and False in its mask"),
        (Integers, "mask is no array of . booleans"),
        (Unconcerned, "is not concerned, and refuses hosts"),
        (Counting, "it keeps state"),
        (Remembering, r"Remembering has changed Remembering.asked, .*: it keeps state on its class"),
        (Inventing, r"Inventing has changed Inventing.last, .*: it keeps state on its class"),
        (Dawdling, r"Dawdling takes [0-9.]+ s for a question about \d+ hosts"),
        (Scribbling, "has changed a request"),
        (Writing, "has changed a host"),
        (Speechless, "it follows a host's name"),
        (Vague, "None of host., which is neither true nor false"),
        (Worded, "'yes' of host., which is neither true nor false"),
        (Raising, "Raising raises KeyError: 'rack'; asked by a request with "),
        (Assigning, "Assigning raises ValueError: assignment destination is read-only"),
        (AllPass, "let all hosts pass in 200 samples"),
        (BadOption, "the options of BadOption"),
        (NoHelp, "the option most of NoHelp has no help"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_each_defect_of_a_filter_is_named(kind: type[Filter], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "time", CLOCK)
    check_filter(Sound)
    with pytest.raises(AssertionError, match=sentence):
        check_filter(kind)


def test_a_finding_names_only_the_unusual_values_of_the_host_and_the_request() -> None:
    words = Words(hints={"rack": ["r1"]}, attributes={"rack": ["r1"]})
    with pytest.raises(AssertionError) as found:
        check_filter(AnotherMask, words=words)
    sentence = str(found.value)

    assert "VCPU " in sentence
    assert "flavor.vcpus=" in sentence
    assert "'rack': 'r1'" in sentence
    assert "max_unit" not in sentence
    assert "root_member_of" not in sentence


# --- Findings about weighers and request filters --------------------------------------------------------------------


class Weighing(Weigher):
    """Prefers hosts with servers."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        return float(host.instances)


class OtherScores(Weighing):
    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        return np.minimum(view.instances, 2).astype(np.float64)


class WholeNumbers(Weighing):
    def scores(self, view: HostView, request: RequestSpec) -> Any:
        found: Amount = view.instances
        return found


class NotANumber(Weighing):
    def weigh(self, host: Host, request: RequestSpec) -> float:
        return math.nan if host.instances > 1 else 0.0


class Dividing(Weighing):
    def weigh(self, host: Host, request: RequestSpec) -> float:
        return 1 / host.instances


class Biased(Weighing):
    def concerns(self, request: RequestSpec) -> bool:
        return request.server_group is not None


class Unmultiplied(Weighing):
    default_multiplier = math.inf


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (OtherScores, "3.0 alone, and 2.0 among all"),
        (WholeNumbers, "scores are no array of . floats"),
        (NotANumber, "the weight nan, which cannot be compared"),
        (Dividing, "Dividing raises ZeroDivisionError"),
        (Biased, "is not concerned, and prefers hosts"),
        (Unmultiplied, "default multiplier inf"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_each_defect_of_a_weigher_is_named(kind: type[Weigher], sentence: str) -> None:
    check_weigher(Weighing)
    with pytest.raises(AssertionError, match=sentence):
        check_weigher(kind)


class Narrowing(RequestFilter):
    """Requires a trait of the root."""

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        return structs.replace(request, root_required=("CUSTOM_A",))


class Growing(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        return structs.replace(request, root_required=(*request.root_required, "CUSTOM_A"))


class Forgetting(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> Any:
        return None


class Failing(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        raise LookupError("no such rack")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Growing, "of what it has made already"),
        (Forgetting, "has made None of a request"),
        (Failing, "Failing raises LookupError: no such rack"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_each_defect_of_a_request_filter_is_named(kind: type[RequestFilter], sentence: str) -> None:
    check_request_filter(Narrowing)
    with pytest.raises(AssertionError, match=sentence):
        check_request_filter(kind)
