"""Test the reports of an agent about its hosts."""

from typing import Any

import pytest
from msgspec import structs
from support.compute.builders import AGENT, AWAY, CELL, Begin, Failing, FakeCell, wait_until

from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from moorage import errors, ids
from moorage.messages import ListProviderTreesInCell, ReportHostsInCell, ReportProviderTree
from moorage.messages.wire import Message
from moorage.model import HostReport, Inventory


def test_hosts_are_described_once_after_their_providers_and_are_alive_from_then_on(stage: Begin) -> None:
    now = stage()
    driver = now.start()
    wait_until(lambda: len([said for said in now.cell.said(ReportHostsInCell) if said.alive]) >= 3)

    reports = [said for said in now.cell.told if isinstance(said, ReportProviderTree | ReportHostsInCell)]
    assert isinstance(reports[0], ReportHostsInCell)
    assert (reports[0].hosts, reports[0].alive, reports[0].started) == ((), (), ()), "an agent reports itself first"
    assert isinstance(reports[1], ReportProviderTree)
    assert [report.uuid for report in reports[1].providers] == [host.compute_node_uuid for host in driver.hosts()]
    assert list(reports[2].hosts) == list(driver.hosts())
    assert all(said.hosts == () for said in reports[3:])
    assert all(said.alive == ("host-0001", "host-0002", "host-0003") for said in reports[3:])
    assert [said.number for said in reports] == list(range(1, len(reports) + 1))
    assert len({said.incarnation for said in reports}) == 1
    assert all(said.agent == AGENT for said in reports)
    assert all(said.withheld == () for said in now.cell.said(ReportHostsInCell))
    assert len({said.request_id for said in reports}) == len(reports)


def test_thousands_of_hosts_are_reported_in_batches(stage: Begin) -> None:
    now = stage(fake_driver={"hosts": 2300})
    now.start()
    # Those that are described first are alive before the others are described.
    wait_until(lambda: any(len(said.alive) == 2300 for said in now.cell.said(ReportHostsInCell)))

    assert [len(said.providers) for said in now.cell.said(ReportProviderTree)] == [500, 500, 500, 500, 300]
    assert [len(said.hosts) for said in now.cell.said(ReportHostsInCell) if said.hosts] == [1000, 1000, 300]


def test_hosts_with_long_descriptions_are_reported_in_messages_that_the_broker_takes(stage: Begin) -> None:
    class WithTopology(FakeDriver):
        def hosts(self) -> list[HostReport]:
            return [structs.replace(host, attributes={"topology": "x" * 5 * 2**20}) for host in super().hosts()]

    now = stage()
    now.start(WithTopology)
    wait_until(lambda: any(len(said.alive) == 3 for said in now.cell.said(ReportHostsInCell)))

    assert [len(said.hosts) for said in now.cell.said(ReportHostsInCell) if said.hosts] == [1, 2]


def test_a_description_is_repeated_with_the_same_id_until_it_is_answered(stage: Begin) -> None:
    now = stage(Failing(AWAY, ReportProviderTree, left=2))
    now.start()
    wait_until(lambda: any(said.hosts for said in now.cell.said(ReportHostsInCell)))

    first, *others = now.cell.said(ReportProviderTree)
    assert others == [first] * 2


def test_a_provider_that_is_refused_keeps_none_of_the_others_out(stage: Begin) -> None:
    bad = ids.derived("fake-node", CELL.name, "host-0002")

    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, ReportProviderTree) and any(report.uuid == bad for report in message.providers):
                raise errors.InventoryInUse(provider_uuid=bad, resource_class="VCPU")

    now = stage(Cell())
    now.start()
    wait_until(lambda: any(said.alive for said in now.cell.said(ReportHostsInCell)))

    described = {report.service_host for said in now.cell.said(ReportHostsInCell) for report in said.hosts}
    assert described == {"host-0001", "host-0003"}
    assert all("host-0002" not in said.alive for said in now.cell.said(ReportHostsInCell))
    # Its guests can be destroyed: one of them may be why it is refused.
    wait_until(lambda: ("host-0002",) in {said.withheld for said in now.cell.said(ReportHostsInCell)})


class Refuses(FakeCell):
    """Meets a fault of its own with what is reported of host 2."""

    def before_answer(self, message: Message[Any]) -> None:
        names = {report.name for report in getattr(message, "providers", ())}
        zones = {host.availability_zone for host in getattr(message, "hosts", ())}
        if "odd" in names | zones:
            raise errors.InternalError(kind="UnicodeEncodeError")


class OddZone(FakeDriver):
    def hosts(self) -> list[HostReport]:
        return [odd(host, availability_zone="odd") for host in super().hosts()]


class OddAttribute(FakeDriver):
    def hosts(self) -> list[HostReport]:
        return [odd(host, attributes={"serial": object()}) for host in super().hosts()]


class OddTree(FakeDriver):
    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        super().update_provider_tree(host, tree)
        if host.service_host == "host-0002":
            tree.new_child("odd", host.compute_node_uuid)


class OddInventory(FakeDriver):
    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        super().update_provider_tree(host, tree)
        if host.service_host == "host-0002":
            total: Any = object()
            tree.set_inventory(host.compute_node_uuid, "VCPU", Inventory(total=total))


def odd(host: HostReport, **changes: Any) -> HostReport:
    return structs.replace(host, **changes) if host.service_host == "host-0002" else host


@pytest.mark.parametrize("driver", [OddZone, OddAttribute, OddTree, OddInventory])
def test_a_host_that_cannot_be_reported_keeps_none_of_the_others_out(
    stage: Begin, driver: type[FakeDriver], caplog: pytest.LogCaptureFixture
) -> None:
    now = stage(Refuses())
    now.start(driver)

    def alive() -> set[str]:
        return {host for said in now.cell.said(ReportHostsInCell) for host in said.alive}

    # In messages of their own, one after the other.
    wait_until(lambda: alive() >= {"host-0001", "host-0003"})
    assert alive() == {"host-0001", "host-0003"}
    assert any("host-0002" in record.getMessage() for record in caplog.records if record.levelname == "ERROR")


def test_a_dead_host_is_described_and_not_said_to_be_alive(stage: Begin) -> None:
    class HalfDead(FakeDriver):
        def alive(self) -> list[str]:
            return ["host-0002"]

    now = stage()
    now.start(HalfDead)
    wait_until(lambda: any(said.alive for said in now.cell.said(ReportHostsInCell)))

    described = {report.service_host for said in now.cell.said(ReportHostsInCell) for report in said.hosts}
    assert described == {"host-0001", "host-0002", "host-0003"}
    assert {said.alive for said in now.cell.said(ReportHostsInCell) if said.alive} == {("host-0002",)}


def test_hosts_that_the_cell_has_lost_are_described_anew(stage: Begin) -> None:
    class Cell(FakeCell):
        lost = False

        def before_answer(self, message: Message[Any]) -> None:
            if self.lost and isinstance(message, ReportHostsInCell) and message.alive:
                self.lost = False
                raise errors.HostNotFound(name=message.alive[0])

    cell = Cell()
    now = stage(cell)
    now.start()
    wait_until(lambda: any(said.alive for said in cell.said(ReportHostsInCell)))
    cell.lost = True
    wait_until(lambda: len([said for said in cell.said(ReportHostsInCell) if said.hosts]) == 2)

    assert len(cell.said(ListProviderTreesInCell)) == 2, "nothing that was answered before is relied upon"
    assert len(cell.said(ReportProviderTree)) == 1, "and nothing is told that the store still has"
