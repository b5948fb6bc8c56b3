"""Both conductors as whole services on an in-process bus, between fake peers that keep the contracts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from oslo_config import cfg

from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import Backoff
from conductor.schema import cell_disowned
from conductor.service import CellConductor, SuperConductor
from harness.waiting import wait_until as wait_until
from moorage import context, errors, ids
from moorage.bus.bus import Bus, BusServer, serves
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import (
    REPORTS_TOPIC,
    BuildInstances,
    DeleteInstance,
    HostsRegistered,
    ListHosts,
    ReportHosts,
    SelectDestinations,
    ShowInstance,
)
from moorage.messages.wire import Message, R
from moorage.model import (
    AllocationRequest,
    Flavor,
    HostReport,
    HostState,
    Instance,
    ProviderAmounts,
    RequestSpec,
    Selection,
)
from support.conductor.fake_agent import FakeAgent as FakeAgent
from support.conductor.fake_placement import CELL_1 as CELL_1
from support.conductor.fake_placement import FakePlacement as FakePlacement

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024))
QUICK = Backoff(first=0.01, longest=0.05)
#: Seconds that a service waits for another one: more than a busy machine needs, but short enough for tests of silence.
CALL_TIMEOUT = 2.0


def node(host: str) -> str:
    return ids.derived("node", host)


def selection(host: str, claim_id: str | None = None) -> Selection:
    amounts = ProviderAmounts(resources=SPEC.resources)
    return Selection(
        service_host=host,
        nodename=host,
        compute_node_uuid=node(host),
        cell_uuid=CELL_1.uuid,
        agent="agent",
        availability_zone="nova",
        allocation_request=AllocationRequest(allocations={node(host): amounts}),
        claim_id=claim_id,
        consumer_generation=None if claim_id is None else 1,
    )


class FakeScheduler:
    """Returns the same hosts for every instance, with a claim on the first; a repeated request gets the same answer."""

    def __init__(self, placement: FakePlacement) -> None:
        self.placement = placement
        self.hosts = ["a", "b", "c"]
        self.states = [host_state(host) for host in self.hosts]
        self.requests: list[SelectDestinations] = []
        self.origins: list[str | None] = []
        self.reports: list[ReportHosts] = []

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        self.requests.append(message)
        self.origins.append(context.current().request_id)
        answer: list[list[Selection]] = self.placement.once(message, lambda: self.decide(message))
        return [self.replayed(uuid, list(one)) for uuid, one in zip(message.instance_uuids, answer, strict=True)]

    def decide(self, message: SelectDestinations) -> list[list[Selection]]:
        for uuid in message.instance_uuids:
            if uuid in self.placement.deleted:
                raise errors.ConsumerDeleted(consumer_uuid=uuid)
        first, *others = self.chosen(message)
        alternates = [selection(host) for host in others[: message.num_alternates]]
        return [[selection(first, self.claim(message, uuid, first)), *alternates] for uuid in message.instance_uuids]

    def claim(self, message: SelectDestinations, uuid: str, host: str) -> str:
        """Claim a host, as the destination if the request is a move; return the claim."""
        named = message.consumer_generations.get(uuid)
        if message.move is None:
            return self.placement.claim(uuid, node(host), named, keep_held=message.keep_held)
        assert named is not None
        return self.placement.claim_for_move(uuid, message.move, node(host), named)

    def chosen(self, message: SelectDestinations) -> list[str]:
        """Return the possible hosts for a request, the best first."""
        wanted = message.request_spec.requested_destination
        hosts = list(self.hosts) if wanted is None or wanted.host is None else [wanted.host]
        if wanted is not None and wanted.node_uuid is not None:
            hosts = [host for host in hosts if node(host) == wanted.node_uuid]
        if message.move is not None and message.move.kind != "resize":
            source = self.placement.held.get(message.instance_uuids[0])
            hosts = [host for host in hosts if source is None or node(host) != source.root]
        if not hosts:
            raise errors.NoValidHost(instances=1, summary="the cloud has no hosts", explanation={"hosts": 0})
        return hosts

    @serves(ListHosts)
    def list_hosts(self, message: ListHosts) -> list[HostState]:
        return [state for state in self.states if message.service_host in (None, state.service_host)]

    def replayed(self, uuid: str, selections: list[Selection]) -> list[Selection]:
        held = self.placement.held.get(uuid)
        if held is None or held.claim_id != selections[0].claim_id:
            present = self.placement.generations.get(uuid)
            selections[0] = msgspec.structs.replace(selections[0], released=True, consumer_generation=present)
        return selections

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> HostsRegistered:
        self.reports.append(message)
        return HostsRegistered()


class LosesReplies(FakeScheduler):
    """Carries out all requests, but answers the first ``lost`` of them when they are repeated, or after seconds."""

    lost = 1

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        answer = super().select_destinations(message)
        number = len(self.requests)
        if number <= self.lost:
            self.before_repetition(message)
            end = time.monotonic() + 2 * CALL_TIMEOUT
            while len(self.requests) == number and time.monotonic() < end:
                time.sleep(0.02)
        return answer

    def before_repetition(self, message: SelectDestinations) -> None:
        """Run between the claim and the repeated request; by default do nothing."""


P = TypeVar("P", bound=FakePlacement | FakeScheduler | FakeAgent)


@dataclass
class World:
    conf: cfg.ConfigOpts
    bus: Bus
    placement: FakePlacement
    scheduler: FakeScheduler
    agent: FakeAgent
    servers: dict[str, BusServer] = field(default_factory=dict)
    services: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def records(self) -> Database:
        """The database of both conductors, to be read without them; opened once, because waiting means many reads."""
        return Database(self.conf.database.connection, "test")

    @property
    def compute(self) -> str:
        return f"compute.{CELL_1.uuid}"

    def serve(self, topic: str, service: object, server: str = "fake") -> None:
        # Schedulers also receive reports on a separate topic.
        for each in (topic, REPORTS_TOPIC) if topic == "scheduler" else (topic,):
            if each in self.servers:
                self.servers.pop(each).stop()
            self.servers[each] = self.bus.server(each, server, [service], 4)
            self.servers[each].start()

    def replace(self, part: P) -> P:
        """Replace the current placement role, scheduler or agent by another one; return it."""
        if isinstance(part, FakePlacement):
            self.placement = self.scheduler.placement = part
            self.serve("placement", part)
        elif isinstance(part, FakeScheduler):
            self.scheduler = part
            self.serve("scheduler", part)
        else:
            self.agent = part
            self.serve(self.compute, part, "agent")
        return part

    def start(self, name: str, called: str | None = None) -> None:
        called = called or name
        service = (
            SuperConductor(self.conf, called, QUICK)
            if name == "super"
            else CellConductor(self.conf, called, "cell1", QUICK)
        )
        service.start()
        self.services[called] = service

    def stop(self, name: str) -> None:
        self.services.pop(name).stop()

    def restart(self, name: str, **options: Any) -> None:
        """Stop a service and start it with other options of the conductor."""
        self.stop(name)
        for option, value in options.items():
            self.conf.set_override(option, value, group="conductor")
        self.start(name)

    def cell_call(self, message: Message[R]) -> R:
        return self.bus.client(f"conductor.{CELL_1.uuid}").call(message)

    def build(self, *uuids: str, request_id: str | None = None) -> list[str]:
        uuids = uuids or (ids.fresh(),)
        return self.bus.client("conductor").call(
            BuildInstances(request_id=request_id or ids.fresh(), request_spec=SPEC, instance_uuids=uuids)
        )

    def delete(self, uuid: str) -> None:
        self.bus.client("conductor").call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))

    def show(self, uuid: str) -> Instance:
        return self.bus.client("conductor").call(ShowInstance(instance_uuid=uuid))

    def becomes(self, uuid: str, state: str) -> Instance:
        wait_until(lambda: self.show(uuid).state == state, lambda: f"{state}: {self.show(uuid)}")
        return self.show(uuid)

    def die(self, name: str, table: str, lease: float) -> None:
        """Stop a service, and leave its operations as after a crash: leased for ``lease`` more seconds."""
        self.stop(name)
        with self.records.engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE {table}_operations SET lease_owner = 'dead/1', "
                f"lease_until = (julianday('now') - 2440587.5) * 86400.0 + {lease} WHERE due_at IS NOT NULL"
            )

    def lose_leases(self) -> None:
        """Let all leases of cell conductors expire, as they do while these are stopped."""
        with self.records.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE cell_operations SET lease_owner = 'stopped/1', lease_until = 1 WHERE due_at IS NOT NULL"
            )

    def revoke(self, cell_uuid: str, claim_id: str, consumer_uuid: str) -> None:
        """Add a claim to a cell's record of revoked claims."""
        revoked_claims = RevokedClaims(cell_disowned, {"cell_uuid": cell_uuid})
        self.records.write(lambda connection: revoked_claims.add(connection, claim_id, consumer_uuid))

    def waiting(self) -> int:
        """Return the number of operations in the cell that wait for reports of hosts about builds."""
        return self.pending("cell", "AND step = 'wait'")

    def pending(self, table: str, further: str = "") -> int:
        with self.records.engine.connect() as connection:
            found: int = connection.exec_driver_sql(
                f"SELECT COUNT(*) FROM {table}_operations WHERE state = 'pending' {further}"
            ).scalar_one()
            return found

    def failed_builds(self) -> int:
        """Return the number of failed builds that are counted against hosts."""
        with self.records.engine.connect() as connection:
            found: int = connection.exec_driver_sql("SELECT COUNT(*) FROM cell_failed_builds").scalar_one()
            return found


W = TypeVar("W", bound=World)


@contextmanager
def connected(kind: type[W], placement: FakePlacement, database_url: str, call_timeout: float) -> Iterator[W]:
    """Yield a world whose placement role and scheduler are served; at the end, stop all of its services."""
    transport = {"transport_url": f"inproc://{ids.fresh()}/"}
    conf = options.new(
        {
            "DEFAULT": transport,
            "database": {"connection": database_url},
            "rpc": {"call_timeout": call_timeout},
            "conductor": {"report_interval": 0.2, "housekeeping_interval": 0.2, "max_unanswered_retries": 2},
        }
    )
    # The test itself waits longer than any service: a slow answer on a busy machine is no failure.
    bus = Bus(options.new({"DEFAULT": transport, "rpc": {"call_timeout": 60.0}}))
    world = kind(conf, bus, placement, FakeScheduler(placement), FakeAgent(bus))
    world.replace(placement)
    world.replace(world.scheduler)
    yield world
    world.agent.may_finish.set()
    world.agent.released.set()
    world.agent.threads.shutdown()
    for name in list(world.services):
        world.stop(name)
    world.records.close()
    bus.close()


def host_state(host: str, **different: Any) -> HostState:
    state = HostState(
        service_host=host,
        nodename=host,
        compute_node_uuid=node(host),
        cell_uuid=CELL_1.uuid,
        agent="agent",
        availability_zone="nova",
        up=True,
        heartbeat_age=1.0,
    )
    return msgspec.structs.replace(state, **different)


def report(host: str, zone: str = "nova") -> HostReport:
    return HostReport(
        service_host=host, nodename=host, compute_node_uuid=node(host), agent="agent", availability_zone=zone
    )
