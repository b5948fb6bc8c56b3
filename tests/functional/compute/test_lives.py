"""Test how an agent names the lives of its hosts and its own incarnations."""

import threading
from collections.abc import Collection
from typing import Any

from support.compute.builders import HOST, HOSTS, FakeCell, NewStage, build_on, wait_until

from compute.driver import GuestSpec
from compute.fake.driver import FakeDriver
from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import (
    BuildFailedInCell,
    HostsReported,
    ListProviderTreesInCell,
    ReportHostsInCell,
    ReportProviderTree,
    ReturnHosts,
)
from moorage.messages.wire import Message


def test_a_list_of_guests_names_the_life_that_was_known_before_the_guests_were_listed(new_stage: NewStage) -> None:
    listing, go_on = threading.Event(), threading.Event()

    class Driver(FakeDriver):
        def unfinished(self, host: str) -> Collection[str]:
            listing.set()
            assert go_on.wait(30)
            return super().unfinished(host)

    stage = new_stage()
    stage.start(Driver)
    assert listing.wait(30)
    with stage.cell.lock:
        stage.cell.lives = dict.fromkeys(HOSTS, 7)
    before = len(stage.cell.received(ReportHostsInCell))
    wait_until(lambda: len(stage.cell.received(ReportHostsInCell)) >= before + 2)
    go_on.set()

    wait_until(lambda: stage.cell.received(ReturnHosts))
    assert stage.cell.received(ReturnHosts)[0].lives == dict.fromkeys(HOSTS, 1)


def test_a_failure_names_the_life_of_its_host(new_stage: NewStage) -> None:
    class Driver(FakeDriver):
        def spawn(self, host: str, guest: GuestSpec) -> None:
            raise errors.BuildFailed(host=host, instance_uuid=guest.instance_uuid, reason="no")

    stage = new_stage()
    with stage.cell.lock:
        stage.cell.lives = dict.fromkeys(HOSTS, 4)
    stage.start(Driver)
    wait_until(lambda: stage.cell.received(ReturnHosts) and not stage.cell.returning)

    stage.build(build_on(HOST))
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    assert stage.cell.received(BuildFailedInCell)[0].life == 5


class WrongAnswer(FakeCell):
    """Gives one wrong answer to a report of hosts that are alive."""

    answer: HostsReported | None = None

    @serves(ReportHostsInCell)
    def report_hosts(self, message: ReportHostsInCell) -> HostsReported:
        usual = super().report_hosts(message)
        if self.answer is not None and message.alive:
            answer, self.answer = self.answer, None
            return answer
        return usual


def reports_of_starts(cell: FakeCell) -> list[ReportHostsInCell]:
    return [message for message in cell.received(ReportHostsInCell) if message.started]


def test_an_agent_whose_incarnation_is_superseded_describes_all_its_hosts_under_a_new_one(new_stage: NewStage) -> None:
    cell = WrongAnswer()
    stage = new_stage(cell)
    stage.start()
    stage.wait_for_reports()
    cell.answer = HostsReported(superseded=True)

    wait_until(lambda: len(reports_of_starts(cell)) == 2)

    first, second = reports_of_starts(cell)
    assert (first.hosts, first.started) == (second.hosts, second.started)
    assert first.incarnation != second.incarnation
    assert len(cell.received(ListProviderTreesInCell)) == 2, "the other incarnation may have changed the trees"


def test_a_host_that_is_unknown_to_the_schedulers_is_described_again_after_its_providers(new_stage: NewStage) -> None:
    cell = WrongAnswer()
    stage = new_stage(cell)
    stage.start()
    stage.wait_for_reports()
    with cell.lock:
        cell.providers = type(cell.providers)()
        before = len(cell.messages)
    cell.answer = HostsReported(undescribed=(HOST,))

    wait_until(lambda: len(reports_of_starts(cell)) == 2)

    def is_description(message: Message[Any]) -> bool:
        return isinstance(message, ReportProviderTree) or (
            isinstance(message, ReportHostsInCell) and bool(message.hosts)
        )

    with cell.lock:
        tree, description = filter(is_description, cell.messages[before:])
    assert isinstance(tree, ReportProviderTree)
    assert isinstance(description, ReportHostsInCell)
    assert [host.service_host for host in description.hosts] == [HOST]
    assert description.started == (HOST,)
    assert [provider.uuid for provider in tree.providers] == [description.hosts[0].compute_node_uuid]
