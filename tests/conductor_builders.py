"""Both conductors as whole services on an in-process bus, between peers that keep the real promises."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from oslo_config import cfg

from conductor.disowned import DisownedClaims
from conductor.schema import cell_disowned
from conductor.service import CellConductor, SuperConductor
from conductor.steps import Backoff
from moorage import context, errors, ids
from moorage.bus import Bus, BusServer, serves
from moorage.database import Database
from moorage.inspection import ClaimState
from moorage.messages import (
    AcceptClaim,
    AcceptInCell,
    AcknowledgeRequests,
    BuildFailedInCell,
    BuildFinished,
    BuildInstances,
    BuildOnHost,
    Claimed,
    DeleteAllocations,
    DeleteInstance,
    DestroyOnHost,
    Done,
    ListCells,
    ListClaims,
    Released,
    ReportHosts,
    ReportService,
    SelectDestinations,
    ShowInstance,
    SwapClaim,
)
from moorage.model import (
    AllocationRequest,
    Cell,
    Flavor,
    HostReport,
    Instance,
    ProviderAmounts,
    RequestSpec,
    Selection,
)
from moorage.wire import Message, Mutation, R

CELL_1 = Cell(uuid=ids.derived("test", "cell1"), name="cell1")
SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024))
QUICK = Backoff(first=0.01, longest=0.05)
#: Seconds that a service waits for another one: more than a busy machine takes, as few as tests of silence can bear.
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


@dataclass
class Held:
    root: str
    claim_id: str
    accepted_by: str | None = None


class FakePlacement:
    """Claims, acceptance, tombstones and stored answers, as the placement role promises them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.cells = [CELL_1]
        self.held: dict[str, Held] = {}
        #: By the attempt's id, the root provider that it is held on.
        self.residues: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.answers: dict[str, tuple[bytes, Any]] = {}
        self.full: set[str] = set()
        self.calls: list[Mutation[Any]] = []
        self.acknowledged: list[str] = []

    def once(self, message: Mutation[Any], work: Callable[[], Any]) -> Any:
        with self.lock:
            self.calls.append(message)
            if message.request_id in self.answers:
                digest, answer = self.answers[message.request_id]
                if digest != message.digest():
                    raise errors.RequestIdReused(request_id=message.request_id)
                return answer
            answer = work()
            self.answers[message.request_id] = message.digest(), answer
            return answer

    def claim(self, consumer: str, root: str) -> str:
        if consumer in self.deleted:
            raise errors.ConsumerDeleted(consumer_uuid=consumer)
        if consumer in self.held:
            raise errors.ConsumerGenerationConflict(consumer_uuid=consumer, named=None, found=1)
        self.held[consumer] = Held(root, ids.fresh())
        return self.held[consumer].claim_id

    def hosts_held(self) -> set[str]:
        return {held.root for held in self.held.values()} | set(self.residues.values())

    def residue_of(self, held: Held, leave: bool) -> str | None:
        """Leave a residue of what a host has accepted, if that is asked for."""
        if not leave or held.accepted_by is None:
            return None
        self.residues[held.accepted_by] = held.root
        return held.accepted_by

    def _standing(self, consumer: str, claim_id: str) -> Held:
        held = self.held.get(consumer)
        if held is None or held.claim_id != claim_id:
            raise errors.ClaimReleased(consumer_uuid=consumer, claim_id=claim_id)
        return held

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        return self.cells

    @serves(ListClaims)
    def list_claims(self, message: ListClaims) -> list[ClaimState]:
        held = [
            ClaimState(
                consumer_uuid=consumer,
                consumer_type="INSTANCE",
                generation=1,
                claim_id=held.claim_id,
                node=held.root,
                accepted_by=held.accepted_by,
                age=1.0,
            )
            for consumer, held in self.held.items()
        ]
        residues = [
            ClaimState(consumer_uuid=attempt_id, consumer_type="RESIDUE", generation=1, node=root, age=1.0)
            for attempt_id, root in self.residues.items()
        ]
        return [each for each in held + residues if each.consumer_uuid in message.consumer_uuids]

    @serves(AcknowledgeRequests)
    def acknowledge_requests(self, message: AcknowledgeRequests) -> Done:
        self.acknowledged.extend(message.request_ids)
        return Done()

    @serves(ReportService)
    def report_service(self, _message: ReportService) -> Done:
        return Done()

    @serves(DeleteAllocations)
    def delete_allocations(self, message: DeleteAllocations) -> Released:
        answer: Released = self.once(message, lambda: self.released(message))
        return answer

    def released(self, message: DeleteAllocations) -> Released:
        consumer = message.consumer_uuid
        if message.claim_id is not None:
            held = self._standing(consumer, message.claim_id)
            if message.unaccepted and held.accepted_by:
                raise errors.InvalidState(reason="the claim has been accepted")
        elif consumer not in self.held and not message.for_good:
            raise errors.ConsumerNotFound(name=consumer)
        gone = self.held.pop(consumer, None)
        self.residues.pop(consumer, None)
        if message.for_good:
            self.deleted.add(consumer)
        return Released(residue_uuid=None if gone is None else self.residue_of(gone, message.leave_residue))

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        def work() -> Claimed:
            if message.consumer_uuid in self.deleted:
                raise errors.ConsumerDeleted(consumer_uuid=message.consumer_uuid)
            held = self._standing(message.consumer_uuid, message.claim_id)
            if held.accepted_by and not message.guest_gone and not message.leave_residue:
                raise errors.InvalidState(reason="the claim has been accepted")
            if message.root_provider_uuid in self.full:
                raise errors.CapacityExceeded(
                    provider_uuid=message.root_provider_uuid, resource_class="VCPU", count=1, refusals=[]
                )
            self.held[message.consumer_uuid] = Held(message.root_provider_uuid, ids.fresh())
            return Claimed(
                claim_id=self.held[message.consumer_uuid].claim_id,
                consumer_generation=2,
                residue_uuid=self.residue_of(held, message.leave_residue),
            )

        answer: Claimed = self.once(message, work)
        return answer

    @serves(AcceptClaim)
    def accept_claim(self, message: AcceptClaim) -> Done:
        with self.lock:
            held = self._standing(message.consumer_uuid, message.claim_id)
            if held.accepted_by not in (None, message.attempt_id):
                raise errors.ClaimReleased(consumer_uuid=message.consumer_uuid, claim_id=message.claim_id)
            held.accepted_by = message.attempt_id
            return Done()


class FakeScheduler:
    """Gives every instance the same hosts, the first of them claimed; what it has answered it answers again."""

    def __init__(self, placement: FakePlacement) -> None:
        self.placement = placement
        self.hosts = ["a", "b", "c"]
        self.asked: list[SelectDestinations] = []
        self.origins: list[str | None] = []
        self.reports: list[ReportHosts] = []

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        self.asked.append(message)
        self.origins.append(context.current().request_id)
        answer: list[list[Selection]] = self.placement.once(message, lambda: self.decide(message))
        return [self.replayed(uuid, list(one)) for uuid, one in zip(message.instance_uuids, answer, strict=True)]

    def decide(self, message: SelectDestinations) -> list[list[Selection]]:
        for uuid in message.instance_uuids:
            if uuid in self.placement.deleted:
                raise errors.ConsumerDeleted(consumer_uuid=uuid)
        claimed = [self.placement.claim(uuid, node(self.hosts[0])) for uuid in message.instance_uuids]
        alternates = [selection(host) for host in self.hosts[1 : 1 + message.num_alternates]]
        return [[selection(self.hosts[0], claim_id), *alternates] for claim_id in claimed]

    def replayed(self, uuid: str, selections: list[Selection]) -> list[Selection]:
        held = self.placement.held.get(uuid)
        if held is None or held.claim_id != selections[0].claim_id:
            selections[0] = Selection(
                **{name: getattr(selections[0], name) for name in Selection.__struct_fields__ if name != "released"},
                released=True,
            )
        return selections

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> Done:
        self.reports.append(message)
        return Done()


class LosesReplies(FakeScheduler):
    """Carries a request out and answers too late, so many times."""

    lost = 1

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        answer = super().select_destinations(message)
        if len(self.asked) <= self.lost:
            self.while_it_is_lost(message)
            time.sleep(CALL_TIMEOUT * 1.2)
        return answer

    def while_it_is_lost(self, message: SelectDestinations) -> None:
        """What happens between the claim and its repetition."""


class FakeAgent:
    """Takes builds, passes both gates, and reports; which hosts fail is chosen."""

    def __init__(self, bus: Bus) -> None:
        self.conductor = bus.client(f"conductor.{CELL_1.uuid}")
        self.threads = ThreadPoolExecutor(4)
        self.guests: dict[str, BuildOnHost] = {}
        self.failing: set[str] = set()
        #: Hosts whose spawns do not end before `released` is set.
        self.hanging: set[str] = set()
        self.released = threading.Event()
        #: Hosts that answer to no order to destroy.
        self.deaf: set[str] = set()
        self.taken: list[BuildOnHost] = []
        self.destroyed: list[str] = []
        self.hold = threading.Event()
        self.hold.set()

    def build(self, message: BuildOnHost) -> None:
        """Do what a host does with an attempt, up to its report."""
        self.accept(message)
        if message.host in self.failing:
            self.report_failed(message, f"{message.host} is broken")
            return
        self.guests[message.attempt_id] = message
        if message.host in self.hanging:
            assert self.released.wait(60)
        assert self.hold.wait(60)
        self.finish(message)

    def accept(self, message: BuildOnHost) -> None:
        self.conductor.call(
            AcceptInCell(
                request_id=ids.fresh(),
                instance_uuid=message.instance_uuid,
                claim_id=message.claim_id,
                attempt_id=message.attempt_id,
                host=message.host,
            )
        )

    def finish(self, message: BuildOnHost) -> None:
        try:
            self.conductor.call(
                BuildFinished(
                    request_id=ids.fresh(),
                    instance_uuid=message.instance_uuid,
                    attempt_id=message.attempt_id,
                    claim_id=message.claim_id,
                )
            )
        except errors.ClaimReleased:
            self.guests.pop(message.attempt_id, None)

    def report_failed(self, message: BuildOnHost, reason: str) -> None:
        self.conductor.call(
            BuildFailedInCell(
                request_id=ids.fresh(),
                instance_uuid=message.instance_uuid,
                attempt_id=message.attempt_id,
                claim_id=message.claim_id,
                reason=reason,
            )
        )

    @serves(BuildOnHost)
    def build_instance(self, message: BuildOnHost) -> Done:
        known = {taken.attempt_id for taken in self.taken}
        self.taken.append(message)
        if message.attempt_id not in known and message.attempt_id not in self.destroyed:
            self.threads.submit(self.build, message)
        return Done()

    @serves(DestroyOnHost)
    def destroy_instance(self, message: DestroyOnHost) -> Done:
        if message.host in self.deaf:
            raise errors.RequestInProgress(request_id=message.request_id)
        self.destroyed.append(message.attempt_id)
        self.guests.pop(message.attempt_id, None)
        return Done()


@dataclass
class World:
    conf: cfg.ConfigOpts
    bus: Bus
    placement: FakePlacement
    scheduler: FakeScheduler
    agent: FakeAgent
    servers: dict[str, BusServer] = field(default_factory=dict)
    services: dict[str, Any] = field(default_factory=dict)

    @property
    def compute(self) -> str:
        return f"compute.{CELL_1.uuid}"

    def serve(self, topic: str, service: object, server: str = "fake") -> None:
        if topic in self.servers:
            self.servers.pop(topic).stop()
        self.servers[topic] = self.bus.server(topic, server, [service], 4)
        self.servers[topic].start()

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
        """Stop a service and leave its operations as its death would: taken, for ``lease`` seconds more."""
        self.stop(name)
        with Database(self.conf.database.connection, "test").engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE {table}_operations SET lease_owner = 'dead/1', "
                f"lease_until = (julianday('now') - 2440587.5) * 86400.0 + {lease} WHERE due_at IS NOT NULL"
            )

    def lose_leases(self, table: str) -> None:
        """Let all leases have run out, as they do while their conductor is stopped."""
        with Database(self.conf.database.connection, "test").engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE {table}_operations SET lease_owner = 'stopped/1', lease_until = 1 WHERE due_at IS NOT NULL"
            )

    def disown(self, cell_uuid: str, claim_id: str, consumer_uuid: str) -> None:
        """Put a claim on a cell's record of those that are not wanted."""
        disowned = DisownedClaims(cell_disowned, {"cell_uuid": cell_uuid})
        Database(self.conf.database.connection, "test").write(
            lambda connection: disowned.add(connection, claim_id, consumer_uuid)
        )

    def waiting(self) -> int:
        """Return how many builds of the cell wait for their hosts' reports."""
        return self.pending("cell", "AND step = 'wait'")

    def pending(self, table: str, further: str = "") -> int:
        with Database(self.conf.database.connection, "test").engine.connect() as connection:
            found: int = connection.exec_driver_sql(
                f"SELECT COUNT(*) FROM {table}_operations WHERE state = 'pending' {further}"
            ).scalar_one()
            return found


def wait_until(true: Callable[[], bool], what: Callable[[], object] = lambda: "it", seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


def report(host: str, zone: str = "nova") -> HostReport:
    return HostReport(
        service_host=host, nodename=host, compute_node_uuid=node(host), agent="agent", availability_zone=zone
    )
