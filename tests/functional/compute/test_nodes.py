"""Test service hosts with several nodes: an order to build names the claimed one."""

from collections.abc import Sequence

import msgspec
import pytest
from support.compute.builders import HOST, NewStage, build_on, wait_until

from compute.driver import GuestSpec
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.messages import BuildFinished, BuildOnHost, ReportHostsInCell
from moorage.model import HostReport


class TwoNodes(FakeDriver):
    """Has a second node on each host, and records the node of each spawn."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.spawned_on: list[str | None] = []

    def hosts(self) -> Sequence[HostReport]:
        first = super().hosts()
        second = [
            msgspec.structs.replace(
                report, nodename=f"{report.nodename}-b", compute_node_uuid=ids.derived(report.compute_node_uuid, "b")
            )
            for report in first
        ]
        return [*first, *second]

    def has_node(self, host: str, node: str) -> bool:
        return (host, node) in {(report.service_host, report.nodename) for report in self.hosts()}

    def spawn(self, host: str, guest: GuestSpec) -> None:
        self.spawned_on.append(guest.node)
        super().spawn(host, guest)


def on_node(node: str) -> BuildOnHost:
    return msgspec.structs.replace(build_on(HOST), node=node)


def test_a_guest_is_built_on_the_node_that_was_claimed(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(TwoNodes)
    for node in (f"{HOST}-b", HOST):
        stage.build(on_node(node))
    wait_until(lambda: len(stage.cell.received(BuildFinished)) == 2)

    assert sorted(driver.spawned_on) == [HOST, f"{HOST}-b"]


def test_a_node_that_the_host_does_not_have_is_refused_and_nothing_begins(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(TwoNodes)

    with pytest.raises(errors.HostNotFound, match="another"):
        stage.build(on_node("another"))

    stage.build(on_node(HOST))
    wait_until(lambda: stage.cell.received(BuildFinished))
    assert driver.spawned_on == [HOST]


def test_both_nodes_of_a_host_are_described_once(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hosts": 1})
    stage.start(TwoNodes)
    stage.wait_for_reports(4)

    described = [host.nodename for message in stage.cell.received(ReportHostsInCell) for host in message.hosts]
    assert described == [HOST, f"{HOST}-b"]
    assert [message.started for message in stage.cell.received(ReportHostsInCell) if message.started] == [(HOST,)]


def test_the_name_of_the_node_is_left_out_for_an_agent_of_the_previous_release() -> None:
    order = on_node(HOST)

    assert order.lowest_version() == "1.6"
    assert order.unguarded() == msgspec.structs.replace(order, node=None)
    assert order.unguarded().lowest_version() < "1.6"
