"""Hosts and plug-ins whose answers claims change, for the tests of evaluations."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from filters.io_ops import IoOpsFilter
from filters.num_instances import NumInstancesFilter
from filters.resources import ResourcesFilter
from moorage.ids import derived
from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import Filter, Host, Weigher
from moorage.testing.builders import inventory
from placement_store.candidates.tree import SHARES
from scheduler.decide.funnel import Funnel
from scheduler.decide.planner import DestinationPlan, NoHost
from scheduler.plugins.loading import Named, Weighted
from scheduler.registry.hosts import HostRow
from scheduler.view.host_cache import HostCache
from scheduler.view.planned import PlannedView
from scheduler.view.provider_trees import FetchedProvider
from support.scheduler.builders import allocation_request, host_cache, host_row, provider
from weighers.cpu import CpuWeigher
from weighers.disk import DiskWeigher
from weighers.io_ops import IoOpsWeigher
from weighers.num_instances import NumInstancesWeigher
from weighers.packing import PackingWeigher
from weighers.ram import RamWeigher

#: An aggregate whose members share a pool of disk.
RACK = derived("tests", "rack")


class Evens(Filter):
    """An operator's filter in its one-host form, about the amounts that claims change."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.used("VCPU") % 2 == 0 or host.instances < 3


class Neighbours(Weigher):
    """An operator's weigher in its one-host form, about the instances that claims add."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        return float(host.instances % 3)


def plugins(multipliers: list[float], one_by_one: bool = True) -> Funnel:
    """Return every plug-in whose answers a claim may change.

    :param one_by_one: include plug-ins of operators that are written for single hosts.
    """
    weighers: list[tuple[str, Weigher]] = [
        ("ram", RamWeigher({})),
        ("cpu", CpuWeigher({})),
        ("disk", DiskWeigher({})),
        ("io_ops", IoOpsWeigher({})),
        ("num_instances", NumInstancesWeigher({})),
        ("packing", PackingWeigher({})),
        ("neighbours", Neighbours({})),
    ]
    evens: list[Named[Filter]] = [Named("evens", Evens({}))] if one_by_one else []
    return Funnel(
        [
            Named("resources", ResourcesFilter({})),
            Named("io_ops", IoOpsFilter({"max_io_ops_per_host": 4})),
            Named("num_instances", NumInstancesFilter({"max_instances_per_host": 5})),
            *evens,
        ],
        [
            Weighted(name, plugin, by)
            for (name, plugin), by in zip(weighers, multipliers, strict=True)
            if one_by_one or name != "neighbours"
        ],
    )


def pool(used: int = 0) -> FetchedProvider:
    """Return the pool of the hosts that have no disk of their own."""
    held = provider(host_row(1000), DISK_GB=inventory(400, used))
    return replace(held, traits=frozenset({SHARES}), aggregates=frozenset({RACK}))


def provider_of(host: HostRow, vcpus: int, used: int, shares: bool) -> FetchedProvider:
    """Return the provider of a host of this size."""
    own: dict[str, Any] = {"VCPU": inventory(vcpus, min(used, vcpus)), "MEMORY_MB": inventory(1024 * vcpus, used)}
    if not shares:
        own["DISK_GB"] = inventory(100)
    return replace(provider(host, **own), aggregates=frozenset({RACK} if shares else ()))


def cloud(sizes: list[tuple[int, int, bool]]) -> HostCache:
    """Return hosts of these VCPU and used VCPU; some have their disk from a common pool."""
    hosts = [
        host_row(number, metadata={"ram_weight_multiplier": frozenset({"3"})} if used % 2 else {})
        for number, (_, used, _) in enumerate(sizes)
    ]
    providers = [pool()]
    providers += [provider_of(host, *size) for host, size in zip(hosts, sizes, strict=True)]
    return host_cache(hosts, providers)


def planned_view(cache: HostCache, expected_claims: int = 1) -> PlannedView:
    """Return a view of the hosts in which claims can be planned."""
    view = cache.snapshot()
    return PlannedView.of(view, view.classes, expected_claims)


def claim_on(view: PlannedView, row: int, asked: RequestSpec) -> AllocationRequest | None:
    """Return a claim of a request on a host, if there is room."""
    tree = view.trees[row]
    amounts: dict[str, dict[str, int]] = {}
    for name, amount in asked.resource_request.totals().items():
        fitting = [
            one.uuid
            for one in (tree.serving if tree else ())
            if name in one.slots and view.classes[name].slots.fits_at(one.slots[name], amount)
        ]
        if not fitting:
            return None
        amounts.setdefault(fitting[0], {})[name] = amount
    return allocation_request(amounts)


def places(plan: DestinationPlan | NoHost) -> object:
    """Return the hosts and weights of a plan, with those of its alternates; the number of instances if it has none."""
    if isinstance(plan, NoHost):
        return plan.placed
    rows = [[(choice.row, choice.weight) for choice in alternates] for alternates in plan.alternates]
    return [(choice.row, choice.weight) for choice in plan.chosen], rows


#: The VCPU and the used VCPU of hosts, and whether each has its disk from the common pool.
sizes = st.lists(st.tuples(st.sampled_from([2, 4, 8]), st.integers(0, 6), st.booleans()), min_size=1, max_size=12)
