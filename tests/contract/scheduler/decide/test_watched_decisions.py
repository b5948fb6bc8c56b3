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
from moorage.model import RequestSpec
from moorage.plugin import Filter, Host
from scheduler.decide.environment import DecisionPolicy
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
    scheduler.endpoint._environment.policy = DecisionPolicy(
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
