"""Test that the checks of the kit for plug-ins find each defect of a filter, and name it."""

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from oslo_config import cfg

from moorage.ids import derived
from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import BoolArray, Filter, Host, HostView
from moorage.plugin.hints import SAME_HOST, instances_named
from moorage.testing import Words, check_filter, conformance


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


class VagueOfGpus(VagueOfCandidates):
    def concerns(self, request: RequestSpec) -> bool:
        return "VGPU" in request.resource_request.totals()

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (VagueOfCandidates, "'yes' of a candidate of host., which is neither true nor false"),
        (WritingCandidates, "has changed a candidate of host."),
        (Alternating, "says True of a candidate of host., and then False"),
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


def test_a_filter_of_candidates_is_asked_only_about_requests_that_concern_it() -> None:
    check_filter(VagueOfGpus, decides=False)
    with pytest.raises(AssertionError, match="'yes' of a candidate"):
        check_filter(VagueOfGpus, words=Words(resource_classes=["VGPU"]), decides=False)


class FlatMask(Sound):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.flat and super().passes(host, request)

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        return np.equal(view.instances % 2, 0)


class NeighbourlyMask(FlatMask):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.instances % 2 == 0 and not host.has_neighbour(instances_named(request, SAME_HOST))


class SingleProviderMask(FlatMask):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.instances % 2 == 0 and len(host.inventories.get("VCPU", ())) < 2


class PooledMask(FlatMask):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        wanted = [uuids for group in request.groups.values() for uuids in group.member_of]
        return host.instances % 2 == 0 and not any(host.in_aggregate(uuid) for uuids in wanted for uuid in uuids)


class TwoSidedMask(FlatMask):
    """Decides by one field of a request, and only host by host."""

    field = ""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.instances % 2 == 0 and not getattr(request, self.field)


FIELDS = (
    "groups",
    "root_required",
    "root_forbidden",
    "ignore_hosts",
    "force_hosts",
    "requested_destination",
    "is_volume_backed",
)


@pytest.mark.parametrize(
    "kind",
    [
        FlatMask,
        NeighbourlyMask,
        SingleProviderMask,
        PooledMask,
        *(type(f"Mask_{field}", (TwoSidedMask,), {"field": field}) for field in FIELDS),
    ],
)
def test_samples_have_what_only_some_hosts_and_requests_have(kind: type[Filter]) -> None:
    words = Words(hints={SAME_HOST: [derived("kit", "server")]}, traits=["CUSTOM_A", "CUSTOM_B"])
    check_filter(Sound, words=words)
    with pytest.raises(AssertionError, match="alone, and True in its mask"):
        check_filter(kind, words=words)


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
