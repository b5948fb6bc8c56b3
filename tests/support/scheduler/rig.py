"""A main schema with cells and hosts, any number of schedulers on it, and direct writers: no bus."""

import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from moorage import errors
from moorage.db.database import Database
from moorage.ids import derived
from moorage.messages import (
    CompareView,
    DeleteAllocations,
    DeleteResourceProvider,
    GetResourceProvider,
    HostsRegistered,
    ListHosts,
    PutAllocations,
    ReportHosts,
    ReportProviders,
    SelectDestinations,
    SetHost,
    SetInventories,
)
from moorage.messages.wire import Message, R, decode
from moorage.model import (
    Explanation,
    HostReport,
    HostState,
    Inventory,
    ProviderReport,
)
from moorage.model.inspection import StoreAudit
from moorage.service.stored_requests import StoredRequests
from placement_store import cells
from placement_store.db.names import ResourceClassNames
from placement_store.dispatcher import Dispatcher
from placement_store.schema import MAIN, changes, hosts, requests
from placement_store.upkeep.audit import report as audit_report
from scheduler.decide.environment import DecisionEnvironment, DecisionPolicy
from scheduler.decide.funnel import Funnel
from scheduler.decide.plugin_failures import FailureCounts
from scheduler.endpoints.decisions import DecisionEndpoint
from scheduler.endpoints.explain import ExplainEndpoint
from scheduler.endpoints.registry import HostReportEndpoint, RegistryEndpoint
from scheduler.endpoints.view import ViewEndpoint
from scheduler.registry.aggregates.reader import AggregateReader
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache
from support.databases import migrated
from support.placement_store.builders import Store
from support.scheduler.builders import CELLS, funnel
from support.scheduler.worded_requests import loaded

#: Metadata keys whose values a plug-in parses as numbers.
NUMERIC = frozenset({"max_io_ops_per_host", "ram_weight_multiplier"})


def node_uuid(number: int) -> str:
    return derived("rig", "node", number)


class OneScheduler:
    """A scheduler with its own connections, host cache and endpoint."""

    def __init__(
        self,
        url: str,
        *,
        max_age: float = 0.0,
        max_tries: int = 20,
        subset: int = 1,
        plugins: Funnel | None = None,
        request_filters: Sequence[str] = (),
        **filter_options: Any,
    ) -> None:
        self.database = Database(url, "main", pool_size=32)
        names = ResourceClassNames(self.database)
        self.host_cache = HostCache()
        self.follower = Follower(self.database, names, self.host_cache)
        stored = StoredRequests(self.database, requests)
        by = plugins or funnel()
        environment = DecisionEnvironment(
            self.database,
            names,
            self.host_cache,
            self.follower,
            DecisionPolicy(by.filters, by.weighers, loaded(request_filters, **filter_options), subset),
            AggregateReader(self.database).read,
            max_age=max_age,
            max_tries=max_tries,
        )
        self.endpoint = DecisionEndpoint(environment, stored, FailureCounts())
        self.select = self.endpoint.select_destinations
        self.host_reports = HostReportEndpoint(stored)
        self.explain = ExplainEndpoint(environment).explain
        self.view_endpoint = ViewEndpoint(environment, self.endpoint.in_flight)
        self.catch_up()

    def follow(self) -> None:
        """Read the changes that the change feed has named since the last time, as each decision does."""
        self.follower.follow(self.follower.now())

    def catch_up(self) -> None:
        """Find everything that the view lacks."""
        self.follower.catch_up(self.follower.now())

    def compare(self) -> None:
        """Compare every ``seq`` with the store, as is done regularly."""
        self.follower.compare(self.follower.now())

    def drifted(self) -> tuple[str, ...]:
        """Return the hosts and providers whose difference from the store the change feed has not named."""
        return self.view_endpoint.compare_view(CompareView()).drifted

    def refusal(self, message: SelectDestinations) -> Explanation:
        """Send a request for which no host is valid, and return the explanation."""
        with pytest.raises(errors.NoValidHost) as caught:
            self.select(message)
        return decode(Explanation, caught.value.explanation)

    def used(self, number: int, resource_class: str = "VCPU") -> float:
        """Return the used amount of a host in this scheduler's view."""
        snapshot = self.host_cache.snapshot()
        row = [host.compute_node_uuid for host in snapshot.hosts].index(node_uuid(number))
        return float(snapshot.used(resource_class)[row])


class Rig:
    """The store, and clients that write to it without the schedulers."""

    def __init__(self, url: str, *, is_migrated: bool = False) -> None:
        self.url = url
        if not is_migrated:
            migrated.give_tables(url, MAIN)
        self.database = Database(url, "main", pool_size=32)
        self.names = ResourceClassNames(self.database)
        self.placement = Dispatcher(self.database, self.names)
        self._numbers = itertools.count()
        self._schedulers: list[OneScheduler] = []
        for number, uuid in enumerate(CELLS):
            cells.create(self.database, name=f"cell{number}", uuid=uuid)
        stored = StoredRequests(self.database, requests)
        self.registry = RegistryEndpoint(self.database, stored, self.names, NUMERIC).handlers()
        self.host_reports = HostReportEndpoint(stored)

    def serve(self, message: Message[R]) -> R:
        """Have the endpoint of the registry serve a message."""
        answer: R = self.registry[type(message)](message)
        return answer

    def close(self) -> None:
        for scheduler in self._schedulers:
            scheduler.database.close()
        self.database.close()

    def scheduler(self, **settings: Any) -> OneScheduler:
        self._schedulers.append(OneScheduler(self.url, **settings))
        return self._schedulers[-1]

    def fresh(self) -> str:
        return f"rig-{next(self._numbers)}"

    def add_hosts(
        self, numbers: Collection[int], cell: int = 0, vcpus: int = 16, memory_mb: int = 32768, **described: Any
    ) -> None:
        """Add hosts with providers, reported and alive."""
        held = {
            "VCPU": Inventory(total=vcpus),
            "MEMORY_MB": Inventory(total=memory_mb),
            "DISK_GB": Inventory(total=500),
        }
        providers = tuple(
            ProviderReport(uuid=node_uuid(number), name=f"host{number}", inventories=held) for number in numbers
        )
        self.report_providers(*providers)
        self.report([report(number, **described) for number in numbers], [f"host{n}" for n in numbers], cell)

    def report(self, described: Sequence[HostReport], alive: Sequence[str] = (), cell: int = 0) -> HostsRegistered:
        return self.host_reports.report_hosts(
            ReportHosts(request_id=self.fresh(), cell_uuid=CELLS[cell], hosts=tuple(described), alive=tuple(alive))
        )

    def report_providers(self, *providers: ProviderReport, gone: Sequence[str] = ()) -> None:
        self.placement.call(ReportProviders(request_id=self.fresh(), providers=providers, gone=tuple(gone)))

    def add_providers(self, *numbers: int) -> None:
        """Add the root providers of hosts, without inventories."""
        self.report_providers(*(ProviderReport(uuid=node_uuid(number), name=f"host{number}") for number in numbers))

    def set_host(self, name: str, **wanted: Any) -> HostState:
        """Disable, enable or force down a host, as an operator does."""
        return self.serve(SetHost(request_id=self.fresh(), service_host=name, **wanted))

    def delete_provider(self, uuid: str) -> None:
        self.placement.call(DeleteResourceProvider(request_id=self.fresh(), uuid=uuid))

    def shift_heartbeats(self, seconds: float) -> None:
        """Add seconds to the time of each heartbeat: to age it, or to move the database's clock the other way."""
        shifted = hosts.update().values(heartbeat_at=hosts.c.heartbeat_at + seconds)
        self.database.write(lambda connection: connection.execute(shifted))

    def hosts(self) -> Sequence[HostState]:
        return self.serve(ListHosts())

    def up(self) -> list[str]:
        """Return the names of the hosts that are up."""
        return [host.service_host for host in self.hosts() if host.up]

    def lose_changes(self) -> None:
        """Let the rows of the change feed name no host that exists: schedulers miss what they have not read yet."""
        named_nothing = changes.update().values(resource_provider_id=None, host_id=0)
        self.database.write(lambda connection: connection.execute(named_nothing))

    def take(self, number: int, vcpus: int, memory_mb: int = 1, consumer: str | None = None) -> str:
        """Let another consumer take amounts of a host; return the consumer."""
        uuid = consumer or derived(self.fresh(), "somebody")
        wanted = Store.wanted({node_uuid(number): {"VCPU": vcpus, "MEMORY_MB": memory_mb}})
        self.placement.call(PutAllocations(request_id=self.fresh(), consumer_uuid=uuid, wanted=wanted))
        return uuid

    def release(self, consumer: str, *, for_good: bool = False) -> None:
        self.placement.call(DeleteAllocations(request_id=self.fresh(), consumer_uuid=consumer, for_good=for_good))

    def resize_host(self, number: int, vcpus: int) -> None:
        provider = self.placement.call(GetResourceProvider(uuid=node_uuid(number)))
        self.placement.call(
            SetInventories(
                request_id=self.fresh(),
                uuid=provider.uuid,
                generation=provider.generation,
                inventories={**provider.inventories, "VCPU": Inventory(total=vcpus)},
            )
        )

    def audit(self) -> StoreAudit:
        return self.database.read(audit_report)


def report(number: int, **described: Any) -> HostReport:
    values: dict[str, Any] = {
        "service_host": f"host{number}",
        "nodename": f"host{number}",
        "compute_node_uuid": node_uuid(number),
        "agent": "agent",
    }
    return HostReport(**values | described)


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def rig_on_each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A rig on SQLite and on MariaDB; at the end nothing may be over-committed, and all sums must agree."""
    if request.param == "sqlite":
        url = migrated.sqlite(tmp_path / "main.sqlite", MAIN)
    else:
        url = request.getfixturevalue("migrated_mariadb").url(MAIN)
    rig = Rig(url, is_migrated=True)
    yield rig
    found = rig.audit()
    assert not found.overcommitted
    assert not found.drifted
    rig.close()
