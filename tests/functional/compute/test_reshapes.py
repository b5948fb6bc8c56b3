"""Test which reshapes an agent requests and when, and how it treats a host whose reshape is refused."""

import re
from typing import Any

import pytest
from support.compute.builders import AGENT, CELL, Begin, wait_until
from support.compute.provider_tree_messages import DEVICES, logged, of_providers, until_alive

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


def test_a_restart_with_nested_providers_has_what_is_flat_moved_before_anything_is_told(stage: Begin) -> None:
    now = stage(fake_driver=DEVICES | {"layout": "flat"})
    now.start()
    until_alive(now)
    assert now.cell.providers.names() == {"host-0001", "host-0002"}
    assert now.cell.providers.named("host-0001").inventories["VGPU"].total == 8
    now.stop()
    before = len(of_providers(now))
    now.conf.set_override("layout", "nested", group="fake_driver")
    now.start()
    until_alive(now)

    first, _second = now.cell.said(ReshapeProviderTree)
    node = now.cell.providers.named("host-0001")
    names = {record.uuid: record.name for record in now.cell.providers.records.values()}
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
    assert of_providers(now)[before : before + 3] == [
        "list_provider_trees",
        "reshape_provider_tree",
        "list_provider_trees",
    ]
    until_alive(now, reports=2)
    assert len(now.cell.said(ReshapeProviderTree)) == 2, "once a host"


def test_a_restart_with_flat_providers_moves_everything_back_and_the_children_go(stage: Begin) -> None:
    now = stage(fake_driver=DEVICES)
    now.start()
    until_alive(now)
    now.stop()
    now.conf.set_override("layout", "flat", group="fake_driver")
    now.start()
    wait_until(lambda: now.cell.providers.names() == {"host-0001", "host-0002"})

    assert now.cell.providers.named("host-0001").inventories["VCPU"] == Inventory(total=16, max_unit=16)


def test_a_host_whose_reshape_is_refused_stays_out_alone_and_is_tried_again(
    stage: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    now = stage(fake_driver=DEVICES | {"layout": "flat"})
    now.start()
    until_alive(now)
    now.stop()
    full = [now.cell.providers.named("host-0001").uuid]

    def refuse(message: Message[Any]) -> None:
        if isinstance(message, ReshapeProviderTree) and message.instructions[0].from_resource_provider in full:
            raise errors.ImpossibleDeal(consumer_uuid=ids.fresh(), provider_uuid=full[0], reason="it is too large")

    now.cell.before_answer = refuse  # type: ignore[method-assign]
    now.conf.set_override("layout", "nested", group="fake_driver")
    with logged(caplog) as told:
        now.start()
        until_alive(now)
    assert re.search("host-0001 has is refused.*it is too large", told[0])
    assert [message.alive for message in now.cell.said(ReportHostsInCell) if message.alive][-1] == ("host-0002",)
    wait_until(lambda: now.cell.said(ReportHostsInCell)[-1].withheld == ("host-0001",))
    full.clear()
    wait_until(lambda: now.cell.said(ReportHostsInCell)[-1].alive == ("host-0001", "host-0002"))


def test_hosts_whose_reshape_has_to_wait_have_it_with_a_later_report(stage: Begin) -> None:
    now = stage(fake_driver=DEVICES | {"layout": "flat"})
    now.start()
    until_alive(now)
    now.stop()
    now.conf.set_override("layout", "nested", group="fake_driver")
    driver = FakeDriver(now.conf, AGENT, CELL.name)
    cell = CellClient(now.around.bus.client(f"conductor.{CELL.uuid}"))
    tracker = Tracker(driver, cell, Numbering(driver.agent), reshaping_seconds=0.0)

    tracker.track()
    assert [tracker.is_reported(host) for host in driver.hosts()] == [True, False]
    tracker.track()
    assert [tracker.is_reported(host) for host in driver.hosts()] == [True, True]


class Restructuring(FakeDriver):
    """Puts its disk on a pool of its own under the node, once it is told to."""

    apart = False

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        """As ever, or with the disk elsewhere."""
        if not self.apart:
            super().update_provider_tree(host, tree)
            return
        pool = f"{host.nodename}_pool"
        if tree.find(pool) is None:
            total = tree.get(host.nodename).inventories["DISK_GB"].total
            tree.new_child(pool, host.nodename)
            tree.set_inventory(pool, "DISK_GB", Inventory(total=total))
            tree.remove_inventory(host.nodename, "DISK_GB")
            uuid = tree.get(pool).uuid
            raise ReshapeNeeded(
                [
                    MoveInstruction(
                        from_resource_provider=host.compute_node_uuid,
                        moved_resources={"DISK_GB": total},
                        to_resource_provider=uuid,
                    )
                ]
            )


def test_a_reshape_wanted_later_is_not_had_and_what_to_do_is_logged_once(
    stage: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    now = stage(fake_driver={"hosts": 1})
    driver = now.start(Restructuring)
    until_alive(now)
    with logged(caplog) as told:
        driver.apart = True
        until_alive(now, reports=4)

    assert now.cell.said(ReshapeProviderTree) == []
    assert now.cell.providers.names() == {"host-0001"}
    assert len(told) == 1
    assert re.search(r"host-0001.*restart the agent, or set \[compute\] reshape_at_any_report", told[0])


def test_a_reshape_wanted_later_is_had_where_the_operator_allows_it(stage: Begin) -> None:
    now = stage(fake_driver={"hosts": 1}, compute={"reshape_at_any_report": True})
    driver = now.start(Restructuring)
    until_alive(now)
    driver.apart = True
    wait_until(lambda: now.cell.providers.names() == {"host-0001", "host-0001_pool"})

    assert "DISK_GB" not in now.cell.providers.named("host-0001").inventories
    until_alive(now, reports=2)
    assert len(now.cell.said(ReshapeProviderTree)) == 1


def test_a_driver_that_always_wants_a_reshape_holds_nobody_up(stage: Begin, caplog: pytest.LogCaptureFixture) -> None:
    class Insatiable(FakeDriver):
        def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
            """Move one VCPU more to another node."""
            super().update_provider_tree(host, tree)
            if host.service_host == "host-0001":
                raise ReshapeNeeded(
                    [
                        MoveInstruction(
                            from_resource_provider=f"{host.nodename}_numa0",
                            moved_resources={"VCPU": 1},
                            to_resource_provider=f"{host.nodename}_numa1",
                        )
                    ]
                )

    now = stage(fake_driver={"hosts": 2, "numa_nodes": 2})
    with logged(caplog) as told:
        now.start()
        until_alive(now)
        now.stop()
        now.start(Insatiable)
        until_alive(now)
        now.stop()

    assert now.cell.said(ReportHostsInCell)[-1].alive == ("host-0002",)
    assert "again and again" in told[0]


def test_a_reshape_that_cannot_be_sent_keeps_none_of_the_other_hosts_out(
    stage: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Restructuring):
        def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
            """Want a reshape of host 1 by an amount that is no number."""
            super().update_provider_tree(host, tree)
            if host.service_host == "host-0001":
                amount: Any = object()
                node = host.compute_node_uuid
                raise ReshapeNeeded(
                    [
                        MoveInstruction(
                            from_resource_provider=node, moved_resources={"VCPU": amount}, to_resource_provider=node
                        )
                    ]
                )

    now = stage(fake_driver={"hosts": 2})
    with logged(caplog) as told:
        now.start(Odd)
        until_alive(now)

    assert {message.alive for message in now.cell.said(ReportHostsInCell) if message.alive} == {("host-0002",)}
    assert "host-0001 has is refused" in told[0]


def test_a_reshape_is_repeated_with_its_id_until_it_is_answered(stage: Begin) -> None:
    now = stage(fake_driver=DEVICES | {"hosts": 1, "layout": "flat"})
    now.start()
    until_alive(now)
    now.stop()
    away = [1, 1]

    def answer(message: Message[Any]) -> None:
        if isinstance(message, ReshapeProviderTree) and away:
            away.pop()
            raise errors.RequestInProgress(request_id=message.request_id)

    now.cell.before_answer = answer  # type: ignore[method-assign]
    now.conf.set_override("layout", "nested", group="fake_driver")
    now.start()
    until_alive(now)

    said = now.cell.said(ReshapeProviderTree)
    assert len(said) == 3
    assert len({message.request_id for message in said}) == 1
