"""Benchmark of the search for allocation candidates on wide hosts, compared with a cross product."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from statistics import median
from typing import Literal

from harness.bench.usage import seconds_of
from moorage.model import UNSUFFIXED, ResourceGroup, ResourceRequest
from placement_store.candidates import CandidateProvider, HostTree, search
from placement_store.candidates.tree import SHARES
from placement_store.providers.rows import InventoryRow

#: The largest cross product that is enumerated for comparison: it takes a tenth of a second.
_LARGEST_PRODUCT = 100_000
_FLAVOR = ResourceGroup(resources={"VCPU": 4, "MEMORY_MB": 4096})


@dataclass(frozen=True)
class CandidatesResult:
    """The result of one shape; the field names are those of `moorage bench candidates -f json`."""

    shape: str
    providers: int
    groups: int
    #: The number of ways to choose a suitable provider for each class and each group (as a power of ten).
    combinations: str
    #: The number of candidates taken.
    candidates: int
    #: Milliseconds to the first candidate, or to the proof that there is none.
    first_ms: float
    first_worst_ms: float
    #: Milliseconds to all those candidates.
    all_ms: float
    #: The time of the cross product divided by the time for all candidates; null if the product is too large to try.
    product_takes: float | None


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


def measure(repeat: int, candidates: int) -> Iterator[CandidatesResult]:
    """Measure each shape ``repeat`` times: the search for its first candidate, and for its first ``candidates``.

    Times are processor times, so that other work on the machine does not count; no garbage is collected meanwhile.
    """
    for shape in shapes():
        first = [seconds_of(partial(_take, shape, 1)) for _ in range(repeat)]
        several = [seconds_of(partial(_take, shape, candidates)) for _ in range(repeat)]
        yield CandidatesResult(
            shape=shape.name,
            providers=len(shape.tree.providers) + len(shape.tree.sharing),
            groups=len(shape.request.groups),
            combinations=f"10^{math.log10(_combinations(shape)):.1f}",
            candidates=_take(shape, candidates),
            first_ms=round(median(first) * 1000, 3),
            first_worst_ms=round(max(first) * 1000, 3),
            all_ms=round(median(several) * 1000, 3),
            product_takes=_compared(shape, repeat),
        )


def _take(shape: Shape, most: int) -> int:
    """Search for at most ``most`` candidates; return their number."""
    return sum(1 for _ in islice(search(shape.tree, shape.request), most))


# --- The cross product ----------------------------------------------------------------------------------------------


def _compared(shape: Shape, repeat: int) -> float | None:
    if _combinations(shape) > _LARGEST_PRODUCT or shape.request.same_subtree:
        return None
    by_search = min(seconds_of(partial(_take, shape, sys.maxsize)) for _ in range(repeat))
    by_product = min(seconds_of(partial(_by_product, shape)) for _ in range(max(1, repeat // 5)))
    return round(by_product / by_search, 1)


def _combinations(shape: Shape) -> int:
    return math.prod(len(places) for _, places in _parts(shape))


def _parts(shape: Shape) -> list[tuple[dict[str, int], list[int]]]:
    """Return the parts that must be placed whole, with the numbers of the providers that have all its classes."""
    groups = shape.request.groups
    wholes = [{name: amount} for name, amount in groups[UNSUFFIXED].resources.items()]
    wholes += [dict(group.resources) for suffix, group in groups.items() if suffix != UNSUFFIXED]
    providers = _providers(shape.tree)
    return [(whole, [n for n, held in enumerate(providers) if whole.keys() <= held.keys()]) for whole in wholes]


def _providers(tree: HostTree) -> list[dict[str, int]]:
    return [
        {name: row.total - row.used for name, row in provider.inventories.items()}
        for provider in (*tree.providers, *tree.sharing)
    ]


def _by_product(shape: Shape) -> set[frozenset[tuple[tuple[int, str], int]]]:
    """Return all candidates by trying every combination, with regard to amounts only."""
    parts = _parts(shape)
    room = _providers(shape.tree)
    found = set()
    for places in product(*(places for _, places in parts)):
        amounts: dict[tuple[int, str], int] = {}
        for place, (whole, _) in zip(places, parts, strict=True):
            for name, amount in whole.items():
                amounts[place, name] = amounts.get((place, name), 0) + amount
        if all(amount <= room[place][name] for (place, name), amount in amounts.items()):
            found.add(frozenset(amounts.items()))
    return found


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
