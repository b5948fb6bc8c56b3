"""Test the reports of an agent about its hosts."""

import os
from typing import Any

import pytest
from msgspec import structs
from support.compute.builders import AGENT, CELL, UNAVAILABLE, FailingCell, FakeCell, NewStage, wait_until

from compute.driver import ReshapeNeeded
from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from compute.service import ComputeService
from moorage import errors, ids
from moorage.messages import ListProviderTreesInCell, ReportHostsInCell, ReportProviderTree
from moorage.messages.wire import Message
from moorage.model import HostReport, Inventory, MoveInstruction


def test_hosts_are_described_once_after_their_providers_and_are_alive_from_then_on(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start()
    wait_until(lambda: len([message for message in stage.cell.received(ReportHostsInCell) if message.alive]) >= 3)

    reports = [
        message for message in stage.cell.messages if isinstance(message, ReportProviderTree | ReportHostsInCell)
    ]
    itself, trees, description, *later = reports
    assert isinstance(itself, ReportHostsInCell)
    assert (itself.hosts, itself.alive, itself.started) == ((), (), ()), "an agent reports itself first"
    assert isinstance(trees, ReportProviderTree)
    assert [report.uuid for report in trees.providers] == [host.compute_node_uuid for host in driver.hosts()]
    assert isinstance(description, ReportHostsInCell)
    assert list(description.hosts) == list(driver.hosts())
    for message in later:
        assert isinstance(message, ReportHostsInCell)
        assert (message.hosts, message.alive) == ((), ("host-0001", "host-0002", "host-0003"))
    assert [message.number for message in reports] == list(range(1, len(reports) + 1))
    assert len({message.incarnation for message in reports}) == 1
    assert all(message.agent == AGENT for message in reports)
    assert all(message.withheld == () for message in stage.cell.received(ReportHostsInCell))
    assert len({message.request_id for message in reports}) == len(reports)


def test_nothing_is_reported_of_a_host_that_belongs_to_another_agent_until_it_is_free(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = new_stage()
    stage.cell.of_others = {"host-0002": "another"}
    driver = stage.start()
    nodes = [host.compute_node_uuid for host in driver.hosts()]
    wait_until(lambda: len([message for message in stage.cell.received(ReportHostsInCell) if message.alive]) >= 3)

    reports = stage.cell.received(ReportHostsInCell)
    assert [message.intended for message in reports if message.intended][:2] == [
        ("host-0001", "host-0002", "host-0003"),
        ("host-0002",),
    ]
    assert {host.service_host for message in reports for host in message.hosts} == {"host-0001", "host-0003"}
    assert {name for message in reports for name in message.alive} == {"host-0001", "host-0003"}
    trees = stage.cell.received(ReportProviderTree)
    assert {provider.uuid for message in trees for provider in message.providers} == {nodes[0], nodes[2]}
    assert [uuids for message in stage.cell.received(ListProviderTreesInCell) for uuids in message.uuids] == [
        nodes[0],
        nodes[2],
    ]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "Host host-0002 belongs to agent another, which is alive: this agent does not report it"
    ]

    with stage.cell.lock:
        stage.cell.of_others = {}

    wait_until(lambda: "host-0002" in stage.cell.received(ReportHostsInCell)[-1].alive)
    assert stage.cell.received(ReportProviderTree)[-1].providers[0].uuid == nodes[1]


def test_many_hosts_are_reported_in_batches(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hosts": 1100})
    stage.start()
    # The hosts described first are alive before the others are described.
    wait_until(lambda: any(len(message.alive) == 1100 for message in stage.cell.received(ReportHostsInCell)))

    assert [len(message.providers) for message in stage.cell.received(ReportProviderTree)] == [500, 500, 100]
    assert [len(message.hosts) for message in stage.cell.received(ReportHostsInCell) if message.hosts] == [1000, 100]


def test_hosts_with_long_descriptions_are_reported_in_messages_that_the_broker_takes(new_stage: NewStage) -> None:
    class WithTopology(FakeDriver):
        def hosts(self) -> list[HostReport]:
            return [structs.replace(host, attributes={"topology": "x" * 5 * 2**20}) for host in super().hosts()]

    stage = new_stage()
    stage.start(WithTopology)
    wait_until(lambda: any(len(message.alive) == 3 for message in stage.cell.received(ReportHostsInCell)))

    assert [len(message.hosts) for message in stage.cell.received(ReportHostsInCell) if message.hosts] == [1, 2]


def test_a_description_is_repeated_with_the_same_id_until_it_is_answered(new_stage: NewStage) -> None:
    stage = new_stage(FailingCell(UNAVAILABLE, ReportProviderTree, left=2))
    stage.start()
    wait_until(lambda: any(message.hosts for message in stage.cell.received(ReportHostsInCell)))

    first, *others = stage.cell.received(ReportProviderTree)
    assert others == [first] * 2


def test_a_refused_provider_does_not_keep_the_other_hosts_from_being_reported(new_stage: NewStage) -> None:
    bad = ids.derived("fake-node", CELL.name, "host-0002")

    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, ReportProviderTree) and any(report.uuid == bad for report in message.providers):
                raise errors.InventoryInUse(provider_uuid=bad, resource_class="VCPU")

    stage = new_stage(Cell())
    stage.start()
    stage.wait_for_reports()

    described = {report.service_host for message in stage.cell.received(ReportHostsInCell) for report in message.hosts}
    assert described == {"host-0001", "host-0003"}
    assert all("host-0002" not in message.alive for message in stage.cell.received(ReportHostsInCell))
    # Its guests can be destroyed: one of them may be the reason for the refusal.
    wait_until(lambda: ("host-0002",) in {message.withheld for message in stage.cell.received(ReportHostsInCell)})


class RefusingCell(FakeCell):
    """Fails with an internal error on reports of host 2."""

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


class OddTraits(FakeDriver):
    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        super().update_provider_tree(host, tree)
        if host.service_host == "host-0002":
            missing: Any = None
            tree.add_traits(host.compute_node_uuid, ["CUSTOM_A", missing])


class OddChild(FakeDriver):
    """Wants to move an inventory to a new provider, of which it describes the inventory by an odd value."""

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        super().update_provider_tree(host, tree)
        if host.service_host == "host-0002":
            reserved: Any = object()
            gpu = tree.new_child("gpu", host.compute_node_uuid).uuid
            tree.set_inventory(gpu, "VGPU", Inventory(total=1, reserved=reserved))
            node = host.compute_node_uuid
            raise ReshapeNeeded(
                [MoveInstruction(from_resource_provider=node, moved_resources={"VGPU": 1}, to_resource_provider=gpu)]
            )


def odd(host: HostReport, **changes: Any) -> HostReport:
    return structs.replace(host, **changes) if host.service_host == "host-0002" else host


class OddUuid(FakeDriver):
    """Describes a node by its uuid as the firmware writes it."""

    def hosts(self) -> list[HostReport]:
        return [odd(host, compute_node_uuid=host.compute_node_uuid.upper()) for host in super().hosts()]


class OddNode(FakeDriver):
    def hosts(self) -> list[HostReport]:
        return [odd(host, nodename=os.fsdecode(b"caf\xe9")) for host in super().hosts()]


@pytest.mark.parametrize(
    "driver", [OddZone, OddAttribute, OddTree, OddInventory, OddTraits, OddChild, OddUuid, OddNode]
)
def test_a_host_that_cannot_be_reported_does_not_keep_the_others_from_being_reported(
    new_stage: NewStage, driver: type[FakeDriver], caplog: pytest.LogCaptureFixture
) -> None:
    stage = new_stage(RefusingCell())
    stage.start(driver)

    def alive() -> set[str]:
        return {host for message in stage.cell.received(ReportHostsInCell) for host in message.alive}

    # Each host in a message of its own, one after the other.
    wait_until(lambda: alive() >= {"host-0001", "host-0003"})
    assert alive() == {"host-0001", "host-0003"}
    assert any("host-0002" in record.getMessage() for record in caplog.records if record.levelname == "ERROR")


class OddReshape(OddUuid):
    """Wants a reshape of each host."""

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        node = tree.new_root(host.nodename, host.compute_node_uuid).uuid
        moved = MoveInstruction(from_resource_provider=node, moved_resources={"VGPU": 1}, to_resource_provider="gpu")
        raise ReshapeNeeded([moved])


def test_a_host_that_cannot_be_reported_is_left_out_of_the_reshapes_that_the_driver_wants(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = new_stage()
    service = ComputeService(stage.conf, CELL.name, OddReshape(stage.conf, AGENT, CELL.name))

    wanted = [change.host.service_host for change in service.wanted_reshapes()]

    assert wanted == ["host-0001", "host-0003"]
    assert "Host 'host-0002' is not reported: its compute_node_uuid is invalid" in caplog.text


class NodeWithLineBreak(FakeDriver):
    def hosts(self) -> list[HostReport]:
        return [odd(host, nodename="node\n2") for host in super().hosts()]


def test_a_host_with_a_line_break_in_a_name_is_left_out_before_its_providers_are_reported(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = new_stage(RefusingCell())
    stage.start(NodeWithLineBreak)
    wait_until(lambda: any("host-0003" in message.alive for message in stage.cell.received(ReportHostsInCell)))
    assert "Host 'host-0002' is not reported: its nodename has a control character" in caplog.text
    described = [host.nodename for message in stage.cell.received(ReportHostsInCell) for host in message.hosts]
    assert "node\n2" not in described


def test_a_dead_host_is_described_but_not_reported_as_alive(new_stage: NewStage) -> None:
    class HalfDead(FakeDriver):
        def alive(self) -> list[str]:
            return ["host-0002"]

    stage = new_stage()
    stage.start(HalfDead)
    stage.wait_for_reports()

    described = {report.service_host for message in stage.cell.received(ReportHostsInCell) for report in message.hosts}
    assert described == {"host-0001", "host-0002", "host-0003"}
    assert {message.alive for message in stage.cell.received(ReportHostsInCell) if message.alive} == {("host-0002",)}


def test_hosts_that_the_cell_has_lost_are_described_again(new_stage: NewStage) -> None:
    class Cell(FakeCell):
        lost = False

        def before_answer(self, message: Message[Any]) -> None:
            if self.lost and isinstance(message, ReportHostsInCell) and message.alive:
                self.lost = False
                raise errors.HostNotFound(name=message.alive[0])

    cell = Cell()
    stage = new_stage(cell)
    stage.start()
    stage.wait_for_reports()
    cell.lost = True
    wait_until(lambda: len([message for message in cell.received(ReportHostsInCell) if message.hosts]) == 2)

    assert len(cell.received(ListProviderTreesInCell)) == 2, "earlier answers are not used"
    assert len(cell.received(ReportProviderTree)) == 1, "the store still has the trees"


def test_a_node_that_gets_its_former_name_back_is_described_again(new_stage: NewStage) -> None:
    class Renames(FakeDriver):
        suffix = ""

        def hosts(self) -> list[HostReport]:
            return [odd(host, nodename=host.nodename + self.suffix) for host in super().hosts()]

    stage = new_stage()
    driver = stage.start(Renames)
    for suffix in (".example", ""):
        stage.wait_for_reports(2)
        driver.suffix = suffix
    stage.wait_for_reports(2)

    described = [message for message in stage.cell.received(ReportHostsInCell) if message.hosts]
    former = driver.hosts()[1].nodename
    assert [[host.nodename for host in message.hosts] for message in described[1:]] == [[f"{former}.example"], [former]]
    assert [message.started for message in described[1:]] == [("host-0002",)] * 2


def test_a_node_is_described_with_its_former_name_also_if_another_node_has_given_its_name_up(
    new_stage: NewStage,
) -> None:
    class PassesNamesOn(FakeDriver):
        names = "ab"
        other = ids.fresh()

        def hosts(self) -> list[HostReport]:
            host = super().hosts()[1]
            return [
                structs.replace(host, nodename=self.names[0]),
                structs.replace(host, nodename=self.names[1], compute_node_uuid=self.other),
            ]

    stage = new_stage()
    driver = stage.start(PassesNamesOn)
    for names in ("bc", "ac"):
        stage.wait_for_reports(2)
        driver.names = names
    stage.wait_for_reports(2)

    described = [message for message in stage.cell.received(ReportHostsInCell) if message.hosts]
    assert [[host.nodename for host in message.hosts] for message in described[1:]] == [["b", "c"], ["a"]]
    assert [message.started for message in described[1:]] == [("host-0002",)] * 2


def test_a_node_that_the_driver_lists_with_two_names_is_described_once(new_stage: NewStage) -> None:
    class ListsTwoNames(FakeDriver):
        lists_both = False

        def hosts(self) -> list[HostReport]:
            hosts = super().hosts()
            further = structs.replace(hosts[1], nodename="another")
            return [*hosts, further] if self.lists_both else list(hosts)

    stage = new_stage()
    driver = stage.start(ListsTwoNames)
    stage.wait_for_reports(2)
    driver.lists_both = True
    stage.wait_for_reports(6)

    described = [message for message in stage.cell.received(ReportHostsInCell) if message.hosts]
    assert [[host.nodename for host in message.hosts] for message in described[1:]] == [["another"]]
