"""Several nodes behind one service host: a build order names the claimed one."""

from collections.abc import Sequence

import msgspec
import pytest
from support.compute.builders import HOST, Begin, build_on, wait_until

from compute.driver import GuestSpec
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.messages import BuildFinished, BuildOnHost, ReportHostsInCell
from moorage.model import HostReport


class TwoNodes(FakeDriver):
    """Each of its hosts has a second node, and it notes on which node it is to spawn."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.spawned_on: list[str | None] = []

    def hosts(self) -> Sequence[HostReport]:
        """Describe both nodes of every host."""
        first = super().hosts()
        second = [
            msgspec.structs.replace(
                report, nodename=f"{report.nodename}-b", compute_node_uuid=ids.derived(report.compute_node_uuid, "b")
            )
            for report in first
        ]
        return [*first, *second]

    def has_node(self, host: str, node: str) -> bool:
        """Tell by the descriptions."""
        return (host, node) in {(report.service_host, report.nodename) for report in self.hosts()}

    def spawn(self, host: str, guest: GuestSpec) -> None:
        """Note where."""
        self.spawned_on.append(guest.node)
        super().spawn(host, guest)


def on_node(node: str) -> BuildOnHost:
    return msgspec.structs.replace(build_on(HOST), node=node)


def test_a_guest_is_built_on_the_node_that_was_claimed(stage: Begin) -> None:
    now = stage()
    driver = now.start(TwoNodes)
    for node in (f"{HOST}-b", HOST):
        now.build(on_node(node))
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 2)

    assert sorted(driver.spawned_on) == [HOST, f"{HOST}-b"]


def test_a_node_that_the_host_does_not_have_is_refused_and_nothing_begins(stage: Begin) -> None:
    now = stage()
    driver = now.start(TwoNodes)

    with pytest.raises(errors.HostNotFound, match="another"):
        now.build(on_node("another"))

    now.build(on_node(HOST))
    wait_until(lambda: now.cell.said(BuildFinished))
    assert driver.spawned_on == [HOST]


def test_both_nodes_of_a_host_are_described_once(stage: Begin) -> None:
    now = stage(fake_driver={"hosts": 1})
    now.start(TwoNodes)
    wait_until(lambda: sum(bool(said.alive) for said in now.cell.said(ReportHostsInCell)) >= 4)

    described = [host.nodename for said in now.cell.said(ReportHostsInCell) for host in said.hosts]
    assert described == [HOST, f"{HOST}-b"]
    assert [said.started for said in now.cell.said(ReportHostsInCell) if said.started] == [(HOST,)]


def test_an_order_that_names_its_node_is_understood_by_an_agent_of_the_former_release_without_it() -> None:
    order = on_node(HOST)

    assert order.lowest_version() == "1.6"
    assert order.unguarded() == msgspec.structs.replace(order, node=None)
    assert order.unguarded().lowest_version() < "1.6"
