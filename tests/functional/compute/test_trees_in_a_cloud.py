"""Hosts that are restructured while instances run on them, in a whole cloud of one process."""

from collections.abc import Iterator
from typing import Any

import pytest

from compute.fake.guest_file import GuestFile
from compute.service import ComputeService
from harness.cloud import CloudSpec, RunningCloud, wait_until
from moorage import ids
from moorage.messages import (
    BuildInstances,
    GetAllocations,
    ListProviderTrees,
    ListResourceProviders,
    SetInventory,
    SetTraits,
    ShowInstance,
)
from moorage.model import Consumer, Flavor, Guest, Inventory, RequestSpec, ResourceProvider

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=4, memory_mb=4096, root_gb=20))
DEVICES = {"numa_nodes": 2, "gpus": 2, "nics": 1}
HOST = "cell1-host-0001"


@pytest.fixture
def cloud() -> Iterator[RunningCloud]:
    with RunningCloud(
        CloudSpec(hosts=1, settings={"compute": {"report_interval": 0.1}, "fake_driver": {"layout": "flat"}})
    ) as one:
        yield one


def restart(cloud: RunningCloud, **fake_driver: Any) -> None:
    """Stop the agent, and start it again on a machine that describes itself otherwise."""
    cloud.stop_service("compute-cell1")
    options = {"hosts": 1, "host_prefix": "cell1-host", "state_file": str(cloud.folder / "agent-cell1.sqlite")}
    conf = cloud.configuration(compute={"agent": "agent-cell1"}, fake_driver=options | fake_driver)
    cloud.add("compute-cell1", ComputeService(conf, "cell1"))


def tree(cloud: RunningCloud) -> dict[str, ResourceProvider]:
    """The providers of the host, by name."""
    placement = cloud.client("placement")
    (node,) = placement.call(ListResourceProviders(name=HOST))
    return {one.name.removeprefix(f"{HOST}_"): one for one in placement.call(ListProviderTrees(uuids=(node.uuid,)))}


def build(cloud: RunningCloud, count: int) -> list[str]:
    uuids = [ids.fresh() for _ in range(count)]
    order = BuildInstances(request_spec=SPEC, instance_uuids=tuple(uuids), request_id=ids.fresh())
    cloud.client("conductor").call(order)
    wait_until(lambda: all(state(cloud, uuid) == "active" for uuid in uuids), "the instances to be active", 30)
    return uuids


def state(cloud: RunningCloud, uuid: str) -> str:
    return cloud.client("conductor").call(ShowInstance(instance_uuid=uuid)).state


def held(cloud: RunningCloud, uuid: str) -> Consumer:
    return cloud.client("placement").call(GetAllocations(consumer_uuid=uuid))


def guests(cloud: RunningCloud) -> list[Guest]:
    file = GuestFile(cloud.folder / "agent-cell1.sqlite")
    file.open()
    try:
        return file.guests()
    finally:
        file.close()


def test_a_nested_host_is_a_tree_in_the_store(cloud: RunningCloud) -> None:
    restart(cloud, layout="nested", traits=["HW_CPU_X86_AVX2", "CUSTOM_RACK_7"], **DEVICES)
    # What moves moves first; the rest of the report follows.
    wait_until(lambda: "gpu1" in tree(cloud) and tree(cloud)[HOST].traits, "the host to be nested")

    found = tree(cloud)
    root = found[HOST]
    assert {one.parent_provider_uuid for one in found.values()} == {None, root.uuid}
    assert set(root.inventories) == {"DISK_GB"}
    assert root.traits == ("CUSTOM_RACK_7", "HW_CPU_X86_AVX2")
    assert found["nic0"].traits == ("CUSTOM_PHYSNET_PHYSNET0",)
    assert {name: one.inventories["VCPU"].total for name, one in found.items() if "VCPU" in one.inventories} == {
        "numa0": 8,
        "numa1": 8,
    }


def test_a_reshape_at_start_moves_what_running_instances_hold_and_disturbs_none_of_them(cloud: RunningCloud) -> None:
    instances = build(cloud, 3)
    before = {uuid: held(cloud, uuid) for uuid in instances}
    there = guests(cloud)

    restart(cloud, layout="nested", **DEVICES)
    wait_until(lambda: "gpu1" in tree(cloud), "the host to be nested")
    cloud.wait_for_hosts()

    found = tree(cloud)
    numa_nodes = {found["numa0"].uuid, found["numa1"].uuid}
    for uuid in instances:
        now = held(cloud, uuid)
        assert now.claim_id == before[uuid].claim_id
        assert now.accepted_by == before[uuid].accepted_by
        assert now.generation > before[uuid].generation
        by_class = {name: node for node, part in now.allocations.items() for name in part.resources}
        assert by_class["VCPU"] == by_class["MEMORY_MB"], "one NUMA node has the whole guest"
        assert by_class["VCPU"] in numa_nodes
        assert by_class["DISK_GB"] == found[HOST].uuid
    assert sum(found[name].used["VCPU"] for name in ("numa0", "numa1")) == 12
    assert guests(cloud) == there
    assert [state(cloud, uuid) for uuid in instances] == ["active"] * 3


def test_the_way_back_to_flat_providers_is_a_reshape_too(cloud: RunningCloud) -> None:
    restart(cloud, layout="nested", numa_nodes=2)
    wait_until(lambda: "numa1" in tree(cloud), "the host to be nested")
    restart(cloud, layout="flat", numa_nodes=2)
    wait_until(lambda: set(tree(cloud)) == {HOST}, "the host to be flat")
    cloud.wait_for_hosts()

    assert tree(cloud)[HOST].inventories["VCPU"].total == 16
    build(cloud, 1)


def test_what_is_reserved_by_hand_is_still_reserved_after_a_reshape(cloud: RunningCloud) -> None:
    placement = cloud.client("placement")
    kept = Inventory(total=32768, max_unit=32768, reserved=20000)
    placement.call(
        SetInventory(request_id=ids.fresh(), uuid=tree(cloud)[HOST].uuid, resource_class="MEMORY_MB", inventory=kept)
    )
    placement.call(SetTraits(request_id=ids.fresh(), uuid=tree(cloud)[HOST].uuid, traits=("HW_NIC_SRIOV",)))

    restart(cloud, layout="nested", numa_nodes=2)
    wait_until(lambda: "numa1" in tree(cloud), "the host to be nested")

    found = tree(cloud)
    assert [found[name].inventories["MEMORY_MB"].reserved for name in ("numa0", "numa1")] == [16384, 3616]
    assert found[HOST].traits == ("HW_NIC_SRIOV",)


def test_a_host_that_cannot_be_reshaped_stays_as_it_is_until_it_can(
    cloud: RunningCloud, caplog: pytest.LogCaptureFixture
) -> None:
    build(cloud, 3)
    before = tree(cloud)

    restart(cloud, layout="nested", numa_nodes=8)  # two VCPU each, and every guest has four
    wait_until(lambda: f"What host {HOST} has is refused" in caplog.text, "the reshape to be refused")
    assert tree(cloud) == before

    restart(cloud, layout="nested", numa_nodes=4)
    wait_until(lambda: "numa3" in tree(cloud), "the host to be nested")
    cloud.wait_for_hosts()


def test_a_host_on_a_shared_pool_has_no_disk_and_belongs_to_the_pools_aggregate(cloud: RunningCloud) -> None:
    rack = ids.derived("rack")
    restart(cloud, shared_disk_aggregate=rack)
    wait_until(lambda: tree(cloud)[HOST].aggregates == (rack,), "the host to belong to the aggregate")

    assert set(tree(cloud)[HOST].inventories) == {"VCPU", "MEMORY_MB"}
