"""How an agent names the lives of its hosts and numbers its messages."""

import threading
from typing import Any

from support.compute.builders import HOST, Begin, FakeCell, build_on, wait_until

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

HOSTS = ("host-0001", "host-0002", "host-0003")


def test_a_list_of_guests_names_the_life_that_was_known_before_anything_was_counted(stage: Begin) -> None:
    counting, go_on = threading.Event(), threading.Event()

    class Driver(FakeDriver):
        def unfinished(self, host: str) -> set[str]:
            counting.set()
            assert go_on.wait(30)
            return super().unfinished(host)

    now = stage()
    now.start(Driver)
    assert counting.wait(30)
    with now.cell.lock:
        now.cell.lives = dict.fromkeys(HOSTS, 7)
    heard = len(now.cell.said(ReportHostsInCell))
    wait_until(lambda: len(now.cell.said(ReportHostsInCell)) >= heard + 2)
    go_on.set()

    wait_until(lambda: now.cell.said(ReturnHosts))
    assert now.cell.said(ReturnHosts)[0].lives == dict.fromkeys(HOSTS, 1)


def test_a_failure_names_the_life_of_its_host(stage: Begin) -> None:
    class Driver(FakeDriver):
        def spawn(self, host: str, guest: GuestSpec) -> None:
            raise errors.BuildFailed(host=host, instance_uuid=guest.instance_uuid, reason="no")

    now = stage()
    with now.cell.lock:
        now.cell.lives = dict.fromkeys(HOSTS, 4)
    now.start(Driver)
    wait_until(lambda: now.cell.said(ReturnHosts) and not now.cell.returning)

    now.build(build_on(HOST))
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    assert now.cell.said(BuildFailedInCell)[0].life == 5


class Forgetful(FakeCell):
    """Answers one report in another way than it should."""

    answer: HostsReported | None = None

    @serves(ReportHostsInCell)
    def report_hosts(self, message: ReportHostsInCell) -> HostsReported:
        """Answer as a cell does to an incarnation that it takes for an old one, or without a host."""
        usual = super().report_hosts(message)
        if self.answer is not None and message.alive:
            answer, self.answer = self.answer, None
            return answer
        return usual


def begun(cell: FakeCell) -> list[ReportHostsInCell]:
    return [said for said in cell.said(ReportHostsInCell) if said.started]


def test_an_agent_that_the_cell_takes_for_an_earlier_one_describes_all_its_hosts_as_another(stage: Begin) -> None:
    cell = Forgetful()
    now = stage(cell)
    now.start()
    wait_until(lambda: any(said.alive for said in cell.said(ReportHostsInCell)))
    cell.answer = HostsReported(superseded=True)

    wait_until(lambda: len(begun(cell)) == 2)

    first, second = begun(cell)
    assert (first.hosts, first.started) == (second.hosts, second.started)
    assert first.incarnation != second.incarnation
    assert len(cell.said(ListProviderTreesInCell)) == 2, "what an earlier one may have changed is read again"


def test_a_host_that_the_schedulers_do_not_know_is_described_anew_after_its_providers(stage: Begin) -> None:
    cell = Forgetful()
    now = stage(cell)
    now.start()
    wait_until(lambda: any(said.alive for said in cell.said(ReportHostsInCell)))
    with cell.lock:
        cell.providers = type(cell.providers)()
        told = len(cell.told)
    cell.answer = HostsReported(undescribed=(HOST,))

    wait_until(lambda: len(begun(cell)) == 2)

    def of_interest(message: Message[Any]) -> bool:
        return isinstance(message, ReportProviderTree) or (isinstance(message, ReportHostsInCell) and not message.alive)

    with cell.lock:
        said = [message for message in cell.told[told:] if of_interest(message)]
    tree, description = said
    assert isinstance(tree, ReportProviderTree)
    assert isinstance(description, ReportHostsInCell)
    assert [host.service_host for host in description.hosts] == [HOST]
    assert description.started == (HOST,)
    assert [provider.uuid for provider in tree.providers] == [description.hosts[0].compute_node_uuid]
