"""The provider tree of a fake host: all on its root, or on children for NUMA nodes, GPUs and NICs."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import os_traits
from msgspec.structs import replace
from os_resource_classes import (
    DISK_GB,
    MEMORY_MB,
    NET_BW_EGR_KILOBIT_PER_SEC,
    NET_BW_IGR_KILOBIT_PER_SEC,
    PCPU,
    SRIOV_NET_VF,
    VCPU,
    VGPU,
)
from oslo_config import cfg

from compute.driver import ReshapeNeeded
from compute.provider_tree import ProviderTree
from compute.tree_changes import moves
from moorage import ids
from moorage.model import HostReport, Inventory

#: The classes that this driver sets; an inventory of another class, set by hand, stays.
_OURS = frozenset(
    {DISK_GB, MEMORY_MB, NET_BW_EGR_KILOBIT_PER_SEC, NET_BW_IGR_KILOBIT_PER_SEC, PCPU, SRIOV_NET_VF, VCPU, VGPU}
)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a host: its amounts by resource class, and its traits."""

    name: str
    totals: Mapping[str, int]
    traits: tuple[str, ...] = ()


class FakeLayout:
    """The inventories of every host of a fake driver, and their distribution over its provider tree."""

    def __init__(self, options: cfg.ConfigOpts.GroupAttr) -> None:
        self._options = options
        self._ratios: dict[str, float] = {VCPU: options.vcpu_allocation_ratio}
        gpus = [_Part(f"gpu{number}", {VGPU: options.vgpus_per_gpu}) for number in range(options.gpus)]
        devices = [*gpus, *_nics(options)]
        whole = _whole(options, devices)
        self._parts = [*_numa_nodes(options), *devices] if options.layout == "nested" else []
        apart = {name for part in self._parts for name in part.totals}
        self._node = {name: total for name, total in whole.items() if name not in apart}
        #: The capacity of one host by resource class.
        self.capacity = {name: total * self._ratios.get(name, 1.0) for name, total in whole.items()}

    def update(self, host: HostReport, tree: ProviderTree) -> None:
        """Change ``tree`` to the tree of ``host``; traits, aggregates and providers that others have set stay.

        :raises ReshapeNeeded: inventories of the tree move to other providers.
        """
        before = tree.copy()
        node = tree.find(host.compute_node_uuid) or tree.new_root(host.nodename, host.compute_node_uuid)
        self._set(tree, node.uuid, self._node)
        tree.add_traits(node.uuid, self._options.traits)
        if self._options.shared_disk_aggregate:
            tree.add_aggregates(node.uuid, [self._options.shared_disk_aggregate])
        children = {self._update_child(tree, host, part) for part in self._parts}
        for child in tree.children(node.uuid):
            if child.uuid not in children and _is_ours(child.name, host):
                tree.remove(child.uuid)
        _keep_reserved(before, tree)
        if wanted := moves(before, tree):
            raise ReshapeNeeded(wanted)

    def _update_child(self, tree: ProviderTree, host: HostReport, part: _Part) -> str:
        """Return the uuid of the child provider of this part, which is created if it does not exist."""
        name = f"{host.nodename}_{part.name}"
        child = tree.find(name)
        if child is None:
            # It does not exist, or an operator has renamed it. It is identified by its place in its machine.
            uuid = ids.derived(host.compute_node_uuid, "fake-part", part.name)
            child = tree.find(uuid) or tree.new_child(name, host.compute_node_uuid, uuid)
        self._set(tree, child.uuid, part.totals)
        tree.add_traits(child.uuid, part.traits)
        return child.uuid

    def _set(self, tree: ProviderTree, provider: str, totals: Mapping[str, int]) -> None:
        present = tree.get(provider).inventories
        kept = {name: inventory for name, inventory in present.items() if name not in _OURS}
        ours = {name: self._inventory(name, total, present.get(name)) for name, total in totals.items()}
        tree.set_inventories(provider, kept | ours)

    def _inventory(self, resource_class: str, total: int, present: Inventory | None) -> Inventory:
        return Inventory(
            total=total,
            # Set by operators, not by the driver.
            reserved=min(present.reserved, total) if present else 0,
            # One consumer gets at most the total, whatever the allocation ratio is (Nova's max_unit).
            max_unit=total,
            allocation_ratio=self._ratios.get(resource_class, 1.0),
        )


def _keep_reserved(before: ProviderTree, tree: ProviderTree) -> None:
    """Keep the reserved amount of each class, on the first providers that have room for it."""
    for name in sorted(_OURS):
        missing = _reserved(before, name) - _reserved(tree, name)
        for provider in list(tree):
            if missing > 0 and (inventory := provider.inventories.get(name)) is not None:
                more = min(missing, inventory.total - inventory.reserved)
                tree.set_inventory(provider.uuid, name, replace(inventory, reserved=inventory.reserved + more))
                missing -= more


def _reserved(tree: ProviderTree, resource_class: str) -> int:
    return sum(
        provider.inventories[resource_class].reserved for provider in tree if resource_class in provider.inventories
    )


def _is_ours(name: str, host: HostReport) -> bool:
    return re.fullmatch(rf"{re.escape(host.nodename)}_(numa|gpu|nic)\d+", name) is not None


def _whole(options: cfg.ConfigOpts.GroupAttr, devices: Sequence[_Part]) -> dict[str, int]:
    disk_gb = 0 if options.shared_disk_aggregate else options.disk_gb
    whole = Counter({VCPU: options.vcpus, PCPU: options.pcpus, MEMORY_MB: options.memory_mb, DISK_GB: disk_gb})
    for device in devices:
        whole.update(device.totals)
    return dict(+whole)


def _numa_nodes(options: cfg.ConfigOpts.GroupAttr) -> Iterator[_Part]:
    whole = {VCPU: options.vcpus, PCPU: options.pcpus, MEMORY_MB: options.memory_mb}
    for number in range(options.numa_nodes):
        shares = {name: _share(amount, options.numa_nodes, number) for name, amount in whole.items()}
        totals = {name: total for name, total in shares.items() if total}
        yield _Part(f"numa{number}", totals, (os_traits.HW_NUMA_ROOT,))


def _share(whole: int, shares: int, number: int) -> int:
    """Return one of several nearly equal shares of a whole; the first ones are the larger ones."""
    return whole // shares + (number < whole % shares)


def _nics(options: cfg.ConfigOpts.GroupAttr) -> Iterator[_Part]:
    totals = {SRIOV_NET_VF: options.vfs_per_nic}
    if options.nic_bandwidth:
        totals |= dict.fromkeys((NET_BW_EGR_KILOBIT_PER_SEC, NET_BW_IGR_KILOBIT_PER_SEC), options.nic_bandwidth)
    networks = [os_traits.normalize_name(f"physnet_{name}") for name in options.physnets]
    for number in range(options.nics):
        traits = (networks[number % len(networks)],) if networks else ()
        yield _Part(f"nic{number}", totals, traits)
