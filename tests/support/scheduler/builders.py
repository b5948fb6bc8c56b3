"""Hosts, caches and requests for the scheduler's tests; a test gives only the values that it depends on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from filters.aggregates import AggregatesFilter
from filters.availability_zone import AvailabilityZoneFilter
from filters.compute import ComputeFilter
from filters.destination import DestinationFilter
from filters.resources import ResourcesFilter
from filters.server_group_affinity import ServerGroupAffinityFilter
from filters.server_group_anti_affinity import ServerGroupAntiAffinityFilter
from filters.traits import TraitsFilter
from moorage.ids import derived
from moorage.messages import SelectDestinations
from moorage.model import AllocationRequest, Flavor, ProviderAmounts, RequestSpec
from moorage.plugin import Filter, Host, HostInventory, Weigher
from moorage.testing.builders import inventory
from scheduler.decide.funnel import Funnel
from scheduler.plugins.loading import Named, Weighted
from scheduler.registry.hosts import HostRow
from scheduler.view.host_cache import HostCache
from scheduler.view.provider_trees import FetchedProvider
from weighers.cpu import CpuWeigher
from weighers.disk import DiskWeigher
from weighers.ram import RamWeigher
from weighers.server_group_soft_affinity import ServerGroupSoftAffinityWeigher
from weighers.server_group_soft_anti_affinity import ServerGroupSoftAntiAffinityWeigher

CELLS = (derived("tests", "cell", 1), derived("tests", "cell", 2))


def host_row(number: int, **changes: Any) -> HostRow:
    """Host ``number``: up, enabled, in the first cell."""
    values: dict[str, Any] = {
        "id": number,
        "seq": 0,
        "cell_uuid": CELLS[0],
        "service_host": f"host{number}",
        "nodename": f"node{number}",
        "compute_node_uuid": derived("tests", "node", number),
        "agent": "agent",
        "availability_zone": "nova",
        "attributes": {},
        "up": True,
        "disabled": False,
        "forced_down": False,
    }
    return HostRow(**values | changes)


def provider(host: HostRow, seq: int = 0, /, **inventories: HostInventory) -> FetchedProvider:
    """The provider of a host, by default with 16 VCPU, 32 GiB and 500 GB."""
    held = inventories or {"VCPU": inventory(16), "MEMORY_MB": inventory(32768), "DISK_GB": inventory(500)}
    return FetchedProvider(
        id=host.id, uuid=host.compute_node_uuid, seq=seq, root_id=host.id, parent_id=None, inventories=held
    )


def host_cache(hosts: Iterable[HostRow], providers: Iterable[FetchedProvider] | None = None) -> HostCache:
    hosts = list(hosts)
    shown = HostCache()
    shown.update(hosts=hosts, providers=[provider(host) for host in hosts] if providers is None else providers)
    return shown


def funnel(multipliers: Sequence[float] = (1.0, 1.0, 1.0), **more_filters: Filter) -> Funnel:
    """Some of the filters and weighers that are enabled by default, and after these filters the given ones by name."""
    return Funnel(
        [
            Named("compute", ComputeFilter({})),
            Named("availability_zone", AvailabilityZoneFilter({})),
            Named("destination", DestinationFilter({})),
            Named("traits", TraitsFilter({})),
            Named("aggregates", AggregatesFilter({})),
            Named("server_group_affinity", ServerGroupAffinityFilter({})),
            Named("server_group_anti_affinity", ServerGroupAntiAffinityFilter({})),
            Named("resources", ResourcesFilter({})),
            *(Named(name, plugin) for name, plugin in more_filters.items()),
        ],
        [
            Weighted("ram", RamWeigher({}), multipliers[0]),
            Weighted("cpu", CpuWeigher({}), multipliers[1]),
            Weighted("disk", DiskWeigher({}), multipliers[2]),
            _by_default("server_group_soft_affinity", ServerGroupSoftAffinityWeigher({})),
            _by_default("server_group_soft_anti_affinity", ServerGroupSoftAntiAffinityWeigher({})),
        ],
    )


def _by_default(name: str, weigher: Weigher) -> Weighted:
    return Weighted(name, weigher, weigher.default_multiplier)


class LowestNumberFirst(Weigher):
    """Gives each host another weight, so that a test knows which one is best."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        return -float(host.service_host.removeprefix("host"))


def by_number() -> Funnel:
    """The usual filters; hosts are weighed by their numbers."""
    return Funnel(funnel().filters, [Weighted("number", LowestNumberFirst({}), 1.0)])


def spec(vcpus: int = 2, memory_mb: int = 2048, root_gb: int = 20, **changes: Any) -> RequestSpec:
    flavor = Flavor(vcpus=vcpus, memory_mb=memory_mb, root_gb=root_gb)
    described: dict[str, Any] = {"project_id": "project", "user_id": "user", "flavor": flavor} | changes
    return RequestSpec(**described)


def allocation_request(amounts: Mapping[str, Mapping[str, int]]) -> AllocationRequest:
    """Build a claim of these amounts, by provider and class."""
    return AllocationRequest(
        allocations={uuid: ProviderAmounts(resources=dict(resources)) for uuid, resources in amounts.items()}
    )


def instance_uuids(request_id: str, count: int) -> tuple[str, ...]:
    return tuple(derived(request_id, "instance", number) for number in range(count))


def select(request_id: str = "r1", count: int = 1, num_alternates: int = 0, **changes: Any) -> SelectDestinations:
    """A request for ``count`` instances, whose uuids are derived from its id; ``changes`` are those of the spec."""
    return SelectDestinations(
        request_id=request_id,
        request_spec=spec(**changes),
        instance_uuids=instance_uuids(request_id, count),
        num_alternates=num_alternates,
    )
