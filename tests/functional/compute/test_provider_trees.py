"""Test how and when an agent reports the provider trees of its hosts."""

from typing import Any

import pytest
from support.compute.builders import Begin, FakeCell, wait_until
from support.compute.provider_tree_messages import DEVICES, logged, of_providers, restarted_with_more, until_alive

from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import ListProviderTreesInCell, ProvidersReported, ReportHostsInCell, ReportProviderTree
from moorage.messages.wire import Message
from moorage.model import HostReport, Inventory, ResourceProvider


class Changing(FakeDriver):
    """Has something more of a class than it had, once it is told to."""

    more = 0

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        """As ever, with more VGPU on the first host."""
        super().update_provider_tree(host, tree)
        if self.more and host.service_host == "host-0001":
            tree.set_inventory(host.compute_node_uuid, "VGPU", Inventory(total=self.more))


def test_the_tree_of_a_nested_host_is_told_in_one_message_parents_first(stage: Begin) -> None:
    now = stage(fake_driver=DEVICES)
    now.start()
    until_alive(now)

    (said,) = now.cell.said(ReportProviderTree)
    assert [report.name for report in said.providers[:6]] == [
        "host-0001",
        *(f"host-0001_{part}" for part in ("numa0", "numa1", "gpu0", "gpu1", "nic0")),
    ]
    gpu = now.cell.providers.named("host-0002_gpu1")
    assert gpu.root_provider_uuid == now.cell.providers.named("host-0002").uuid
    assert gpu.inventories == {"VGPU": Inventory(total=4, max_unit=4)}
    assert now.cell.providers.named("host-0001_nic0").traits == ("CUSTOM_PHYSNET_PHYSNET0",)
    assert now.cell.providers.named("host-0001_numa0").traits == ("HW_NUMA_ROOT",)


def test_reports_on_which_nothing_has_changed_say_nothing_of_providers_and_ask_nothing(stage: Begin) -> None:
    now = stage(fake_driver=DEVICES)
    now.start()
    until_alive(now)
    assert of_providers(now) == ["list_provider_trees", "report_provider_tree"]

    until_alive(now, reports=4)

    assert of_providers(now) == ["list_provider_trees", "report_provider_tree"]


def test_a_restarted_agent_tells_nothing_of_hosts_that_the_store_has_right(stage: Begin) -> None:
    now = stage(fake_driver=DEVICES)
    now.start()
    until_alive(now)
    now.stop()
    now.start()
    until_alive(now)

    assert of_providers(now) == ["list_provider_trees", "report_provider_tree", "list_provider_trees"]


def test_trees_that_do_not_fit_into_one_answer_are_read_in_parts(stage: Begin) -> None:
    class Cell(FakeCell):
        @serves(ListProviderTreesInCell)
        def list_provider_trees(self, message: ListProviderTreesInCell) -> list[ResourceProvider]:
            found = super().list_provider_trees(message)
            if len(found) > len(self.providers.records) // 2:
                raise errors.ReplyTooLarge(method=message.method, size=13 * 2**20, limit=12 * 2**20)
            return found

    now = stage(Cell(), fake_driver=DEVICES | {"hosts": 5})
    now.start()
    until_alive(now)
    now.stop()

    restarted_with_more(now)
    wait_until(lambda: len(now.cell.said(ReportProviderTree)) == 2)

    assert {report.name for report in now.cell.said(ReportProviderTree)[1].providers} >= {"host-0001_numa0"}
    until_alive(now)


def test_only_the_provider_that_has_changed_is_told_with_the_generation_it_was_answered(stage: Begin) -> None:
    now = stage()
    driver = now.start(Changing)
    until_alive(now)
    driver.more = 3
    wait_until(lambda: len(now.cell.said(ReportProviderTree)) == 2)

    (report,) = now.cell.said(ReportProviderTree)[1].providers
    assert (report.name, report.generation) == ("host-0001", 1)
    assert report.inventories["VGPU"].total == 3
    assert report.traits is None, "what has not changed is not said"
    until_alive(now, reports=2)
    assert len(now.cell.said(ReportProviderTree)) == 2, "the generation that it answered is known"


def test_what_an_operator_has_set_by_hand_survives_reports_and_restarts(stage: Begin) -> None:
    now = stage()
    driver = now.start(Changing)
    until_alive(now)
    node = now.cell.providers.named("host-0001").uuid
    now.cell.providers.change(node, traits=("CUSTOM_BY_HAND",), aggregates=(ids.derived("rack"),))
    driver.more = 3
    wait_until(lambda: "VGPU" in now.cell.providers.records[node].inventories)
    now.stop()
    now.start()
    until_alive(now)

    found = now.cell.providers.records[node]
    assert (found.traits, found.aggregates) == (("CUSTOM_BY_HAND",), (ids.derived("rack"),))


def test_a_conflict_makes_the_agent_read_again_and_redo(stage: Begin) -> None:
    now = stage()
    driver = now.start(Changing)
    until_alive(now)
    node = now.cell.providers.named("host-0001").uuid
    now.cell.providers.change(node)  # as a claim does
    driver.more = 3
    wait_until(lambda: "VGPU" in now.cell.providers.records[node].inventories)

    assert of_providers(now)[2:] == ["report_provider_tree", "list_provider_trees", "report_provider_tree"]
    assert now.cell.said(ListProviderTreesInCell)[-1].uuids == (node,)


def test_hosts_whose_generations_always_move_are_left_to_the_next_report_and_keep_nobody_out(stage: Begin) -> None:
    class Cell(FakeCell):
        busy = True

        def before_answer(self, message: Message[Any]) -> None:
            names = [one.name for one in message.providers] if isinstance(message, ReportProviderTree) else []
            if self.busy and "host-0002" in names and self.providers.records:
                self.providers.change(self.providers.named("host-0002").uuid)

    now = stage(Cell())
    now.start()
    until_alive(now)
    now.stop()
    restarted_with_more(now)
    wait_until(lambda: all(now.cell.providers.named(f"host-000{n}").inventories["VCPU"].total == 17 for n in (1, 3)))
    wait_until(lambda: any(said.alive == ("host-0001", "host-0003") for said in now.cell.said(ReportHostsInCell)))

    assert now.cell.providers.named("host-0002").inventories["VCPU"].total == 16
    now.cell.busy = False
    wait_until(lambda: now.cell.providers.named("host-0002").inventories["VCPU"].total == 17)


def test_a_batch_in_which_claims_move_generations_is_told_in_parts(stage: Begin) -> None:
    now = stage(fake_driver={"hosts": 8})
    now.start()
    until_alive(now)
    now.stop()

    busy = [now.cell.providers.named(f"host-000{n}").uuid for n in (2, 7)]

    def claim(message: Message[Any]) -> None:
        if isinstance(message, ReportProviderTree) and busy:
            now.cell.providers.change(busy.pop())

    now.cell.before_answer = claim  # type: ignore[method-assign]
    restarted_with_more(now)
    until_alive(now)

    assert all(record.inventories["VCPU"].total == 17 for record in now.cell.providers.records.values())
    assert max(len(said.providers) for said in now.cell.said(ReportProviderTree)[2:]) == 4


def test_children_that_are_no_more_are_told_as_gone_children_first(stage: Begin) -> None:
    now = stage(fake_driver={"hosts": 1, "gpus": 3})
    now.start()
    until_alive(now)
    gone = [now.cell.providers.named(f"host-0001_gpu{n}").uuid for n in (2, 1)]
    now.stop()
    now.conf.set_override("gpus", 1, group="fake_driver")
    now.start()
    wait_until(lambda: len(now.cell.said(ReportProviderTree)) == 2)

    said = now.cell.said(ReportProviderTree)[1]
    assert (said.providers, list(said.gone)) == ((), gone)


def test_a_driver_that_fails_on_one_host_keeps_none_of_the_others_out(
    stage: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(FakeDriver):
        def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
            """Fail on one."""
            if host.service_host == "host-0002":
                raise RuntimeError("no such board")
            super().update_provider_tree(host, tree)

    now = stage()
    with logged(caplog) as told:
        now.start(Failing)
        until_alive(now)

    assert {said.alive for said in now.cell.said(ReportHostsInCell) if said.alive} == {("host-0001", "host-0003")}
    assert "host-0002" in told[0]


def test_a_tree_is_read_again_when_what_it_says_is_refused(stage: Begin) -> None:
    now = stage(fake_driver={"hosts": 1, "gpus": 1})
    driver = now.start(Changing)
    until_alive(now)
    now.cell.providers.model.providers.clear()

    def lost(message: Message[Any]) -> None:
        if isinstance(message, ReportProviderTree) and message.providers[0].generation is not None:
            raise errors.ProviderNotFound(name=message.providers[0].uuid)

    now.cell.before_answer = lost  # type: ignore[method-assign]
    driver.more = 3
    wait_until(lambda: now.cell.providers.names() == {"host-0001", "host-0001_gpu0"})


def test_an_older_placement_role_that_answers_no_generations_is_asked_for_them_once(stage: Begin) -> None:
    class Cell(FakeCell):
        @serves(ReportProviderTree)
        def report_providers(self, message: ReportProviderTree) -> ProvidersReported:
            super().report_providers(message)
            return ProvidersReported()

    now = stage(Cell())
    driver = now.start(Changing)
    until_alive(now, reports=3)
    driver.more = 3
    wait_until(lambda: len(now.cell.said(ReportProviderTree)) == 2)
    until_alive(now, reports=3)

    twice = ["list_provider_trees", "report_provider_tree"] * 2
    assert of_providers(now) == [*twice, "list_provider_trees"]
    assert now.cell.said(ReportProviderTree)[1].providers[0].generation == 1
