"""The hosts and requests on which the search for allocation candidates is measured."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from moorage.model import UNSUFFIXED, ResourceGroup, ResourceRequest
from placement_store.candidates import CandidateProvider, HostTree
from placement_store.candidates.tree import SHARES
from placement_store.providers.rows import InventoryRow

_FLAVOR = ResourceGroup(resources={"VCPU": 4, "MEMORY_MB": 4096})


@dataclass(frozen=True)
class Shape:
    """A named pair of a host and a request."""

    name: str
    tree: HostTree
    request: ResourceRequest


def shapes() -> Iterator[Shape]:
    """Yield all shapes; the first is small enough for its cross product to be enumerated."""
    yield Shape("8 devices, 5 groups", _device_host(8), _devices(5))
    for devices, groups in ((8, 8), (16, 8), (64, 4)):
        yield Shape(f"{devices} devices, {groups} groups", _device_host(devices), _devices(groups))
        yield Shape(f"{devices} devices, {groups} groups, isolate", _device_host(devices), _devices(groups, "isolate"))
        yield Shape(
            f"{devices} devices, {groups} groups, one too few",
            _device_host(devices, busy=devices - groups + 1),
            _devices(groups),
        )
    yield Shape("16 devices of 5, 17 groups of 3", _device_host(16, size=5), _devices(17, amount=3))
    yield Shape("64 sharing pools", _pool_host(64), _with_disk())
    yield Shape("3 levels: 8 nodes with 4 devices, guest of 4 nodes with 2", _numa_host(8, 4), _numa_guest(4, 2))
    yield Shape("3 levels: 8 nodes with 4 devices, guest of 8 nodes with 2", _numa_host(8, 4), _numa_guest(8, 2))
    yield Shape("3 levels: 8 nodes with 1 device, guest of 8 nodes with 2", _numa_host(8, 1), _numa_guest(8, 2))


# --- Hosts ----------------------------------------------------------------------------------------------------------


def _provider(uuid: str, parent: str | None, used: int = 0, **totals: int) -> CandidateProvider:
    inventories = {name: InventoryRow(total, 0, 1, total, 1, 1.0, used) for name, total in totals.items()}
    return CandidateProvider(uuid, "host", parent, inventories)


def _device_host(devices: int, busy: int = 0, size: int = 1) -> HostTree:
    root = _provider("host", None, VCPU=64, MEMORY_MB=262144)
    below = [_provider(f"device {n}", "host", used=size if n < busy else 0, VGPU=size) for n in range(devices)]
    return HostTree([root, *below])


def _pool_host(pools: int) -> HostTree:
    near = frozenset(("aggregate",))
    inventories = {"DISK_GB": InventoryRow(10_000, 0, 1, 10_000, 1, 1.0, 0)}
    root = _provider("host", None, VCPU=64, MEMORY_MB=262144)
    return HostTree(
        [CandidateProvider("host", "host", None, root.inventories, aggregates=near)],
        [
            CandidateProvider(f"pool {n}", f"pool {n}", None, inventories, frozenset((SHARES,)), near)
            for n in range(pools)
        ],
    )


def _numa_host(nodes: int, devices: int) -> HostTree:
    root = _provider("host", None, DISK_GB=1000)
    below = [_provider(f"node {n}", "host", VCPU=8, MEMORY_MB=32768) for n in range(nodes)]
    below += [_provider(f"device {n}.{d}", f"node {n}", VGPU=1) for n in range(nodes) for d in range(devices)]
    return HostTree([root, *below])


# --- Requests -------------------------------------------------------------------------------------------------------


def _devices(groups: int, group_policy: Literal["none", "isolate"] = "none", amount: int = 1) -> ResourceRequest:
    devices = {f"_{n}": ResourceGroup(resources={"VGPU": amount}) for n in range(groups)}
    return ResourceRequest(groups={UNSUFFIXED: _FLAVOR} | devices, group_policy=group_policy)


def _with_disk() -> ResourceRequest:
    return ResourceRequest(groups={UNSUFFIXED: ResourceGroup(resources=_FLAVOR.resources | {"DISK_GB": 10})})


def _numa_guest(nodes: int, devices: int) -> ResourceRequest:
    groups = {UNSUFFIXED: ResourceGroup(resources={"DISK_GB": 10})}
    subtrees = []
    for node in range(nodes):
        here = {f"_node{node}": _FLAVOR}
        here |= {f"_node{node}_{device}": ResourceGroup(resources={"VGPU": 1}) for device in range(devices)}
        groups |= here
        subtrees.append(tuple(here))
    return ResourceRequest(groups=groups, group_policy="none", same_subtree=tuple(subtrees))
