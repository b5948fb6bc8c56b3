"""Test that after a scheduler has confirmed its view as current, no claim based on an older view follows."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scheduler.builders import select
from support.scheduler.rig import OneScheduler, Rig

from filters.compute import ComputeFilter
from moorage.batches import BatchItem
from moorage.messages import CatchUpView, SelectDestinations
from moorage.model import Destination, RequestSpec, Selection
from moorage.plugin import BoolArray, Filter, Host, HostView
from scheduler.decide.funnel import Funnel
from scheduler.decide.in_flight import InFlight
from scheduler.plugins.loading import Named


class Gate(Filter):
    """Blocks a decision after it has taken its snapshot of the hosts, until a test opens the gate."""

    def __init__(self) -> None:
        super().__init__({})
        self.reached, self.open = threading.Event(), threading.Event()

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        self.reached.set()
        assert self.open.wait(60)
        return np.ones(len(view), dtype=np.bool_)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(f"sqlite:///{tmp_path}/main.sqlite")
    rig.add_hosts([1, 2])
    yield rig
    rig.close()


def catch_up(scheduler: OneScheduler, patience: float) -> int:
    return scheduler.view_endpoint.catch_up_view(CatchUpView(patience=patience)).undecided


def host_of(scheduler: OneScheduler, request_id: str) -> str:
    [[claimed]] = scheduler.select(select(request_id, force_hosts=("host1", "host2")))
    return claimed.service_host


def test_a_view_has_all_changes_after_it_has_confirmed_the_catch_up(rig: Rig) -> None:
    scheduler = rig.scheduler(max_age=3600.0)
    rig.set_host("host1", disabled=True)
    enabled = scheduler.host_cache.snapshot().enabled
    assert enabled.all()
    assert catch_up(scheduler, 60.0) == 0
    assert scheduler.host_cache.snapshot().enabled.tolist().count(False) == 1
    assert {host_of(scheduler, f"r{number}") for number in range(8)} == {"host2"}


def test_a_catch_up_waits_for_earlier_decisions_and_counts_those_that_have_not_ended(rig: Rig) -> None:
    gate = Gate()
    filters: list[Named[Filter]] = [Named("compute", ComputeFilter({})), Named("gate", gate)]
    scheduler = rig.scheduler(max_age=3600.0, plugins=Funnel(filters, []))
    rig.set_host("host2", disabled=True)
    assert catch_up(scheduler, 0.0) == 0
    with ThreadPoolExecutor(2) as pool:
        decision = pool.submit(host_of, scheduler, "r1")
        assert gate.reached.wait(60)
        rig.set_host("host1", disabled=True)
        assert catch_up(scheduler, 0.0) == 1
        caught_up = pool.submit(catch_up, scheduler, 60.0)
        gate.open.set()
        # The decision was under way, so it may still claim host1, but the catch-up waits for its end.
        assert decision.result(60) == "host1"
        assert caught_up.result(60) == 0
    assert not scheduler.host_cache.snapshot().enabled.any()


def test_decisions_that_begin_during_the_wait_are_not_waited_for() -> None:
    under_way = InFlight()
    with ThreadPoolExecutor(1) as pool, under_way.counted():
        assert under_way.wait(0.0) == 1
        waiting = pool.submit(under_way.wait, 60.0)
        with under_way.counted():
            assert under_way.wait(0.0) == 2
            assert not waiting.done()
    assert waiting.result(60) == 0
    assert under_way.wait(60.0) == 0


def test_a_decision_that_fails_is_no_longer_under_way() -> None:
    under_way = InFlight()
    with pytest.raises(LookupError), under_way.counted():
        raise LookupError
    assert under_way.wait(0.0) == 0


def test_a_write_after_claims_between_whose_additions_the_view_was_followed_is_noticed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two requests that are claimed in one transaction, while another thread follows the store
    scheduler = rig.scheduler()
    add = scheduler.host_cache.apply_claims

    def add_and_follow(*claims: Any, **options: Any) -> None:
        monkeypatch.setattr(scheduler.host_cache, "apply_claims", add)
        add(*claims, **options)
        scheduler.follow()

    monkeypatch.setattr(scheduler.host_cache, "apply_claims", add_and_follow)
    calls: list[BatchItem[SelectDestinations, list[list[Selection]]]] = [
        BatchItem(select(f"r{number}", requested_destination=Destination(host="host1"))) for number in range(2)
    ]
    assert scheduler.endpoint.select_many(calls) == [None, None]

    # When another client takes some of the host
    rig.take(1, vcpus=1)
    scheduler.follow()

    # Then the view has it
    assert scheduler.used(1) == rig.scheduler().used(1) == 5
