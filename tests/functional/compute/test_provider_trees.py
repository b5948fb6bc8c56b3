"""Test how and when an agent reports the provider trees of its hosts."""

from typing import Any

import pytest
from support.compute.builders import FakeCell, NewStage, wait_until
from support.compute.provider_tree_messages import DEVICES, provider_methods, restart_with_more_vcpus, tracker_errors

from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import ListProviderTreesInCell, ProvidersReported, ReportHostsInCell, ReportProviderTree
from moorage.messages.wire import Message
from moorage.model import HostReport, Inventory, ResourceProvider


class GrowingDriver(FakeDriver):
    """Has VGPUs on its first host as soon as a test sets their number."""

    vgpus = 0

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        super().update_provider_tree(host, tree)
        if self.vgpus and host.service_host == "host-0001":
            tree.set_inventory(host.compute_node_uuid, "VGPU", Inventory(total=self.vgpus))


def test_the_tree_of_a_nested_host_is_reported_in_one_message_with_parents_first(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver=DEVICES)
    stage.start()
    stage.wait_for_reports()

    (message,) = stage.cell.received(ReportProviderTree)
    assert [report.name for report in message.providers[:6]] == [
        "host-0001",
        *(f"host-0001_{part}" for part in ("numa0", "numa1", "gpu0", "gpu1", "nic0")),
    ]
    gpu = stage.cell.providers.named("host-0002_gpu1")
    assert gpu.root_provider_uuid == stage.cell.providers.named("host-0002").uuid
    assert gpu.inventories == {"VGPU": Inventory(total=4, max_unit=4)}
    assert stage.cell.providers.named("host-0001_nic0").traits == ("CUSTOM_PHYSNET_PHYSNET0",)
    assert stage.cell.providers.named("host-0001_numa0").traits == ("HW_NUMA_ROOT",)


def test_unchanged_trees_are_neither_reported_nor_read_again(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver=DEVICES)
    stage.start()
    stage.wait_for_reports()
    assert provider_methods(stage) == ["list_provider_trees", "report_provider_tree"]

    stage.wait_for_reports(4)

    assert provider_methods(stage) == ["list_provider_trees", "report_provider_tree"]


def test_a_restarted_agent_does_not_report_trees_that_the_store_already_has(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver=DEVICES)
    stage.start()
    stage.wait_for_reports()
    stage.restart()
    stage.wait_for_reports()

    assert provider_methods(stage) == ["list_provider_trees", "report_provider_tree", "list_provider_trees"]


def test_trees_that_do_not_fit_into_one_answer_are_read_in_parts(new_stage: NewStage) -> None:
    class Cell(FakeCell):
        @serves(ListProviderTreesInCell)
        def list_provider_trees(self, message: ListProviderTreesInCell) -> list[ResourceProvider]:
            found = super().list_provider_trees(message)
            if len(found) > len(self.providers.records) // 2:
                raise errors.ReplyTooLarge(method=message.method, size=13 * 2**20, limit=12 * 2**20)
            return found

    stage = new_stage(Cell(), fake_driver=DEVICES | {"hosts": 5})
    stage.start()
    stage.wait_for_reports()
    restart_with_more_vcpus(stage)
    wait_until(lambda: len(stage.cell.received(ReportProviderTree)) == 2)

    assert {report.name for report in stage.cell.received(ReportProviderTree)[1].providers} >= {"host-0001_numa0"}
    stage.wait_for_reports()


def test_only_the_changed_provider_is_reported_with_the_generation_of_the_last_answer(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(GrowingDriver)
    stage.wait_for_reports()
    driver.vgpus = 3
    wait_until(lambda: len(stage.cell.received(ReportProviderTree)) == 2)

    (report,) = stage.cell.received(ReportProviderTree)[1].providers
    assert (report.name, report.generation) == ("host-0001", 1)
    assert report.inventories["VGPU"].total == 3
    assert report.traits is None, "only changes are reported"
    stage.wait_for_reports(2)
    assert len(stage.cell.received(ReportProviderTree)) == 2, "the generation that it answered is known"


def test_traits_and_aggregates_set_by_an_operator_survive_reports_and_restarts(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(GrowingDriver)
    stage.wait_for_reports()
    node = stage.cell.providers.named("host-0001").uuid
    stage.cell.providers.change(node, traits=("CUSTOM_BY_HAND",), aggregates=(ids.derived("rack"),))
    driver.vgpus = 3
    wait_until(lambda: "VGPU" in stage.cell.providers.records[node].inventories)
    stage.restart()
    stage.wait_for_reports()

    found = stage.cell.providers.records[node]
    assert (found.traits, found.aggregates) == (("CUSTOM_BY_HAND",), (ids.derived("rack"),))


def test_after_a_generation_conflict_the_agent_reads_the_tree_and_reports_it_again(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(GrowingDriver)
    stage.wait_for_reports()
    node = stage.cell.providers.named("host-0001").uuid
    stage.cell.providers.change(node)  # as a claim does
    driver.vgpus = 3
    wait_until(lambda: "VGPU" in stage.cell.providers.records[node].inventories)

    assert provider_methods(stage)[2:] == ["report_provider_tree", "list_provider_trees", "report_provider_tree"]
    assert stage.cell.received(ListProviderTreesInCell)[-1].uuids == (node,)


def test_a_host_whose_generation_keeps_changing_is_left_to_the_next_report_and_does_not_delay_others(
    new_stage: NewStage,
) -> None:
    class Cell(FakeCell):
        busy = True

        def before_answer(self, message: Message[Any]) -> None:
            names = [one.name for one in message.providers] if isinstance(message, ReportProviderTree) else []
            if self.busy and "host-0002" in names and self.providers.records:
                self.providers.change(self.providers.named("host-0002").uuid)

    cell = Cell()
    stage = new_stage(cell)
    stage.start()
    stage.wait_for_reports()
    restart_with_more_vcpus(stage)
    wait_until(lambda: all(stage.cell.providers.named(f"host-000{n}").inventories["VCPU"].total == 17 for n in (1, 3)))
    wait_until(
        lambda: any(message.alive == ("host-0001", "host-0003") for message in stage.cell.received(ReportHostsInCell))
    )

    assert stage.cell.providers.named("host-0002").inventories["VCPU"].total == 16
    cell.busy = False
    wait_until(lambda: stage.cell.providers.named("host-0002").inventories["VCPU"].total == 17)


def test_a_batch_in_which_claims_change_generations_is_reported_in_smaller_parts(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hosts": 8})
    stage.start()
    stage.wait_for_reports()
    stage.stop()

    busy = [stage.cell.providers.named(f"host-000{n}").uuid for n in (2, 7)]

    def claim(message: Message[Any]) -> None:
        if isinstance(message, ReportProviderTree) and busy:
            stage.cell.providers.change(busy.pop())

    stage.cell.before_answer = claim  # type: ignore[method-assign]
    restart_with_more_vcpus(stage)
    stage.wait_for_reports()

    assert all(record.inventories["VCPU"].total == 17 for record in stage.cell.providers.records.values())
    assert max(len(message.providers) for message in stage.cell.received(ReportProviderTree)[2:]) == 4


def test_removed_child_providers_are_reported_as_gone_in_reverse_order(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hosts": 1, "gpus": 3})
    stage.start()
    stage.wait_for_reports()
    gone = [stage.cell.providers.named(f"host-0001_gpu{n}").uuid for n in (2, 1)]

    stage.restart(gpus=1)
    wait_until(lambda: len(stage.cell.received(ReportProviderTree)) == 2)

    message = stage.cell.received(ReportProviderTree)[1]
    assert (message.providers, list(message.gone)) == ((), gone)


def test_a_driver_that_fails_for_one_host_does_not_keep_the_others_from_being_reported(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    class FailingDriver(FakeDriver):
        def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
            if host.service_host == "host-0002":
                raise RuntimeError("no such board")
            super().update_provider_tree(host, tree)

    stage = new_stage()
    with tracker_errors(caplog) as logged:
        stage.start(FailingDriver)
        stage.wait_for_reports()

    assert {message.alive for message in stage.cell.received(ReportHostsInCell) if message.alive} == {
        ("host-0001", "host-0003")
    }
    assert "host-0002" in logged[0]


def test_a_tree_is_read_again_when_its_report_is_refused(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hosts": 1, "gpus": 1})
    driver = stage.start(GrowingDriver)
    stage.wait_for_reports()
    stage.cell.providers.model.providers.clear()

    def lost(message: Message[Any]) -> None:
        if isinstance(message, ReportProviderTree) and message.providers[0].generation is not None:
            raise errors.ProviderNotFound(name=message.providers[0].uuid)

    stage.cell.before_answer = lost  # type: ignore[method-assign]
    driver.vgpus = 3
    wait_until(lambda: stage.cell.providers.names() == {"host-0001", "host-0001_gpu0"})


def test_generations_that_an_older_placement_role_does_not_answer_are_read_once(new_stage: NewStage) -> None:
    class Cell(FakeCell):
        @serves(ReportProviderTree)
        def report_providers(self, message: ReportProviderTree) -> ProvidersReported:
            super().report_providers(message)
            return ProvidersReported()

    stage = new_stage(Cell())
    driver = stage.start(GrowingDriver)
    stage.wait_for_reports(3)
    driver.vgpus = 3
    wait_until(lambda: len(stage.cell.received(ReportProviderTree)) == 2)
    stage.wait_for_reports(3)

    twice = ["list_provider_trees", "report_provider_tree"] * 2
    assert provider_methods(stage) == [*twice, "list_provider_trees"]
    assert stage.cell.received(ReportProviderTree)[1].providers[0].generation == 1


def test_a_tree_that_is_too_large_for_any_answer_does_not_keep_the_other_hosts_from_being_reported(
    new_stage: NewStage,
) -> None:
    class Cell(FakeCell):
        large: str | None = None

        @serves(ListProviderTreesInCell)
        def list_provider_trees(self, message: ListProviderTreesInCell) -> list[ResourceProvider]:
            if self.large in message.uuids:
                raise errors.ReplyTooLarge(method=message.method, size=13 * 2**20, limit=12 * 2**20)
            return super().list_provider_trees(message)

    cell = Cell()
    stage = new_stage(cell)
    stage.start()
    stage.wait_for_reports()
    cell.large = cell.providers.named("host-0002").uuid
    restart_with_more_vcpus(stage)

    wait_until(lambda: all(cell.providers.named(f"host-000{n}").inventories["VCPU"].total == 17 for n in (1, 3)))
    wait_until(
        lambda: any(message.alive == ("host-0001", "host-0003") for message in stage.cell.received(ReportHostsInCell))
    )
    cell.large = None
    wait_until(lambda: cell.providers.named("host-0002").inventories["VCPU"].total == 17)
