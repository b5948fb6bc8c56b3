"""Requests whose candidates take long to find: alone there is more time, and what was claimed before stays claimed."""

import time

import pytest
from support.scheduler.builders import funnel, select
from support.scheduler.rig import Rig, rig_on_each_store

from moorage import errors
from moorage.batches import BatchItem
from moorage.messages import SelectDestinations
from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import Filter, Host
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide import destinations
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.selections import Selections
from scheduler.plugins.loading import Named

rig = rig_on_each_store


class Thoughtful(Filter):
    """Passes every candidate, and needs so many seconds of the processor for each."""

    def __init__(self, seconds: float) -> None:
        super().__init__({})
        self.seconds = seconds

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True

    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return True


def test_a_request_whose_alternates_take_too_long_for_its_batch_gets_them_alone(rig: Rig) -> None:
    rig.add_hosts(range(12))
    usual = funnel()
    plugins = Funnel([*usual.filters, Named("thoughtful", Thoughtful(0.01))], usual.weighers)
    scheduler = rig.scheduler(plugins=plugins)
    calls = [BatchItem[SelectDestinations, Selections](select(f"r{number}", num_alternates=9)) for number in range(2)]

    alone = scheduler.endpoint.select_many(calls)

    assert [len(decide()[0]) for decide in alone if decide is not None] == [10, 10]


def test_a_repeated_request_whose_search_is_given_up_now_gets_the_answer_that_it_has(rig: Rig) -> None:
    rig.add_hosts([1])
    usual = funnel()
    scheduler = rig.scheduler(plugins=Funnel([*usual.filters, Named("thoughtful", Thoughtful(0.0))], usual.weighers))
    claimed = scheduler.select(select("r1"))
    shared = scheduler.endpoint._shared

    def again(message: SelectDestinations) -> Selections:
        no_time = RefusedClaims(SearchBudget(steps=0))
        return destinations.select(shared._environment, shared._writer, message, no_time)

    assert again(select("r1")) == claimed
    with pytest.raises(errors.SearchBoundReached):
        again(select("r2"))
