"""Both conductors as whole services on an in-process bus, between peers that keep the real promises."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from conductor.schema import CELL, CONDUCTOR
from conductor.service import CellConductor, SuperConductor
from conductor.steps import Backoff
from moorage import context, errors, ids, options
from moorage.bus import Bus, BusServer, serves
from moorage.database import Database
from moorage.messages import (
    AcceptClaim,
    AcceptInCell,
    BuildFailedInCell,
    BuildFinished,
    BuildInCell,
    BuildInstances,
    BuildOnHost,
    Claimed,
    DeleteAllocations,
    DeleteInCell,
    DeleteInstance,
    DestroyOnHost,
    Done,
    InstanceBuild,
    ListCells,
    ListInstances,
    ReportHosts,
    ReportHostsInCell,
    ReportProviders,
    ReportProviderTree,
    SelectDestinations,
    ShowInstance,
    SwapClaim,
)
from moorage.model import (
    AllocationRequest,
    Cell,
    Explanation,
    FilterCount,
    Flavor,
    HostReport,
    Instance,
    ProviderAmounts,
    ProviderReport,
    RequestSpec,
    Selection,
)
from moorage.shell import main
from moorage.wire import Mutation

CELL_1 = Cell(uuid=ids.derived("test", "cell1"), name="cell1")
SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024))
QUICK = Backoff(first=0.01, longest=0.05)


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
        self.deleted: set[str] = set()
        self.answers: dict[str, tuple[bytes, Any]] = {}
        self.full: set[str] = set()
        self.calls: list[Mutation[Any]] = []
        self.reported: list[ProviderReport] = []

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
        return {held.root for held in self.held.values()}

    def _standing(self, consumer: str, claim_id: str) -> Held:
        held = self.held.get(consumer)
        if held is None or held.claim_id != claim_id:
            raise errors.ClaimReleased(consumer_uuid=consumer, claim_id=claim_id)
        return held

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        return self.cells

    @serves(ReportProviders)
    def report_providers(self, message: ReportProviders) -> Done:
        self.reported.extend(message.providers)
        return Done()

    @serves(DeleteAllocations)
    def delete_allocations(self, message: DeleteAllocations) -> Done:
        def work() -> Done:
            if message.claim_id is not None:
                self._standing(message.consumer_uuid, message.claim_id)
            elif message.consumer_uuid not in self.held and not message.for_good:
                raise errors.ConsumerNotFound(name=message.consumer_uuid)
            self.held.pop(message.consumer_uuid, None)
            if message.for_good:
                self.deleted.add(message.consumer_uuid)
            return Done()

        answer: Done = self.once(message, work)
        return answer

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        def work() -> Claimed:
            if message.consumer_uuid in self.deleted:
                raise errors.ConsumerDeleted(consumer_uuid=message.consumer_uuid)
            held = self._standing(message.consumer_uuid, message.claim_id)
            if held.accepted_by and not message.guest_gone:
                raise errors.InvalidState(reason="the claim has been accepted")
            if message.root_provider_uuid in self.full:
                raise errors.CapacityExceeded(
                    provider_uuid=message.root_provider_uuid, resource_class="VCPU", count=1, refusals=[]
                )
            self.held[message.consumer_uuid] = Held(message.root_provider_uuid, ids.fresh())
            return Claimed(claim_id=self.held[message.consumer_uuid].claim_id, consumer_generation=2)

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


class FakeAgent:
    """Takes builds, passes both gates, and reports; which hosts fail is chosen."""

    def __init__(self, bus: Bus) -> None:
        self.conductor = bus.client(f"conductor.{CELL_1.uuid}")
        self.threads = ThreadPoolExecutor(4)
        self.guests: dict[str, BuildOnHost] = {}
        self.failing: set[str] = set()
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
        assert self.hold.wait(20)
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

    def serve(self, topic: str, service: object, server: str = "fake") -> None:
        if topic in self.servers:
            self.servers.pop(topic).stop()
        self.servers[topic] = self.bus.server(topic, server, [service], 4)
        self.servers[topic].start()

    def start(self, name: str) -> None:
        service = (
            SuperConductor(self.conf, "super", QUICK)
            if name == "super"
            else CellConductor(self.conf, "cell", "cell1", QUICK)
        )
        service.start()
        self.services[name] = service

    def stop(self, name: str) -> None:
        self.services.pop(name).stop()

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

    def pending(self, table: str) -> int:
        with Database(self.conf.database.connection, "test").engine.connect() as connection:
            found: int = connection.exec_driver_sql(
                f"SELECT COUNT(*) FROM {table}_operations WHERE state = 'pending'"
            ).scalar_one()
            return found


def wait_until(true: Callable[[], bool], what: Callable[[], object] = lambda: "it", seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    url = f"sqlite:///{tmp_path}/records.sqlite"
    database = Database(url, "test")
    for schema in (CONDUCTOR, CELL):
        schema.upgrade(database)
    database.close()
    conf = options.new(
        {
            "DEFAULT": {"transport_url": f"inproc://{ids.fresh()}/"},
            "database": {"connection": url},
            "rpc": {"call_timeout": 1.0},
            "conductor": {"report_interval": 0.2, "max_unanswered_retries": 2},
        }
    )
    bus = Bus(conf)
    placement = FakePlacement()
    world = World(conf, bus, placement, FakeScheduler(placement), FakeAgent(bus))
    world.serve("placement", placement)
    world.serve("scheduler", world.scheduler)
    world.serve(f"compute.{CELL_1.uuid}", world.agent, "agent")
    world.start("super")
    world.start("cell")
    yield world
    world.agent.hold.set()
    world.agent.threads.shutdown()
    for name in list(world.services):
        world.stop(name)
    bus.close()


# --- The straight line -----------------------------------------------------------------------------------------------


def test_an_instance_is_placed_handed_over_and_built_under_one_request_id(world: World) -> None:
    [uuid] = world.build(request_id="req-1")

    instance = world.becomes(uuid, "active")

    assert (instance.host, instance.cell, instance.request_id) == ("a", "cell1", "req-1")
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "active")]
    held = world.placement.held[uuid]
    assert (held.root, held.claim_id, held.accepted_by) == (
        node("a"),
        instance.claim_id,
        instance.attempts[0].attempt_id,
    )
    assert world.scheduler.origins == ["req-1"]
    assert world.scheduler.asked[0].num_alternates == 2
    assert world.scheduler.asked[0].owner == "conductor"
    assert world.agent.taken[0].resources == {"VCPU": 1, "MEMORY_MB": 1024}
    assert world.pending("conductor") == world.pending("cell") == 0


def test_instances_of_one_request_are_placed_in_one_decision_and_listed_in_their_order(world: World) -> None:
    uuids = world.build(*(ids.fresh() for _ in range(20)))

    for uuid in uuids:
        world.becomes(uuid, "active")

    assert len(world.scheduler.asked) == 1
    listed = world.bus.client("conductor").call(ListInstances())
    assert [instance.uuid for instance in listed] == uuids
    assert world.bus.client("conductor").call(ListInstances(project_id="another")) == []


def test_the_same_request_twice_builds_once_and_another_content_is_refused(world: World) -> None:
    uuid = ids.fresh()

    assert world.build(uuid, request_id="req-1") == world.build(uuid, request_id="req-1") == [uuid]
    with pytest.raises(errors.RequestIdReused):
        world.build(ids.fresh(), request_id="req-1")
    with pytest.raises(errors.AlreadyExists):
        world.build(uuid)
    with pytest.raises(errors.InvalidRequest):
        world.build(uuid, uuid)

    world.becomes(uuid, "active")
    assert len(world.agent.taken) == 1


# --- Asking ----------------------------------------------------------------------------------------------------------


def test_a_refusal_is_kept_with_its_explanation(world: World) -> None:
    found = Explanation(hosts=3, filters=(FilterCount(name="resources", hosts=3, removed=3),))

    def refuse(message: SelectDestinations) -> list[list[Selection]]:
        raise errors.NoValidHost(
            instances=1,
            summary=found.summary(),
            explanation={"hosts": 3, "filters": [{"name": "resources", "hosts": 3, "removed": 3}]},
        )

    world.scheduler.decide = refuse  # type: ignore[method-assign]
    [uuid] = world.build()

    instance = world.becomes(uuid, "error")

    assert instance.explanation == found
    assert "resources removed 3 of 3" in str(instance.reason)
    assert world.placement.calls == world.scheduler.asked, "nothing that cannot have been claimed is released"


def test_after_contention_the_scheduler_is_asked_again_with_a_new_id_a_bounded_number_of_times(world: World) -> None:
    decide = world.scheduler.decide

    def lose_twice(message: SelectDestinations) -> list[list[Selection]]:
        if len(world.scheduler.asked) < 3:
            raise errors.ClaimContention(tries=20)
        return decide(message)

    world.scheduler.decide = lose_twice  # type: ignore[method-assign]
    [uuid] = world.build()
    world.becomes(uuid, "active")
    assert len({asked.request_id for asked in world.scheduler.asked}) == 3

    def always_lose(message: SelectDestinations) -> list[list[Selection]]:
        raise errors.ClaimContention(tries=20)

    world.scheduler.asked.clear()
    world.conf.set_override("max_contention_retries", 1, group="conductor")
    world.scheduler.decide = always_lose  # type: ignore[method-assign]
    [uuid] = world.build()
    assert "Other claims were faster" in str(world.becomes(uuid, "error").reason)
    assert len(world.scheduler.asked) == 2


class LosesReplies(FakeScheduler):
    """Carries a request out and answers too late, so many times."""

    lost = 1

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        answer = super().select_destinations(message)
        if len(self.asked) <= self.lost:
            self.while_it_is_lost(message)
            time.sleep(1.2)
        return answer

    def while_it_is_lost(self, message: SelectDestinations) -> None:
        """What happens between the claim and its repetition."""


def test_an_unanswered_request_is_repeated_with_the_same_id_and_claims_once(world: World) -> None:
    world.scheduler = LosesReplies(world.placement)
    world.serve("scheduler", world.scheduler)

    [uuid] = world.build()

    world.becomes(uuid, "active")
    assert len(world.scheduler.asked) == 2
    assert len({asked.request_id for asked in world.scheduler.asked}) == 1


def test_when_the_scheduler_never_answers_the_instance_is_in_error_and_a_late_claim_is_impossible(world: World) -> None:
    world.scheduler = LosesReplies(world.placement)
    world.scheduler.lost = 99
    world.serve("scheduler", world.scheduler)

    [uuid] = world.build()

    assert "answered" in str(world.becomes(uuid, "error").reason)
    wait_until(lambda: uuid in world.placement.deleted)
    assert world.placement.held == {}
    assert len({asked.request_id for asked in world.scheduler.asked}) == 1
    wait_until(lambda: world.pending("conductor") == 0)


def test_a_member_released_meanwhile_is_asked_for_again_alone(world: World) -> None:
    class LosesOneClaim(LosesReplies):
        def while_it_is_lost(self, message: SelectDestinations) -> None:
            del self.placement.held[message.instance_uuids[1]]

    world.scheduler = LosesOneClaim(world.placement)
    world.serve("scheduler", world.scheduler)

    uuids = world.build(*(ids.fresh() for _ in range(3)))

    for uuid in uuids:
        world.becomes(uuid, "active")
    first, repeat, again = world.scheduler.asked
    assert first == repeat
    assert again.instance_uuids == (uuids[1],)
    assert again.request_id != first.request_id


def test_of_a_request_whose_reply_was_lost_a_member_deleted_meanwhile_drops_out_and_the_rest_stand(
    world: World,
) -> None:
    world.scheduler = LosesReplies(world.placement)
    world.serve("scheduler", world.scheduler)
    uuids = world.build(*(ids.fresh() for _ in range(5)))
    wait_until(lambda: len(world.placement.held) == 5)

    world.delete(uuids[2])

    world.becomes(uuids[2], "deleted")
    for uuid in uuids:
        if uuid != uuids[2]:
            world.becomes(uuid, "active")
    assert set(world.placement.held) == set(uuids) - {uuids[2]}
    assert {guest.instance_uuid for guest in world.agent.guests.values()} == set(world.placement.held)


def test_a_delete_that_overtakes_the_selection_leaves_the_others_of_the_request(world: World) -> None:
    world.servers.pop("scheduler").stop()
    uuids = world.build(ids.fresh(), ids.fresh())
    world.delete(uuids[0])
    world.becomes(uuids[0], "deleted")
    world.serve("scheduler", world.scheduler)

    world.becomes(uuids[1], "active")
    assert set(world.placement.held) == {uuids[1]}
    assert world.show(uuids[0]).state == "deleted"


# --- Handing over ----------------------------------------------------------------------------------------------------


def test_a_build_waits_for_its_cell_says_so_and_goes_on_when_the_cell_is_back(world: World) -> None:
    world.stop("cell")
    [uuid] = world.build()
    wait_until(lambda: "cell cell1 cannot be reached" in str(world.show(uuid).reason))
    assert world.show(uuid).state == "building"

    world.start("cell")

    instance = world.becomes(uuid, "active")
    assert instance.reason is None


def test_a_super_conductor_that_was_stopped_in_the_middle_goes_on_where_it_was(world: World) -> None:
    world.stop("cell")
    [uuid] = world.build()
    wait_until(lambda: uuid in world.placement.held)
    world.stop("super")
    world.start("super")
    world.start("cell")

    world.becomes(uuid, "active")
    assert len({asked.request_id for asked in world.scheduler.asked}) == 1


def test_an_instance_is_shown_as_far_as_it_is_known_while_its_cell_does_not_answer(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.stop("cell")

    instance = world.show(uuid)

    assert instance.state == "building"
    assert "cell1" in str(instance.reason)
    assert len(world.bus.client("conductor").call(ListInstances())) == 1


# --- Falling back ----------------------------------------------------------------------------------------------------


def test_two_hosts_fail_and_the_second_alternate_is_built_on_without_scheduler_and_super_conductor(
    world: World,
) -> None:
    world.agent.failing = {"a", "b"}
    accept = world.agent.accept
    begun, go_on = threading.Event(), threading.Event()

    def wait(message: BuildOnHost) -> None:
        accept(message)
        begun.set()
        assert go_on.wait(10)

    world.agent.accept = wait  # type: ignore[method-assign]
    [uuid] = world.build()
    assert begun.wait(10)
    wait_until(lambda: world.pending("conductor") == 0)
    world.stop("super")
    world.servers.pop("scheduler").stop()
    go_on.set()
    wait_until(lambda: node("c") in world.placement.hosts_held() and world.pending("cell") == 0)
    world.start("super")

    instance = world.becomes(uuid, "active")

    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [
        ("a", "failed"),
        ("b", "failed"),
        ("c", "active"),
    ]
    assert instance.attempts[0].reason == "a is broken"
    assert world.placement.hosts_held() == {node("c")}


def test_when_every_host_fails_the_error_names_each_attempt_and_nothing_is_held(world: World) -> None:
    world.agent.failing = {"a", "b", "c"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "error")

    for host in "abc":
        assert f"{host}: {host} is broken" in str(instance.reason)
    assert instance.host is None
    assert world.placement.held == {}
    assert world.placement.deleted == set()


def test_an_alternate_that_has_filled_up_is_skipped(world: World) -> None:
    world.agent.failing = {"a"}
    world.placement.full = {node("b")}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [attempt.state for attempt in instance.attempts] == ["failed", "skipped", "active"]
    assert "not enough room" in str(instance.attempts[1].reason)


def test_an_alternate_that_the_cell_has_missed_for_long_is_skipped(world: World) -> None:
    world.conf.set_override("host_down_after", 0.2, group="scheduler")
    world.stop("cell")
    world.start("cell")
    report = HostReport(service_host="b", nodename="b", compute_node_uuid=node("b"), agent="agent")
    world.bus.client(f"conductor.{CELL_1.uuid}").call(
        ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report,))
    )
    time.sleep(0.4)
    world.agent.failing = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [attempt.state for attempt in instance.attempts] == ["failed", "skipped", "active"]
    assert "not reported" in str(instance.attempts[1].reason)


def test_a_lost_answer_to_a_swap_is_asked_for_again_and_swaps_once(world: World) -> None:
    class LosesASwap(FakePlacement):
        slow = True

        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            answer = super().swap_claim(message)
            if self.slow:
                self.slow = False
                time.sleep(1.2)
            return answer

    world.placement = world.scheduler.placement = LosesASwap()
    world.serve("placement", world.placement)
    world.agent.failing = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [attempt.state for attempt in instance.attempts] == ["failed", "active"]
    assert world.placement.held[uuid].claim_id == instance.claim_id
    swaps = [call for call in world.placement.calls if isinstance(call, SwapClaim)]
    assert len(swaps) == 2
    assert swaps[0] == swaps[1]


def test_a_host_whose_agent_does_not_answer_is_left_for_the_next_one_while_it_has_not_accepted(world: World) -> None:
    class Deaf(FakeAgent):
        @serves(BuildOnHost)
        def build_instance(self, message: BuildOnHost) -> Done:
            if message.host == "a":
                self.taken.append(message)
                time.sleep(1.2)
                return Done()
            return super().build_instance(message)

    world.agent = Deaf(world.bus)
    world.serve(f"compute.{CELL_1.uuid}", world.agent, "agent")
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]
    assert instance.attempts[0].reason == "the agent did not answer"
    late = next(taken for taken in world.agent.taken if taken.host == "a")
    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(late)


def test_an_unanswered_order_that_was_taken_up_all_the_same_is_waited_for(world: World) -> None:
    class Mute(FakeAgent):
        @serves(BuildOnHost)
        def build_instance(self, message: BuildOnHost) -> Done:
            done = super().build_instance(message)
            time.sleep(1.2)
            return done

    world.agent = Mute(world.bus)
    world.agent.hold.clear()
    world.serve(f"compute.{CELL_1.uuid}", world.agent, "agent")
    [uuid] = world.build()
    wait_until(lambda: any(isinstance(call, SwapClaim) for call in world.placement.calls))
    world.agent.hold.set()

    instance = world.becomes(uuid, "active")

    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "active")]
    assert world.placement.hosts_held() == {node("a")}


def test_when_no_agent_answers_and_no_host_is_left_the_claim_is_fenced_and_released(world: World) -> None:
    world.scheduler.hosts = ["a"]
    world.servers.pop(f"compute.{CELL_1.uuid}").stop()
    [uuid] = world.build()

    instance = world.becomes(uuid, "error")

    assert "a: the agent did not answer" in str(instance.reason)
    assert world.placement.held == {}


# --- The gates -------------------------------------------------------------------------------------------------------


def test_an_old_attempt_passes_neither_gate_and_its_failure_has_no_effect(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    instance = world.becomes(uuid, "active")
    old = next(taken for taken in world.agent.taken if taken.host == "a")

    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(old)
    with pytest.raises(errors.ClaimReleased):
        world.bus.client(f"conductor.{CELL_1.uuid}").call(
            BuildFinished(
                request_id=ids.fresh(),
                instance_uuid=uuid,
                attempt_id=old.attempt_id,
                claim_id=old.claim_id,
            )
        )
    world.agent.report_failed(old, "once more")

    again = world.show(uuid)
    assert (again.state, again.host, again.attempts) == ("active", instance.host, instance.attempts)


def test_both_gates_may_be_passed_twice_by_the_same_attempt(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")

    world.agent.accept(world.agent.taken[0])
    world.agent.finish(world.agent.taken[0])

    assert world.show(uuid).state == "active"
    assert len(world.agent.guests) == 1


# --- Deleting --------------------------------------------------------------------------------------------------------


def test_a_deleted_instance_loses_its_guest_then_its_claim_and_is_listed_only_on_request(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")

    world.delete(uuid)
    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert world.agent.guests == {}
    assert world.placement.held == {}
    assert uuid in world.placement.deleted
    conductor = world.bus.client("conductor")
    assert conductor.call(ListInstances()) == []
    [instance] = conductor.call(ListInstances(deleted=True))
    assert (instance.state, instance.attempts[0].state) == ("deleted", "ended")
    world.delete(uuid)
    with pytest.raises(errors.InstanceNotFound):
        world.delete(ids.fresh())
    with pytest.raises(errors.InstanceNotFound):
        world.show(ids.fresh())


def test_an_instance_deleted_while_its_host_builds_it_leaves_nothing(world: World) -> None:
    world.agent.hold.clear()
    [uuid] = world.build()
    wait_until(lambda: len(world.agent.guests) == 1)

    world.delete(uuid)
    world.becomes(uuid, "deleted")
    world.agent.hold.set()
    world.agent.threads.shutdown()

    assert world.show(uuid).state == "deleted"
    assert world.agent.guests == {}
    assert world.placement.held == {}


def test_an_instance_deleted_while_its_claim_is_swapped_leaves_nothing(world: World) -> None:
    class SlowSwap(FakePlacement):
        swapping = threading.Event()

        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            answer = super().swap_claim(message)
            self.swapping.set()
            time.sleep(0.5)
            return answer

    placement = SlowSwap()
    world.placement = world.scheduler.placement = placement
    world.serve("placement", placement)
    world.agent.failing = {"a"}
    [uuid] = world.build()
    assert placement.swapping.wait(10)

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    time.sleep(0.6)
    assert world.show(uuid).state == "deleted"
    assert placement.held == {}
    assert len(world.agent.taken) == 1
    assert world.pending("cell") == 0


def test_a_delete_waits_for_a_host_that_does_not_answer_and_keeps_its_claim_until_then(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.servers.pop(f"compute.{CELL_1.uuid}").stop()

    world.delete(uuid)
    time.sleep(1.5)
    assert world.show(uuid).state == "deleting"
    assert uuid in world.placement.held
    world.serve(f"compute.{CELL_1.uuid}", world.agent, "agent")

    world.becomes(uuid, "deleted")
    assert world.placement.held == {}


def test_an_instance_in_error_can_be_deleted(world: World) -> None:
    world.agent.failing = {"a", "b", "c"}
    [uuid] = world.build()
    world.becomes(uuid, "error")

    world.delete(uuid)

    world.becomes(uuid, "deleted")


def test_an_order_to_build_that_comes_after_the_order_to_delete_builds_nothing(world: World) -> None:
    cell, uuid = world.bus.client(f"conductor.{CELL_1.uuid}"), ids.fresh()
    cell.call(DeleteInCell(request_id="delete", instance_uuid=uuid))
    build = InstanceBuild(instance_uuid=uuid, request_spec=SPEC, selections=(selection("a", ids.fresh()),))

    cell.call(BuildInCell(request_id="build", builds=(build,)))

    wait_until(lambda: uuid in world.placement.deleted)
    wait_until(lambda: world.pending("cell") == 0)
    assert world.agent.taken == []


def test_a_build_without_a_claim_is_refused_by_the_cell(world: World) -> None:
    build = InstanceBuild(instance_uuid=ids.fresh(), request_spec=SPEC, selections=(selection("a"),))

    with pytest.raises(errors.InvalidRequest):
        world.bus.client(f"conductor.{CELL_1.uuid}").call(BuildInCell(request_id="build", builds=(build,)))


# --- Hosts -----------------------------------------------------------------------------------------------------------


def report(host: str, zone: str = "nova") -> HostReport:
    return HostReport(
        service_host=host, nodename=host, compute_node_uuid=node(host), agent="agent", availability_zone=zone
    )


def test_descriptions_are_passed_on_and_again_when_they_change_and_who_is_alive_always(world: World) -> None:
    cell = world.bus.client(f"conductor.{CELL_1.uuid}")

    def told() -> list[tuple[str, str]]:
        return [(host.service_host, host.availability_zone) for sent in world.scheduler.reports for host in sent.hosts]

    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"), report("b"))))
    wait_until(lambda: told() == [("a", "nova"), ("b", "nova")])
    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"), report("b", "west"))))
    wait_until(lambda: told()[2:] == [("b", "west")])
    world.scheduler.reports.clear()
    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=("b",)))
    wait_until(lambda: any(sent.alive == ("b",) for sent in world.scheduler.reports))

    time.sleep(0.5)
    silent = len(world.scheduler.reports)
    time.sleep(0.5)
    assert len(world.scheduler.reports) == silent, "hosts that were not seen are not reported as alive"
    assert set(told()) <= {("b", "west")}, "only a description whose acknowledgement was under way is told once more"


def test_what_no_scheduler_has_heard_is_told_when_one_is_back(world: World) -> None:
    world.servers.pop("scheduler").stop()
    cell = world.bus.client(f"conductor.{CELL_1.uuid}")
    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"),)))
    time.sleep(0.5)

    world.serve("scheduler", world.scheduler)

    wait_until(lambda: any(sent.hosts for sent in world.scheduler.reports))


def test_provider_trees_are_passed_on_to_the_placement_role(world: World) -> None:
    provider = ProviderReport(uuid=node("a"), name="a")
    world.bus.client(f"conductor.{CELL_1.uuid}").call(
        ReportProviderTree(request_id=ids.fresh(), agent="agent", providers=(provider,))
    )

    assert world.placement.reported == [provider]


# --- Starting --------------------------------------------------------------------------------------------------------


def test_a_conductor_refuses_to_start_without_its_tables_or_its_cell(tmp_path: Path) -> None:
    conf = options.new(
        {
            "DEFAULT": {"transport_url": f"inproc://{ids.fresh()}/"},
            "database": {"connection": f"sqlite:///{tmp_path}/empty.sqlite"},
        }
    )
    with pytest.raises(errors.SchemaMismatch):
        SuperConductor(conf, "super").start()
    bus = Bus(conf)
    server = bus.server("placement", "fake", [FakePlacement()], 1)
    server.start()
    with pytest.raises(errors.SchemaMismatch):
        CellConductor(conf, "cell", "cell1").start()
    with pytest.raises(errors.CellNotFound):
        CellConductor(conf, "cell", "nowhere").start()
    bus.close()


# --- The commands -----------------------------------------------------------------------------------------------------


def moorage(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {world.conf.transport_url}\n")
    capsys.readouterr()
    status = main(["--config-file", str(file), *words, "-f", "json"])
    printed = capsys.readouterr().out
    return status, json.loads(printed) if printed else None


def test_instances_are_built_listed_shown_and_deleted_by_command(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.agent.failing = {"a"}
    size = ("--vcpus", "1", "--memory-mb", "1024", "--request-id", "r")

    status, rows = moorage(world, tmp_path, capsys, "instance", "build", *size, "--count", "2", "--wait")
    assert status == 0
    assert [(row["state"], row["host"], row["attempts"]) for row in rows] == [("active", "b", ["a", "b"])] * 2
    assert moorage(world, tmp_path, capsys, "instance", "build", *size, "--count", "2")[1] == rows
    assert moorage(world, tmp_path, capsys, "instance", "list") == (0, rows)
    uuid = rows[0]["uuid"]
    _status, shown = moorage(world, tmp_path, capsys, "instance", "show", uuid)
    assert shown["attempt_1"] == "a, failed: a is broken"
    assert shown["attempt_2"] == "b, active"
    status, rows = moorage(world, tmp_path, capsys, "instance", "delete", uuid, "--wait")
    assert (status, rows[0]["state"]) == (0, "deleted")
    assert len(moorage(world, tmp_path, capsys, "instance", "list")[1]) == 1


def test_a_command_that_waits_for_a_build_in_error_says_why_and_fails(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.agent.failing = {"a", "b", "c"}
    size = ("--vcpus", "1", "--memory-mb", "1024")

    status, rows = moorage(world, tmp_path, capsys, "instance", "build", *size, "--wait")

    assert status == 1
    assert rows[0]["state"] == "error"
    assert "c: c is broken" in rows[0]["reason"]
    assert moorage(world, tmp_path, capsys, "instance", "build", *size, "--count", "0")[0] == 1
    assert moorage(world, tmp_path, capsys, "instance", "build", "--vcpus", "0", "--memory-mb", "1")[0] == 1
    assert moorage(world, tmp_path, capsys, "instance", "show", ids.fresh())[0] == 1
