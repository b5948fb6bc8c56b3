"""Test the limit of a search: a request has more time alone than in a batch, and a stored answer needs no search."""

import time

import pytest
from support.scheduler.builders import funnel, select
from support.scheduler.rig import Rig

from moorage import errors
from moorage.batches import BatchItem
from moorage.messages import SelectDestinations
from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import Filter, Host
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide import destinations
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.selections import Selections


class Slow(Filter):
    """Passes every candidate, and uses the processor for some seconds for each."""

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


def test_a_request_whose_search_is_too_long_for_a_batch_gets_its_alternates_alone(rig: Rig) -> None:
    rig.add_hosts(range(12))
    scheduler = rig.scheduler(plugins=funnel(slow=Slow(0.01)))
    calls = [BatchItem[SelectDestinations, Selections](select(f"r{number}", num_alternates=9)) for number in range(2)]

    alone = scheduler.endpoint.select_many(calls)

    assert [len(decide()[0]) for decide in alone if decide is not None] == [10, 10]


def test_a_repeated_request_gets_its_stored_answer_without_a_search(rig: Rig) -> None:
    rig.add_hosts([1])
    scheduler = rig.scheduler(plugins=funnel(slow=Slow(0.0)))
    claimed = scheduler.select(select("r1"))
    shared = scheduler.endpoint._shared

    def again(message: SelectDestinations) -> Selections:
        no_time = RefusedClaims(SearchBudget(steps=0))
        return destinations.select(shared._environment, shared._writer, message, no_time)

    assert again(select("r1")) == claimed
    with pytest.raises(errors.SearchBoundReached):
        again(select("r2"))
