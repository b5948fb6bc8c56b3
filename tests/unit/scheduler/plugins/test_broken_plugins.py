"""Test plug-ins that break: as configured, the request fails or is decided without them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from support.scheduler.builders import host_cache, host_row, select

from moorage import errors
from moorage.model import RequestSpec
from moorage.plugin import BadValue, Cloud, Filter, Host, HostView, RequestFilter, Weigher
from scheduler.decide.environment import DecisionPolicy
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import DestinationPlan, NoHost
from scheduler.decide.plugin_failures import FailureCounts, PluginFailures
from scheduler.decide.request_filters import Refusal
from scheduler.plugins.loading import Named, Weighted
from scheduler.plugins.watch import PluginWatchdog
from weighers.ram import RamWeigher


def _ends_the_process(_: Any) -> Any:
    raise SystemExit(1)


def _interrupts(_: Any) -> Any:
    raise KeyboardInterrupt


def _closes(_: Any) -> Any:
    raise GeneratorExit


def _recurs(asked: Any) -> Any:
    return _recurs(asked)


def _writes(view: Any) -> Any:
    view.up[:] = False
    return view.up


#: Actions of a plug-in instead of a valid answer.
ACTIONS: dict[str, Callable[[Any], Any]] = {
    "divides by nothing": lambda _: 1 // 0,
    "says what value is wrong": lambda _: (_ for _ in ()).throw(BadValue("rack is 'r1'")),
    "ends the process": _ends_the_process,
    "interrupts": _interrupts,
    "closes": _closes,
    "recurs for ever": _recurs,
    "answers nothing": lambda _: None,
    "answers words": lambda _: "yes",
    "answers a list": lambda view: [True] * len(view),
    "answers too much": lambda view: np.ones(len(view) + 1),
    "hides its answers": lambda view: np.ma.masked_equal(np.zeros(len(view), dtype=np.bool_), 0),
    "hides one number": lambda view: np.ma.masked_equal(np.arange(len(view)), 1),
    "answers objects": lambda view: np.array([None] * len(view)),
    "answers complex numbers": lambda view: np.ones(len(view)) * 1j,
    "answers no numbers": lambda view: np.full(len(view), np.nan),
    "answers numbers too far apart": lambda view: np.linspace(-1e308, 1e308, len(view)),
    "writes into the view": _writes,
}
each_action = pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS.keys())


class BreakingFilter(Filter):
    def passes(self, host: Host, request: RequestSpec) -> bool:
        raise NotImplementedError

    def mask(self, view: HostView, request: RequestSpec) -> Any:
        return self.settings["action"](view)


class Unsure(Filter):
    reason = None  # type: ignore[assignment]

    def concerns(self, request: RequestSpec) -> Any:
        return self.settings["action"](request)

    def check(self, request: RequestSpec) -> None:
        self.settings["check"](request)

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.service_host != "host1"


class BreakingWeigher(Weigher):
    def weigh(self, host: Host, request: RequestSpec) -> float:
        raise NotImplementedError

    def scores(self, view: HostView, request: RequestSpec) -> Any:
        return self.settings["action"](view)


class UnsureWeigher(BreakingWeigher):
    def concerns(self, request: RequestSpec) -> Any:
        return self.settings["action"](request)


class BreakingRequestFilter(RequestFilter):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> Any:
        return self.settings["action"]([request])


VIEW = host_cache([host_row(number) for number in range(3)]).snapshot()
ASKED = structs.replace(select("r1", count=2), explain=True)


def rules(failure_counts: FailureCounts, *, skip: bool, **plugins: Any) -> DecisionPolicy:
    plugin_failures = PluginFailures(failure_counts, skip=skip)
    filters = [Named("a", plugins["filter"])] if "filter" in plugins else []
    weighers = [Weighted("a", plugins["weigher"], 1.0)] if "weigher" in plugins else []
    weighers.append(Weighted("ram", RamWeigher({}), 1.0))
    narrowing = [Named("a", plugins["request_filter"])] if "request_filter" in plugins else []
    return DecisionPolicy(filters, weighers, narrowing, plugin_failures=plugin_failures)


def decided(by: DecisionPolicy) -> DestinationPlan:
    planner, request_filters = by.for_request(lambda _begun_after: (), lambda _request: None)
    planner.funnel.check(ASKED.request_spec)
    narrowed = request_filters.narrow(ASKED.request_spec, VIEW, 0.0)
    assert not isinstance(narrowed, Refusal)
    plan = planner.plan(VIEW, structs.replace(ASKED, request_spec=narrowed), RefusedClaims())
    assert not isinstance(plan, NoHost)
    return plan


def check_both(kind: str, plugin: Any) -> None:
    """Check that a broken plug-in fails the request, or is skipped, and that the answer names it in either case."""
    failure_counts, what = FailureCounts(), kind.replace("_", " ")
    with pytest.raises(errors.BrokenPlugin) as caught:
        decided(rules(failure_counts, skip=False, **{kind: plugin}))
    assert (caught.value.plugin, caught.value.name) == (what, "a")
    assert not isinstance(caught.value, errors.PlacementRefused)
    skipping = rules(failure_counts, skip=True, **{kind: plugin})
    plan = decided(skipping)
    assert len(plan.chosen) == 2
    for explanation in plan.explanations:
        assert list(explanation.skipped_plugins) == [f"{what} a"]
        assert f"decided without the broken {what} a" in explanation.summary()
    assert [score.weigher for score in plan.explanations[0].top_hosts[0].scores] == ["ram"]
    # It is used again for the next request, and once for each.
    decided(skipping)
    assert failure_counts.counts() == {f"{what} a": 3}


@each_action
def test_a_filter_that_breaks_fails_the_request_or_is_left_out(action: Callable[[Any], Any]) -> None:
    check_both("filter", BreakingFilter({"action": action}))


@each_action
def test_a_weigher_that_breaks_fails_the_request_or_is_left_out(action: Callable[[Any], Any]) -> None:
    check_both("weigher", BreakingWeigher({"action": action}))


@each_action
def test_a_request_filter_that_breaks_fails_the_request_or_is_left_out(action: Callable[[Any], Any]) -> None:
    check_both("request_filter", BreakingRequestFilter({"action": action}))


each_vague_answer = pytest.mark.parametrize(
    "action",
    [
        ACTIONS["divides by nothing"],
        ACTIONS["ends the process"],
        ACTIONS["answers nothing"],
        ACTIONS["answers words"],
        lambda _: 0,
        lambda _: np.array([True, False]),
    ],
)


@each_vague_answer
def test_a_filter_that_cannot_say_whether_it_is_concerned_is_broken(action: Callable[[Any], Any]) -> None:
    check_both("filter", Unsure({"action": action, "check": lambda _: None}))


@each_vague_answer
def test_a_weigher_that_cannot_say_whether_it_is_concerned_is_broken(action: Callable[[Any], Any]) -> None:
    check_both("weigher", UnsureWeigher({"action": action}))


@pytest.mark.parametrize("answer", [None, "1", [1.0], np.array([1.0]), 1j])
def test_a_weigher_whose_score_of_a_host_is_no_number_is_broken_and_no_value_is_blamed(answer: Any) -> None:
    class Scoring(Weigher):
        def weigh(self, host: Host, request: RequestSpec) -> Any:
            return answer

    check_both("weigher", Scoring({}))
    with pytest.raises(errors.BrokenPlugin, match=r"weigher a is broken: (Type|Value)Error"):
        decided(rules(FailureCounts(), skip=False, weigher=Scoring({})))


def test_a_weigher_may_score_a_host_with_any_kind_of_number() -> None:
    scores = {"host0": True, "host1": 2**70, "host2": np.float32(0.5)}

    class Scoring(Weigher):
        def weigh(self, host: Host, request: RequestSpec) -> Any:
            return scores[host.service_host]

    plan = decided(rules(FailureCounts(), skip=False, weigher=Scoring({})))
    assert plan.explanations[0].top_hosts[0].host == "host1"


def test_a_filter_that_breaks_on_a_request_is_not_asked_about_hosts() -> None:
    check_both("filter", Unsure({"action": lambda _: True, "check": ACTIONS["recurs for ever"]}))


def test_a_filter_whose_reason_is_none_gets_one() -> None:
    plan = decided(
        rules(FailureCounts(), skip=False, filter=Unsure({"action": lambda _: True, "check": lambda _: None}))
    )
    assert plan.explanations[0].filters[0].reason == Filter.reason


@pytest.mark.parametrize("seconds", [0.0, 20.0])
@pytest.mark.parametrize("kind", [asyncio.CancelledError, BaseException])
def test_a_plugin_that_raises_no_exception_of_the_usual_base_is_broken(
    kind: type[BaseException], seconds: float
) -> None:
    def raising(_view: Any) -> Any:
        raise kind

    watch = PluginWatchdog(seconds)
    failures = PluginFailures(watch=watch)
    policy = DecisionPolicy([Named("a", BreakingFilter({"action": raising}))], [], plugin_failures=failures)
    with pytest.raises(errors.BrokenPlugin, match="filter a is broken: RuntimeError"):
        failures.run_watched(lambda: decided(policy))
    watch.stop()


class WithoutReason(Filter):
    @property
    def reason(self) -> str:  # type: ignore[override]
        raise LookupError

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.service_host != "host1"


def test_a_filter_whose_reason_cannot_be_read_is_broken_and_removes_no_host() -> None:
    check_both("filter", WithoutReason({}))
    plan = decided(rules(FailureCounts(), skip=True, filter=WithoutReason({})))
    assert plan.explanations[0].feasible == len(VIEW)


@pytest.mark.parametrize(
    "fault",
    [
        errors.InvalidRequest(),  # type: ignore[call-arg]
        errors.InvalidRequest(path="$.image", reason=object()),  # type: ignore[arg-type]
    ],
)
def test_a_filter_whose_error_of_the_request_has_no_path_or_no_reason_is_broken(fault: Exception) -> None:
    def refuse(_request: Any) -> None:
        raise fault

    check_both("filter", Unsure({"action": lambda _: True, "check": refuse}))


def test_a_skipped_plugin_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    failure_counts = FailureCounts(lambda: now)
    skipping = rules(failure_counts, skip=True, filter=BreakingFilter({"action": ACTIONS["divides by nothing"]}))
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            decided(skipping)
        assert [record.getMessage() for record in caplog.records] == [
            "The filter a is broken, and was left out of 1 request(s)"
        ]
        now += 61.0
        decided(skipping)
        assert caplog.records[-1].getMessage() == "The filter a is broken, and was left out of 5 request(s)"
    assert failure_counts.counts() == {"filter a": 6}
