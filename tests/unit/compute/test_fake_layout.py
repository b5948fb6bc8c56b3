"""Test the inventories of a fake host, and their distribution over the providers of its tree."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from support.compute.builders import guest_spec, settings, tree_of

from compute.driver import ReshapeNeeded
from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from moorage import errors, ids
from moorage.model import Inventory

HOST = "host-0001"


def driver_of(folder: Path, **options: Any) -> FakeDriver:
    return FakeDriver(settings(folder, fake_driver=options), "agent1", "cell1")


def totals(tree: ProviderTree, resource_class: str) -> dict[str, int]:
    """The totals of a class by the name of the provider, without the prefix of the host's name."""
    return {
        provider.name.removeprefix(f"{HOST}_"): provider.inventories[resource_class].total
        for provider in tree
        if resource_class in provider.inventories
    }


def test_numa_nodes_divide_the_host_as_evenly_as_possible(tmp_path: Path) -> None:
    tree = tree_of(driver_of(tmp_path, numa_nodes=3, vcpus=16, memory_mb=1000, vcpu_allocation_ratio=2.0))

    assert totals(tree, "VCPU") == {"numa0": 6, "numa1": 5, "numa2": 5}
    assert totals(tree, "MEMORY_MB") == {"numa0": 334, "numa1": 333, "numa2": 333}
    assert tree.get(f"{HOST}_numa1").inventories["VCPU"] == Inventory(total=5, max_unit=5, allocation_ratio=2.0)
    assert tree.get(f"{HOST}_numa1").traits == {"HW_NUMA_ROOT"}
    assert set(tree.get(HOST).inventories) == {"DISK_GB"}


def test_more_numa_nodes_than_processors_leave_some_nodes_without_any(tmp_path: Path) -> None:
    assert totals(tree_of(driver_of(tmp_path, numa_nodes=3, vcpus=2)), "VCPU") == {"numa0": 1, "numa1": 1}
    assert totals(tree_of(driver_of(tmp_path, numa_nodes=2, pcpus=5)), "PCPU") == {"numa0": 3, "numa1": 2}


def test_each_device_is_a_child_with_its_own_inventory(tmp_path: Path) -> None:
    tree = tree_of(
        driver_of(tmp_path, gpus=2, vgpus_per_gpu=4, nics=3, vfs_per_nic=2, nic_bandwidth=1000, physnets=["a", "b"])
    )

    assert totals(tree, "VGPU") == {"gpu0": 4, "gpu1": 4}
    assert totals(tree, "SRIOV_NET_VF") == {"nic0": 2, "nic1": 2, "nic2": 2}
    assert totals(tree, "NET_BW_EGR_KILOBIT_PER_SEC") == totals(tree, "NET_BW_IGR_KILOBIT_PER_SEC")
    assert totals(tree, "NET_BW_EGR_KILOBIT_PER_SEC") == {"nic0": 1000, "nic1": 1000, "nic2": 1000}
    networks = [sorted(tree.get(f"{HOST}_nic{number}").traits) for number in range(3)]
    assert networks == [["CUSTOM_PHYSNET_A"], ["CUSTOM_PHYSNET_B"], ["CUSTOM_PHYSNET_A"]]


def test_a_flat_host_has_the_totals_of_a_nested_one(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"numa_nodes": 2, "gpus": 2, "nics": 2}
    flat = tree_of(driver_of(tmp_path, layout="flat", **parts))
    nested = tree_of(driver_of(tmp_path, **parts))

    assert [provider.name for provider in flat] == [HOST]
    for name, inventory in flat.get(HOST).inventories.items():
        assert inventory.total == sum(totals(nested, name).values())
        assert inventory.max_unit == inventory.total


def test_a_guest_uses_the_inventories_of_the_children(tmp_path: Path) -> None:
    with contextlib.closing(driver_of(tmp_path, numa_nodes=2, gpus=2, vgpus_per_gpu=1)) as driver:
        driver.start()
        for _ in range(2):
            asked = guest_spec(vcpus=8)
            asked.resources["VGPU"] = 1
            driver.spawn(HOST, asked)
        third = guest_spec(vcpus=0)
        third.resources["VGPU"] = 1
        with pytest.raises(errors.BuildFailed, match="1 VGPU asked, 0 free"):
            driver.spawn(HOST, third)


def test_a_host_on_a_shared_pool_has_no_disk_of_its_own(tmp_path: Path) -> None:
    rack = ids.derived("rack")
    alone = tree_of(driver_of(tmp_path))

    tree = tree_of(driver_of(tmp_path, shared_disk_aggregate=rack), tree=alone)

    assert tree.get(HOST).aggregates == {rack}
    assert totals(tree, "DISK_GB") == {}


def test_a_child_that_an_operator_created_by_a_reshape_is_used(tmp_path: Path) -> None:
    tree = tree_of(driver_of(tmp_path))
    tree.new_child(f"{HOST}_gpu0", HOST, ids.fresh())
    tree.set_inventory(f"{HOST}_gpu0", "VGPU", Inventory(total=1))

    again = tree_of(driver_of(tmp_path, gpus=1, vgpus_per_gpu=4), tree=tree)

    assert totals(again, "VGPU") == {"gpu0": 4}
    assert again.get(f"{HOST}_gpu0").uuid == tree.get(f"{HOST}_gpu0").uuid


def test_a_child_that_an_operator_renamed_is_found_by_its_uuid(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, gpus=1)
    uuid = tree_of(driver).get(f"{HOST}_gpu0").uuid
    renamed = tree_of(driver_of(tmp_path))
    renamed.new_child("tesla", HOST, uuid)

    assert [provider.name for provider in tree_of(driver, tree=renamed)] == [HOST, "tesla"]


def test_children_of_removed_devices_are_removed_and_children_of_others_stay(tmp_path: Path) -> None:
    tree = tree_of(driver_of(tmp_path, gpus=3))
    tree.new_child(f"{HOST}_fpga0", HOST)

    assert {provider.name for provider in tree_of(driver_of(tmp_path, gpus=1), tree=tree)} == {
        HOST,
        f"{HOST}_gpu0",
        f"{HOST}_fpga0",
    }


def test_a_reshape_is_needed_only_if_inventory_is_on_another_provider(tmp_path: Path) -> None:
    flat = driver_of(tmp_path, layout="flat", numa_nodes=2, gpus=2)
    nested = driver_of(tmp_path, numa_nodes=2, gpus=2)

    with pytest.raises(ReshapeNeeded) as needed:
        tree_of(nested, tree=tree_of(flat))
    assert len(needed.value.instructions) == 4
    with pytest.raises(ReshapeNeeded):
        tree_of(flat, tree=tree_of(nested))
    larger = driver_of(tmp_path, numa_nodes=2, gpus=3, vgpus_per_gpu=8, vcpus=32)
    assert totals(tree_of(larger, tree=tree_of(nested)), "VGPU") == {"gpu0": 8, "gpu1": 8, "gpu2": 8}


def test_amounts_that_an_operator_reserved_stay_reserved_in_each_layout(tmp_path: Path) -> None:
    flat = tree_of(driver_of(tmp_path, layout="flat"))
    found = flat.get(HOST).inventories["VCPU"]
    flat.set_inventory(HOST, "VCPU", Inventory(total=found.total, reserved=10))
    nested = flat.copy()

    assert tree_of(driver_of(tmp_path, layout="flat"), tree=flat).get(HOST).inventories["VCPU"].reserved == 10
    driver = driver_of(tmp_path, numa_nodes=2)
    with pytest.raises(ReshapeNeeded):
        driver.update_provider_tree(driver.hosts()[0], nested)
    assert [nested.get(f"{HOST}_numa{n}").inventories["VCPU"].reserved for n in (0, 1)] == [8, 2]


def test_a_ratio_that_an_operator_set_lasts_until_the_driver_describes_its_host_and_the_reserved_amount_stays(
    tmp_path: Path,
) -> None:
    tree = tree_of(driver_of(tmp_path, layout="flat"))
    found = tree.get(HOST).inventories["VCPU"]
    tree.set_inventory(HOST, "VCPU", Inventory(total=found.total, reserved=2, allocation_ratio=4.0))

    described = tree_of(driver_of(tmp_path, layout="flat", vcpu_allocation_ratio=1.5), tree=tree)
    vcpu = described.get(HOST).inventories["VCPU"]
    assert (vcpu.reserved, vcpu.allocation_ratio) == (2, 1.5)
