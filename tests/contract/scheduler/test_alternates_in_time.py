"""Requests whose candidates take long to find: what is found in time is claimed, and alone there is more time."""

import time

from support.scheduler.builders import funnel, select
from support.scheduler.rig import Rig, rig_on_each_store

from moorage.batches import BatchItem
from moorage.messages import SelectDestinations
from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import Filter, Host
from scheduler.decide.funnel import Funnel
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
