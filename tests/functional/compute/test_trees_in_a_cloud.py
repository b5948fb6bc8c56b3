"""Test hosts whose provider trees change while instances run on them, in a whole cloud of one process."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.operations.instances import becomes, guests, order, provider_tree, restart_agent, show

from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import GetAllocations, SetInventory, SetTraits
from moorage.model import Consumer, Flavor, Inventory, RequestSpec, ResourceProvider

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=4, memory_mb=4096, root_gb=20))
DEVICES: dict[str, Any] = {"numa_nodes": 2, "gpus": 2, "nics": 1}
HOST = "cell1-host-0001"


@pytest.fixture
def cloud() -> Iterator[RunningCloud]:
    with RunningCloud(
        CloudSpec(hosts=1, settings={"compute": {"report_interval": 0.1}, "fake_driver": {"layout": "flat"}})
    ) as one:
        yield one


def tree(cloud: RunningCloud) -> dict[str, ResourceProvider]:
    return provider_tree(cloud, HOST)


def build(cloud: RunningCloud, count: int) -> list[str]:
    uuids = order(cloud, SPEC, count)
    for uuid in uuids:
        becomes(cloud, uuid, "active")
    return uuids


def held(cloud: RunningCloud, uuid: str) -> Consumer:
    return cloud.client("placement").call(GetAllocations(consumer_uuid=uuid))


def test_a_nested_host_is_a_tree_in_the_store(cloud: RunningCloud) -> None:
    restart_agent(cloud, 1, layout="nested", traits=["HW_CPU_X86_AVX2", "CUSTOM_RACK_7"], **DEVICES)
    # The reshape comes first, and the rest of the report follows.
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


def test_a_reshape_at_start_moves_the_allocations_of_running_instances_and_leaves_their_guests_alone(
    cloud: RunningCloud,
) -> None:
    instances = build(cloud, 3)
    before = {uuid: held(cloud, uuid) for uuid in instances}
    running = guests(cloud)

    restart_agent(cloud, 1, layout="nested", **DEVICES)
    wait_until(lambda: "gpu1" in tree(cloud), "the host to be nested")
    cloud.wait_for_hosts()

    found = tree(cloud)
    numa_nodes = {found["numa0"].uuid, found["numa1"].uuid}
    for uuid in instances:
        after = held(cloud, uuid)
        assert after.claim_id == before[uuid].claim_id
        assert after.accepted_by == before[uuid].accepted_by
        assert after.generation > before[uuid].generation
        by_class = {name: node for node, part in after.allocations.items() for name in part.resources}
        assert by_class["VCPU"] == by_class["MEMORY_MB"], "the guest is on one NUMA node"
        assert by_class["VCPU"] in numa_nodes
        assert by_class["DISK_GB"] == found[HOST].uuid
    assert sum(found[name].used["VCPU"] for name in ("numa0", "numa1")) == 12
    assert guests(cloud) == running
    assert [show(cloud, uuid).state for uuid in instances] == ["active"] * 3


def test_flat_providers_are_restored_by_a_reshape(cloud: RunningCloud) -> None:
    restart_agent(cloud, 1, layout="nested", numa_nodes=2)
    wait_until(lambda: "numa1" in tree(cloud), "the host to be nested")
    restart_agent(cloud, 1, layout="flat", numa_nodes=2)
    wait_until(lambda: set(tree(cloud)) == {HOST}, "the host to be flat")
    cloud.wait_for_hosts()

    assert tree(cloud)[HOST].inventories["VCPU"].total == 16
    build(cloud, 1)


def test_reserved_amounts_and_traits_set_by_an_operator_survive_a_reshape(cloud: RunningCloud) -> None:
    placement = cloud.client("placement")
    kept = Inventory(total=32768, max_unit=32768, reserved=20000)
    placement.call(
        SetInventory(request_id=ids.fresh(), uuid=tree(cloud)[HOST].uuid, resource_class="MEMORY_MB", inventory=kept)
    )
    placement.call(SetTraits(request_id=ids.fresh(), uuid=tree(cloud)[HOST].uuid, traits=("HW_NIC_SRIOV",)))

    restart_agent(cloud, 1, layout="nested", numa_nodes=2)
    wait_until(lambda: "numa1" in tree(cloud), "the host to be nested")

    found = tree(cloud)
    assert [found[name].inventories["MEMORY_MB"].reserved for name in ("numa0", "numa1")] == [16384, 3616]
    assert found[HOST].traits == ("HW_NIC_SRIOV",)


def test_a_host_whose_reshape_is_impossible_stays_as_it_is_until_a_possible_one_is_wanted(
    cloud: RunningCloud, caplog: pytest.LogCaptureFixture
) -> None:
    build(cloud, 3)
    before = tree(cloud)

    restart_agent(cloud, 1, layout="nested", numa_nodes=8)  # with two VCPU each, and every guest needs four
    wait_until(lambda: f"The providers of host {HOST} were refused" in caplog.text, "the reshape to be refused")
    assert tree(cloud) == before

    restart_agent(cloud, 1, layout="nested", numa_nodes=4)
    wait_until(lambda: "numa3" in tree(cloud), "the host to be nested")
    cloud.wait_for_hosts()


def test_a_host_on_a_shared_pool_has_no_disk_and_belongs_to_the_pools_aggregate(cloud: RunningCloud) -> None:
    rack = ids.derived("rack")
    restart_agent(cloud, 1, shared_disk_aggregate=rack)
    wait_until(lambda: tree(cloud)[HOST].aggregates == (rack,), "the host to belong to the aggregate")

    assert set(tree(cloud)[HOST].inventories) == {"VCPU", "MEMORY_MB"}
