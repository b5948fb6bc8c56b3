"""Test which reshapes an agent requests and when, and how it treats a host whose reshape is refused."""

import re
from typing import Any

import pytest
from support.compute.builders import AGENT, CELL, NewStage, wait_until
from support.compute.provider_tree_messages import DEVICES, provider_methods, tracker_errors

from compute.cell_client import CellClient
from compute.driver import ReshapeNeeded
from compute.fake.driver import FakeDriver
from compute.numbering import Numbering
from compute.provider_tree import ProviderTree
from compute.tracker import Tracker
from moorage import errors, ids
from moorage.messages import ReportHostsInCell, ReshapeProviderTree
from moorage.messages.wire import Message
from moorage.model import HostReport, Inventory, MoveInstruction


def needed_move(source: str, resources: Any, target: str) -> ReshapeNeeded:
    """Return the error of a driver that wants to move resources between two providers."""
    move = MoveInstruction(from_resource_provider=source, moved_resources=resources, to_resource_provider=target)
    return ReshapeNeeded([move])


def test_after_a_restart_with_nested_providers_inventories_are_moved_before_anything_is_reported(
    new_stage: NewStage,
) -> None:
    stage = new_stage(fake_driver=DEVICES | {"layout": "flat"})
    stage.start()
    stage.wait_for_reports()
    assert stage.cell.providers.names() == {"host-0001", "host-0002"}
    assert stage.cell.providers.named("host-0001").inventories["VGPU"].total == 8
    stage.stop()
    before = len(provider_methods(stage))
    stage.restart(layout="nested")
    stage.wait_for_reports()

    first, _second = stage.cell.received(ReshapeProviderTree)
    node = stage.cell.providers.named("host-0001")
    names = {record.uuid: record.name for record in stage.cell.providers.records.values()}
    moved = [(names[move.to_resource_provider], dict(move.moved_resources)) for move in first.instructions]
    bandwidth = dict.fromkeys(("NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"), 10_000_000)
    assert sorted(moved) == [
        ("host-0001_gpu0", {"VGPU": 4}),
        ("host-0001_gpu1", {"VGPU": 4}),
        ("host-0001_nic0", {"SRIOV_NET_VF": 8} | bandwidth),
        ("host-0001_numa0", {"VCPU": 8, "MEMORY_MB": 16384}),
        ("host-0001_numa1", {"VCPU": 8, "MEMORY_MB": 16384}),
    ]
    assert {move.from_resource_provider for move in first.instructions} == {node.uuid}
    assert set(node.inventories) == {"DISK_GB"}
    assert provider_methods(stage)[before : before + 3] == [
        "list_provider_trees",
        "reshape_provider_tree",
        "list_provider_trees",
    ]
    stage.wait_for_reports(2)
    assert len(stage.cell.received(ReshapeProviderTree)) == 2, "one for each host"


def test_a_restart_with_flat_providers_moves_everything_back_and_removes_the_children(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver=DEVICES)
    stage.start()
    stage.wait_for_reports()

    stage.restart(layout="flat")
    wait_until(lambda: stage.cell.providers.names() == {"host-0001", "host-0002"})

    assert stage.cell.providers.named("host-0001").inventories["VCPU"] == Inventory(total=16, max_unit=16)


def test_only_the_host_whose_reshape_is_refused_is_withheld_and_its_reshape_is_tried_again(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = new_stage(fake_driver=DEVICES | {"layout": "flat"})
    stage.start()
    stage.wait_for_reports()
    stage.stop()
    full = [stage.cell.providers.named("host-0001").uuid]

    def refuse(message: Message[Any]) -> None:
        if isinstance(message, ReshapeProviderTree) and message.instructions[0].from_resource_provider in full:
            raise errors.ImpossibleDeal(consumer_uuid=ids.fresh(), provider_uuid=full[0], reason="it is too large")

    stage.cell.before_answer = refuse  # type: ignore[method-assign]
    with tracker_errors(caplog) as logged:
        stage.restart(layout="nested")
        stage.wait_for_reports()
    assert re.search("host host-0001 were refused.*it is too large", logged[0])
    assert [message.alive for message in stage.cell.received(ReportHostsInCell) if message.alive][-1] == ("host-0002",)
    wait_until(lambda: stage.cell.received(ReportHostsInCell)[-1].withheld == ("host-0001",))
    full.clear()
    wait_until(lambda: stage.cell.received(ReportHostsInCell)[-1].alive == ("host-0001", "host-0002"))


def test_reshapes_that_exceed_the_time_limit_are_made_with_a_later_report(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver=DEVICES | {"layout": "flat"})
    stage.start()
    stage.wait_for_reports()
    stage.stop()
    stage.conf.set_override("layout", "nested", group="fake_driver")
    driver = FakeDriver(stage.conf, AGENT, CELL.name)
    cell = CellClient(stage.peers.bus.client(f"conductor.{CELL.uuid}"))
    tracker = Tracker(driver, cell, Numbering(driver.agent), reshaping_seconds=0.0)

    tracker.track(driver.hosts())
    assert [tracker.is_reported(host) for host in driver.hosts()] == [True, False]
    tracker.track(driver.hosts())
    assert [tracker.is_reported(host) for host in driver.hosts()] == [True, True]


class Restructuring(FakeDriver):
    """Moves its disk to a child provider under the node as soon as a test sets ``has_pool``."""

    has_pool = False

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        if not self.has_pool:
            super().update_provider_tree(host, tree)
            return
        pool = f"{host.nodename}_pool"
        if tree.find(pool) is None:
            total = tree.get(host.nodename).inventories["DISK_GB"].total
            tree.new_child(pool, host.nodename)
            tree.set_inventory(pool, "DISK_GB", Inventory(total=total))
            tree.remove_inventory(host.nodename, "DISK_GB")
            raise needed_move(host.compute_node_uuid, {"DISK_GB": total}, tree.get(pool).uuid)


def test_a_reshape_wanted_after_the_first_report_is_not_made_and_the_remedy_is_logged_once(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = new_stage(fake_driver={"hosts": 1})
    driver = stage.start(Restructuring)
    stage.wait_for_reports()
    with tracker_errors(caplog) as logged:
        driver.has_pool = True
        stage.wait_for_reports(4)

    assert stage.cell.received(ReshapeProviderTree) == []
    assert stage.cell.providers.names() == {"host-0001"}
    assert len(logged) == 1
    assert re.search(r"host-0001.*restart the agent, or set \[compute\] reshape_at_any_report", logged[0])


def test_a_reshape_wanted_after_the_first_report_is_made_where_the_operator_allows_it(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hosts": 1}, compute={"reshape_at_any_report": True})
    driver = stage.start(Restructuring)
    stage.wait_for_reports()
    driver.has_pool = True
    wait_until(lambda: stage.cell.providers.names() == {"host-0001", "host-0001_pool"})

    assert "DISK_GB" not in stage.cell.providers.named("host-0001").inventories
    stage.wait_for_reports(2)
    assert len(stage.cell.received(ReshapeProviderTree)) == 1


def test_a_driver_that_always_wants_a_reshape_does_not_delay_the_other_hosts(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    class Insatiable(FakeDriver):
        def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
            super().update_provider_tree(host, tree)
            if host.service_host == "host-0001":
                raise needed_move(f"{host.nodename}_numa0", {"VCPU": 1}, f"{host.nodename}_numa1")

    stage = new_stage(fake_driver={"hosts": 2, "numa_nodes": 2})
    with tracker_errors(caplog) as logged:
        stage.start()
        stage.wait_for_reports()
        stage.stop()
        before = len(stage.cell.received(ReportHostsInCell))
        stage.start(Insatiable)
        stage.wait_for_reports()

    reports = stage.cell.received(ReportHostsInCell)[before:]
    assert {message.alive for message in reports if message.alive} == {("host-0002",)}
    assert "again and again" in logged[0]


def test_a_reshape_that_cannot_be_sent_does_not_keep_the_other_hosts_from_being_reported(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Restructuring):
        def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
            super().update_provider_tree(host, tree)
            if host.service_host == "host-0001":
                raise needed_move(host.compute_node_uuid, {"VCPU": object()}, host.compute_node_uuid)

    stage = new_stage(fake_driver={"hosts": 2})
    with tracker_errors(caplog) as logged:
        stage.start(Odd)
        stage.wait_for_reports()

    assert {message.alive for message in stage.cell.received(ReportHostsInCell) if message.alive} == {("host-0002",)}
    assert "host host-0001 were refused" in logged[0]


def test_a_reshape_is_repeated_with_its_id_until_it_is_answered(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver=DEVICES | {"hosts": 1, "layout": "flat"})
    stage.start()
    stage.wait_for_reports()
    stage.stop()
    errors_left = [1, 1]

    def answer(message: Message[Any]) -> None:
        if isinstance(message, ReshapeProviderTree) and errors_left:
            errors_left.pop()
            raise errors.RequestInProgress(request_id=message.request_id)

    stage.cell.before_answer = answer  # type: ignore[method-assign]
    stage.restart(layout="nested")
    stage.wait_for_reports()

    requests = stage.cell.received(ReshapeProviderTree)
    assert len(requests) == 3
    assert len({message.request_id for message in requests}) == 1
