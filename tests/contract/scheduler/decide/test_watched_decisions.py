"""Test decisions by plug-ins that may hang: each one is watched, and each run of it starts from the beginning."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.moorage.queued_calls import queue
from support.scheduler.builders import funnel
from support.scheduler.builders import select as asked
from support.scheduler.rig import OneScheduler, Rig

from harness.waiting import wait_until
from moorage import errors
from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import Filter, Host
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide import destinations
from scheduler.decide.environment import DecisionPolicy
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.plugin_failures import PluginFailures
from scheduler.plugins.watch import PluginWatchdog


class Gate(Filter):
    """A filter that does not return before it is opened."""

    def __init__(self) -> None:
        super().__init__({})
        self.reached, self.opened = threading.Event(), threading.Event()

    def passes(self, host: Host, request: RequestSpec) -> bool:
        self.reached.set()
        return self.opened.wait(30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def watch() -> Iterator[PluginWatchdog]:
    watch = PluginWatchdog(0.3)
    yield watch
    watch.stop()


def put_in_force(scheduler: OneScheduler, watch: PluginWatchdog, *, skip: bool = False, **filters: Filter) -> None:
    """Replace the policy of a scheduler by one whose plug-ins are watched, as a reload does."""
    plugins = funnel((1.0, 1.0, 1.0), **filters)
    failures = PluginFailures(skip=skip, watch=watch)
    scheduler.endpoint._shared._environment.policy = DecisionPolicy(
        plugins.filters, plugins.weighers, plugin_failures=failures
    )


def test_requests_that_wait_while_a_policy_with_foreign_plugins_is_loaded_are_watched(
    rig: Rig, gate: Gate, watch: PluginWatchdog
) -> None:
    rig.add_hosts([1])
    first = Gate()
    scheduler = rig.scheduler(plugins=funnel(gate=first))
    batches = scheduler.endpoint._shared._batches
    with ThreadPoolExecutor(4) as threads:
        try:
            before = threads.submit(scheduler.select, asked("before"))
            assert first.reached.wait(10)
            [after] = queue(threads, batches, [lambda: scheduler.select(asked("after"))])
            put_in_force(scheduler, watch, gate=gate)
            first.opened.set()
            assert len(before.result(10)) == 1
            with pytest.raises(errors.SlowPlugin):
                after.result(10)
            wait_until(lambda: not batches._is_under_way)
        finally:
            first.opened.set()
            gate.opened.set()


class OnCandidates(Filter):
    """Filters candidates; it passes each, once it is opened."""

    def __init__(self, *, is_open: bool) -> None:
        super().__init__({})
        self.opened = threading.Event()
        if is_open:
            self.opened.set()

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True

    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:
        return self.opened.wait(30)


def test_a_decision_that_runs_again_without_a_slow_plugin_has_a_new_search_budget(
    rig: Rig, watch: PluginWatchdog
) -> None:
    rig.add_hosts([1])
    scheduler, closed = rig.scheduler(), OnCandidates(is_open=False)
    put_in_force(scheduler, watch, skip=True, opened=OnCandidates(is_open=True), closed=closed)
    shared = scheduler.endpoint._shared
    # The abandoned run uses both steps of this budget.
    claims = RefusedClaims(SearchBudget(steps=2))
    try:
        assert len(destinations.select(shared._environment, shared._writer, asked(), claims)) == 1
    finally:
        closed.opened.set()
