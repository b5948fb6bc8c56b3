"""Test that claims of concurrent decisions share a transaction, and that each request gets its own answer."""

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from sqlalchemy import event, exc, func, select
from support.scheduler.builders import funnel
from support.scheduler.builders import select as asked
from support.scheduler.rig import OneScheduler, Rig, node_uuid

from moorage import context, errors
from moorage.batches import BatchItem
from moorage.ids import derived
from moorage.messages import SelectDestinations
from moorage.model import RequestSpec, Selection, ServerGroup
from moorage.plugin import Filter, Host
from placement_store.schema import allocations, consumers, requests, resource_providers
from scheduler.decide.environment import DecisionPolicy
from scheduler.decide.plugin_failures import PluginFailures
from scheduler.plugins.watch import PluginWatchdog

Answers = list[list[Selection]]
Request = BatchItem[SelectDestinations, Answers]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@contextmanager
def held(rig: Rig, pool: ThreadPoolExecutor) -> Iterator[None]:
    """Hold the rows of all providers, so that every claim waits, until exit."""
    is_held, gate = threading.Event(), threading.Event()

    def hold() -> None:
        table = resource_providers

        def work(connection: object) -> None:
            connection.execute(table.update().values(updated_at=table.c.updated_at))  # type: ignore[attr-defined]
            is_held.set()
            assert gate.wait(30)

        rig.database.write(work)

    holding = pool.submit(hold)
    assert is_held.wait(10)
    try:
        yield
    finally:
        gate.set()
        holding.result(30)


def wait_for(true: Callable[[], bool], seconds: float = 10.0, *, surely: bool = True) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            assert not surely
            return
        time.sleep(0.002)


def at_once(
    rig: Rig,
    scheduler: OneScheduler,
    pool: ThreadPoolExecutor,
    messages: Sequence[SelectDestinations],
    *,
    planned: bool = True,
) -> list[Future[Answers]]:
    """Have one request wait for the store and the others, which are planned meanwhile, wait for the first one.

    :param planned: whether each request finds a host if it is decided alone.
    """
    batches = scheduler.endpoint._shared._batches
    with held(rig, pool):
        first = pool.submit(scheduler.select, messages[0])
        wait_for(lambda: batches._is_under_way)
        others = [pool.submit(scheduler.select, message) for message in messages[1:]]
        # Do not wait for a refusal: it may need the locked rows.
        wait_for(lambda: len(batches._waiting) == len(others), 10 if planned else 0.3, surely=planned)
    return [first, *others]


def outcome(request: Future[Answers] | Request) -> str:
    try:
        request.outcome() if isinstance(request, BatchItem) else request.result(30)
    except errors.MoorageError as refusal:
        return type(refusal).__name__
    return "claimed"


@contextmanager
def counted(scheduler: OneScheduler) -> Iterator[list[str]]:
    """Note the statements by which a scheduler writes."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("SELECT"):
            statements.append(" ".join(statement.split()[:3]))

    event.listen(scheduler.database.engine, "after_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(scheduler.database.engine, "after_cursor_execute", note)


def named(count: int, first: int = 0, **changes: Any) -> list[SelectDestinations]:
    """Return requests for one new instance each."""
    return [asked(f"r{number}", **changes) for number in range(first, first + count)]


def test_requests_that_wait_together_are_written_by_one_transaction(rig: Rig, pool: ThreadPoolExecutor) -> None:
    rig.add_hosts(range(4))
    scheduler = rig.scheduler()
    with counted(scheduler) as statements:
        answers = [future.result(30) for future in at_once(rig, scheduler, pool, named(8))]

    # One for the first, which was alone, and one for the seven others.
    assert Counter(statements)["INSERT INTO requests"] == 2
    assert Counter(statements)["INSERT INTO consumers"] == 2
    claim_ids = [selections[0].claim_id for [selections] in answers]
    query = select(consumers.c.uuid, consumers.c.claim_id)
    rows = rig.database.read(lambda connection: connection.execute(query).all())
    wanted = {message.instance_uuids[0]: id_ for message, id_ in zip(named(8), claim_ids, strict=True)}
    assert {row.uuid: row.claim_id for row in rows} == wanted
    # A repeated request gets its stored answer.
    assert scheduler.select(named(8)[5]) == answers[5]
    assert rig.scheduler().select(named(8)[0]) == answers[0]


def test_the_view_has_all_claims_of_a_shared_transaction(rig: Rig, pool: ThreadPoolExecutor) -> None:
    rig.add_hosts([1], vcpus=64, memory_mb=10**6)
    scheduler = rig.scheduler()
    for future in at_once(rig, scheduler, pool, named(6)):
        future.result(30)
    assert scheduler.used(1) == 12


def test_as_many_requests_as_fit_are_claimed_and_only_the_others_are_refused(
    rig: Rig, pool: ThreadPoolExecutor
) -> None:
    rig.add_hosts([1], vcpus=8)
    scheduler = rig.scheduler()
    outcomes = [outcome(future) for future in at_once(rig, scheduler, pool, named(7))]
    assert Counter(outcomes) == {"claimed": 4, "NoValidHost": 3}
    stored = select(func.count()).select_from(requests)
    assert rig.database.read(lambda connection: connection.scalars(stored).one()) >= 4


def test_the_refusal_of_one_request_does_not_affect_the_others(rig: Rig, pool: ThreadPoolExecutor) -> None:
    rig.add_hosts([1])
    scheduler = rig.scheduler()
    messages = named(5)
    # The instance of this request already has allocations.
    rig.take(1, 1, consumer=messages[2].instance_uuids[0])
    outcomes = [outcome(future) for future in at_once(rig, scheduler, pool, messages)]
    assert outcomes == ["claimed", "claimed", "ConsumerGenerationConflict", "claimed", "claimed"]


def test_a_request_that_is_sent_twice_at_once_has_one_answer(rig: Rig, pool: ThreadPoolExecutor) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    messages = [*named(4), named(4)[2]]
    answers = [future.result(30) for future in at_once(rig, scheduler, pool, messages)]
    assert answers[2] == answers[4]
    assert len({answer[0][0].claim_id for answer in answers}) == 4


def test_a_request_that_another_scheduler_answers_meanwhile_gets_that_answer(
    rig: Rig, pool: ThreadPoolExecutor
) -> None:
    rig.add_hosts(range(3))
    scheduler, other = rig.scheduler(), rig.scheduler()
    batches = scheduler.endpoint._shared._batches
    with held(rig, pool):
        first = pool.submit(scheduler.select, named(1)[0])
        wait_for(lambda: batches._is_under_way)
        elsewhere = pool.submit(other.select, named(4)[2])
        rest = [pool.submit(scheduler.select, message) for message in named(3, 1)]
        wait_for(lambda: len(batches._waiting) == 3)
    answers = [future.result(30) for future in (first, *rest)]
    assert elsewhere.result(30) == answers[2]
    assert len({answer[0][0].claim_id for answer in answers}) == 4


def select_within(scheduler: OneScheduler, message: SelectDestinations, seconds: float) -> Answers:
    with context.bound(deadline=time.monotonic() + seconds):
        return scheduler.select(message)


def test_a_request_past_its_deadline_claims_nothing_and_the_others_do(rig: Rig, pool: ThreadPoolExecutor) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    batches = scheduler.endpoint._shared._batches
    first, hurried, patient = named(3)
    with held(rig, pool):
        futures = [pool.submit(scheduler.select, first)]
        wait_for(lambda: batches._is_under_way)
        futures += [pool.submit(select_within, scheduler, hurried, 0.3), pool.submit(scheduler.select, patient)]
        assert outcome(futures[1]) == "DeadlineExceeded"
    assert [outcome(futures[0]), outcome(futures[2])] == ["claimed", "claimed"]
    holders = rig.database.read(lambda connection: set(connection.scalars(select(consumers.c.uuid))))
    assert holders == {*first.instance_uuids, *patient.instance_uuids}


def test_a_request_whose_deadline_passes_within_a_batch_claims_nothing_and_the_others_are_decided_alone(
    rig: Rig, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.decide.shared_decisions.PATIENCE", 60.0)
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    batches = scheduler.endpoint._shared._batches
    first, hurried, patient = named(3)
    with held(rig, pool):
        futures = [pool.submit(scheduler.select, first)]
        wait_for(lambda: batches._is_under_way)
        # These two wait. They form the next batch, whose transaction waits for the rows beyond the deadline of one.
        futures += [pool.submit(select_within, scheduler, *each) for each in ((hurried, 1.5), (patient, 20.0))]
        wait_for(lambda: len(batches._waiting) == 2)
        batches._waiting[0].turn.set()
        wait_for(lambda: not batches._waiting)
        assert outcome(futures[1]) == "DeadlineExceeded"
    assert [outcome(futures[0]), outcome(futures[2])] == ["claimed", "claimed"]
    holders = rig.database.read(lambda connection: set(connection.scalars(select(consumers.c.uuid))))
    assert holders == {*first.instance_uuids, *patient.instance_uuids}


def hosts_of(answers: Sequence[Answers]) -> Counter[str]:
    return Counter(selections[0].service_host for answer in answers for selections in answer)


def test_requests_that_are_decided_together_see_the_claims_of_each_other(rig: Rig, pool: ThreadPoolExecutor) -> None:
    rig.add_hosts(range(9))
    scheduler = rig.scheduler()
    # Each request gets the host with the most free memory. The first claim is not committed while they are planned.
    answers = [future.result(30) for future in at_once(rig, scheduler, pool, named(9))]
    assert set(hosts_of(answers[1:]).values()) == {1}


def test_concurrent_requests_for_members_of_a_group_keep_its_rule(rig: Rig, pool: ThreadPoolExecutor) -> None:
    rig.add_hosts(range(6))
    scheduler = rig.scheduler()
    group = ServerGroup(uuid=derived("tests", "group"), policy="anti-affinity")
    messages = [*named(2), *named(4, 2, server_group=group), *named(2, 6)]
    answers = [future.result(30) for future in at_once(rig, scheduler, pool, messages)]
    assert set(hosts_of(answers[2:6]).values()) == {1}


def test_a_claim_notices_that_a_provider_was_deleted_and_created_again(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    # This scheduler does not follow the feed, so its view has the ids of deleted providers.
    scheduler = rig.scheduler(max_age=3600.0)
    for number in (1, 2):
        rig.delete_provider(node_uuid(number))
    rig.add_hosts([1, 2])
    answers = [scheduler.select(message) for message in named(3)]
    assert hosts_of(answers).total() == 3
    assert stored_amounts(rig, {node_uuid(1), node_uuid(2)}).total() == 6


_ROUNDS = itertools.count()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rooms=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    wanted=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=2, max_size=9),
)
def test_concurrent_requests_get_answers_that_are_possible_in_some_order(
    rig: Rig, rooms: list[int], wanted: list[tuple[int, int]]
) -> None:
    """Give each example its own zone with new hosts; ``wanted`` has the count and the size of each request."""
    number = next(_ROUNDS)
    zone, hosts = f"zone {number}", [10 * number + each for each in range(len(rooms))]
    for host, vcpus in zip(hosts, rooms, strict=True):
        rig.add_hosts([host], vcpus=vcpus, availability_zone=zone)
    wanted = [(1, 1), *wanted]
    messages = [
        asked(rig.fresh(), count, vcpus=size, memory_mb=1, root_gb=0, availability_zone=zone) for count, size in wanted
    ]
    with ThreadPoolExecutor(16) as pool:
        futures = at_once(rig, one_scheduler(rig), pool, messages, planned=False)
        outcomes = [outcome(future) for future in futures]
    assert set(outcomes) <= {"claimed", "NoValidHost"}
    taken = Counter[str]()
    for future, (count, size), result in zip(futures, wanted, outcomes, strict=True):
        if result == "claimed":
            answer = future.result()
            assert len(answer) == count
            taken += Counter({node: size * n for node, n in Counter(s.compute_node_uuid for [s] in answer).items()})
    free = [room - taken[node_uuid(host)] for host, room in zip(hosts, rooms, strict=True)]
    assert min(free) >= 0
    for (count, size), result in zip(wanted, outcomes, strict=True):
        # Free room only decreases, so a refused request must not fit at the end.
        assert result == "claimed" or sum(room // size for room in free) < count
    assert taken == stored_amounts(rig, {node_uuid(host) for host in hosts})


def one_scheduler(rig: Rig) -> OneScheduler:
    """Return the scheduler of a rig, the same one in each round."""
    return rig._schedulers[1] if len(rig._schedulers) > 1 else rig.scheduler()


def stored_amounts(rig: Rig, nodes: set[str]) -> Counter[str]:
    """Return the VCPU allocated of each of these nodes."""
    table = resource_providers.join(allocations, allocations.c.resource_provider_id == resource_providers.c.id)
    vcpu = rig.names.id_of("VCPU")
    query = select(resource_providers.c.uuid, func.sum(allocations.c.used)).select_from(table)
    query = query.where(allocations.c.resource_class_id == vcpu).group_by(resource_providers.c.uuid)
    rows = rig.database.read(lambda connection: connection.execute(query).all())
    return Counter({uuid: int(used) for uuid, used in rows if uuid in nodes})


def decide_alone(call: Request, decide: Callable[[], Answers]) -> None:
    call.do(lambda _message: decide())


def test_requests_of_one_message_get_the_answers_and_errors_of_single_requests(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    first, again, wrong, moving = named(4)
    twice = structs.replace(wrong, instance_uuids=wrong.instance_uuids * 2)
    explained = structs.replace(moving, explain=True)
    too_large = asked(derived("too large"), vcpus=1_000_000)
    repeated = structs.replace(first, request_id=derived("another id"))

    calls = [Request(message) for message in (first, again, first, twice, explained, too_large, repeated)]
    alone = scheduler.endpoint.select_many(calls)
    for call, decide in zip(calls, alone, strict=True):
        if decide is not None:
            decide_alone(call, decide)

    def seen(call: Request) -> str:
        try:
            return f"claimed {len(call.outcome())}"
        except errors.MoorageError as refusal:
            return type(refusal).__name__

    assert list(map(seen, calls)) == [
        "claimed 1",
        "claimed 1",
        "claimed 1",
        "InvalidRequest",
        "claimed 1",
        "NoValidHost",
        "ConsumerGenerationConflict",
    ]
    # The same request in the same message has the same answer, and what was claimed is claimed once.
    assert calls[0].outcome() == calls[2].outcome()
    holders = rig.database.read(lambda connection: set(connection.scalars(select(consumers.c.uuid))))
    assert holders == {*first.instance_uuids, *again.instance_uuids, *moving.instance_uuids}
    # A request with an explanation is decided alone, and the first two are decided together.
    assert [decide is None for decide in (alone[0], alone[1], alone[4])] == [True, True, False]


class Recording(Filter):
    """A filter that records the size of each request that it checks, and passes every host."""

    def __init__(self) -> None:
        super().__init__({})
        self.checked: list[int] = []

    def check(self, request: RequestSpec) -> None:
        self.checked.append(request.flavor.vcpus)
        if request.flavor.vcpus == 5:
            raise errors.InvalidRequest(path="$", reason="no host has five")

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True


def test_equal_request_specs_of_one_message_are_checked_once_and_invalid_ones_one_by_one(rig: Rig) -> None:
    rig.add_hosts(range(3))
    recording = Recording()
    scheduler = rig.scheduler(plugins=funnel(recording=recording))
    messages = [*named(3), *named(2, 3, vcpus=4), *named(2, 5, vcpus=5), *named(1, 7)]

    calls = [Request(message) for message in messages]
    alone = scheduler.endpoint.select_many(calls)

    assert recording.checked == [2, 4, 5, 5]
    assert [decide is None for decide in alone] == [True] * 5 + [False] * 2 + [True]
    held = {2: 4, 4: 2}
    amounts = select(allocations.c.used).where(allocations.c.resource_class_id == 0)
    assert Counter(rig.database.read(lambda connection: connection.scalars(amounts).all())) == held


# --- A silent database ------------------------------------------------------------------------------------------------


@contextmanager
def silent(scheduler: OneScheduler, monkeypatch: pytest.MonkeyPatch, times: float = math.inf) -> Iterator[list[str]]:
    """Let the database be silent in transactions that claim, for longer than a batch has, and note these transactions.

    :param times: after so many transactions it answers again.
    """
    monkeypatch.setattr("scheduler.decide.shared_decisions.PATIENCE", 1.0)
    begun: list[str] = []

    def wait(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO requests") and len(begun) < times:
            begun.append(statement)
            time.sleep(1.1)
            raise exc.OperationalError(statement, None, Exception("timed out"), connection_invalidated=True)

    event.listen(scheduler.database.engine, "after_cursor_execute", wait)
    try:
        yield begun
    finally:
        event.remove(scheduler.database.engine, "after_cursor_execute", wait)


def decided(scheduler: OneScheduler, messages: Sequence[SelectDestinations]) -> list[str]:
    """Decide requests that came in one message; return their outcomes."""
    calls = [Request(message) for message in messages]
    for call, decide in zip(calls, scheduler.endpoint.select_many(calls), strict=True):
        if decide is not None:
            decide_alone(call, decide)
    return [outcome(call) for call in calls]


def test_requests_of_a_batch_do_not_wait_for_a_silent_database_one_after_another(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    with silent(scheduler, monkeypatch) as begun:
        assert decided(scheduler, named(8)) == ["StoreUnavailable"] * 8
    # That of the batch, and three tries of the first request alone.
    assert len(begun) == 4
    # Repeated with their ids, they are claimed once.
    assert decided(scheduler, named(8)) == ["claimed"] * 8
    assert decided(scheduler, named(8)) == ["claimed"] * 8


def test_requests_of_a_batch_are_decided_if_only_its_connection_was_silent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    with silent(scheduler, monkeypatch, times=1):
        assert decided(scheduler, named(8)) == ["claimed"] * 8


class Hanging(Filter):
    """A filter that hangs."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        threading.Event().wait(10)
        return True


def test_plugins_that_are_loaded_while_the_database_is_silent_do_not_decide_the_request_that_is_tried_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.add_hosts(range(3))
    scheduler, watch = rig.scheduler(), PluginWatchdog(0.3)
    plugins = funnel(hanging=Hanging({}))
    loaded = DecisionPolicy(plugins.filters, plugins.weighers, plugin_failures=PluginFailures(watch=watch))

    def load(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO requests"):
            scheduler.endpoint._shared._environment.policy = loaded

    event.listen(scheduler.database.engine, "after_cursor_execute", load)
    try:
        with silent(scheduler, monkeypatch, times=1):
            assert decided(scheduler, named(3)) == ["claimed", "SlowPlugin", "SlowPlugin"]
    finally:
        event.remove(scheduler.database.engine, "after_cursor_execute", load)
        watch.stop()
