"""Test that calls of one process to one topic share messages, and that each has its own answer, error and deadline."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from support.processes.stopwatch import Stopwatch

from harness.waiting import wait_until
from moorage import context, errors
from moorage.batches import BatchItem
from moorage.bus import bus, message_batches, rabbit
from moorage.config import options
from moorage.messages import wire
from moorage.model import RequestId

# isort: split
# Imported after the bus, which selects the threading backend.
import oslo_messaging

Item = BatchItem[wire.Message[Any], Any]
TOGETHER = 24


class Number(wire.Mutation[str], frozen=True, kw_only=True):
    topic = "counter"
    method = "number"
    may_be_batched = True
    number: int


class Slow(wire.Message[str], frozen=True, kw_only=True):
    topic = "counter"
    method = "slow"
    may_be_batched = True


class Listed(wire.Mutation[str], frozen=True, kw_only=True):
    topic = "counter"
    method = "listed"
    may_be_batched = True
    number: int


class Counters:
    """Answers a number by its text, refuses each third one, and answers slow calls when a test allows it."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self.contexts: dict[int, tuple[str | None, float | None]] = {}
        self.entered = threading.Event()
        self.lock = threading.Lock()
        self.slow_calls = 0
        self.may_go_on = threading.Event()
        #: The numbers that were handled together, for each message.
        self.lists: list[list[int]] = []
        self.list_fails = False

    @bus.serves(Listed)
    def listed(self, message: Listed) -> str:
        return self.number(Number(request_id=message.request_id, number=message.number))

    @bus.serves_many(Listed)
    def many_listed(self, calls: Sequence[BatchItem[Listed, str]]) -> list[Callable[[], str] | None]:
        """Answer numbers; each fifth one is answered when a test allows it."""
        self.lists.append([call.value.number for call in calls])
        if self.list_fails:
            raise errors.StoreUnavailable(schema="main", reason="it is away")
        alone: list[Callable[[], str] | None] = []
        for call in calls:
            if call.value.number % 5 == 0:
                alone.append(partial(self.listed_late, call.value))
            else:
                alone.append(None)
                call.do(self.listed)
        return alone

    def listed_late(self, message: Listed) -> str:
        assert self.may_go_on.wait(20)
        return self.listed(message)

    @bus.serves(Number)
    def number(self, message: Number) -> str:
        self.done[message.number] += 1
        self.contexts[message.number] = (context.current().request_id, context.seconds_left())
        if message.number % 3 == 0:
            raise errors.InstanceNotFound(name=str(message.number))
        return f"number {message.number}"

    @bus.serves(Slow)
    def slow(self, message: Slow) -> str:
        with self.lock:
            self.slow_calls += 1
        self.entered.set()
        assert self.may_go_on.wait(20)
        return "at last"


class Hall:
    """A broker, a server of one topic, and a client."""

    def __init__(self, url: str) -> None:
        self.conf = options.new({"DEFAULT": {"transport_url": url}, "rpc": {"call_timeout": 20}})
        self.buses = [bus.Bus(self.conf), bus.Bus(self.conf)]
        self.topic = f"counter-{uuid4()}"
        self.counters = Counters()
        self.serve("first")
        self.client = self.buses[1].client(self.topic)
        self.pool = ThreadPoolExecutor(TOGETHER + 1)

    def serve(self, name: str, threads: int = 8) -> None:
        self.buses.append(bus.Bus(self.conf))
        self.buses[-1].server(self.topic, name, [self.counters], threads).start()

    def call(self, number: int, timeout: float | None = None, kind: "type[Number | Listed]" = Number) -> object:
        """Return the answer or the error to a number."""
        try:
            return self.client.call(kind(request_id=request_id(number), number=number), timeout)
        except errors.MoorageError as fault:
            return fault

    def begin_calls(self, numbers: range, kind: "type[Number | Listed]" = Number) -> "dict[int, Future[object]]":
        """Call with these numbers at the same time, each in its own thread."""
        begin = threading.Barrier(len(numbers))

        def one(number: int) -> object:
            begin.wait(20)
            return self.call(number, kind=kind)

        return {number: self.pool.submit(one, number) for number in numbers}

    def call_at_once(self, numbers: range) -> dict[int, object]:
        return {number: call.result() for number, call in self.begin_calls(numbers).items()}

    def close(self) -> None:
        self.counters.may_go_on.set()
        self.pool.shutdown()
        for each in self.buses:
            each.close()


def request_id(number: int) -> RequestId:
    return f"00000000-0000-4000-8000-{number:012}"


def is_right(number: int, answer: object) -> bool:
    if number % 3 == 0:
        return (
            isinstance(answer, errors.InstanceNotFound)
            and answer.data == errors.InstanceNotFound(name=str(number)).data
        )
    return answer == f"number {number}"


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of calls in each message that a server has read."""
    found: list[int] = []

    def count(message: dict[str, object]) -> list[dict[str, object]] | None:
        calls = message_batches.calls_of(message)
        found.append(1 if calls is None else len(calls))
        return calls

    monkeypatch.setattr(rabbit, "calls_of", count)
    return found


@pytest.fixture
def hall(shared_bus_url: str) -> Iterator[Hall]:
    made = Hall(shared_bus_url)
    yield made
    made.close()


@pytest.fixture
def on_rabbit(shared_vhost: str) -> Iterator[Hall]:
    made = Hall(shared_vhost)
    yield made
    made.close()


# --- Concurrent calls -----------------------------------------------------------------------------------------------


def test_each_of_many_concurrent_calls_has_its_own_answer_or_error_and_is_carried_out_once(hall: Hall) -> None:
    for beginning in range(0, 6 * TOGETHER, TOGETHER):
        answers = hall.call_at_once(range(beginning, beginning + TOGETHER))
        assert [number for number, answer in answers.items() if not is_right(number, answer)] == []
    assert set(hall.counters.done.values()) == {1}
    assert {number: seen[0] for number, seen in hall.counters.contexts.items()} == {
        number: request_id(number) for number in hall.counters.done
    }


def test_a_slow_call_delays_no_other_call(hall: Hall) -> None:
    slow = hall.pool.submit(hall.client.call, Slow())
    assert hall.counters.entered.wait(10)

    watch = Stopwatch()
    answers = hall.call_at_once(range(1, TOGETHER))

    assert watch.seconds < 10
    assert all(is_right(number, answer) for number, answer in answers.items())
    assert not slow.done()
    hall.counters.may_go_on.set()
    assert slow.result(10) == "at last"


def test_each_call_has_its_own_deadline(hall: Hall) -> None:
    slow = hall.pool.submit(hall.client.call, Slow())
    assert hall.counters.entered.wait(10)

    times = dict.fromkeys(range(1, TOGETHER), 0.0) | {
        number: random.choice([3.0, 30.0, 300.0]) for number in range(TOGETHER)
    }
    list(hall.pool.map(hall.call, times, times.values()))

    for number, seconds in times.items():
        _request, left = hall.counters.contexts[number]
        assert left is not None
        assert seconds * 0.3 < left <= seconds
    hall.counters.may_go_on.set()
    slow.result(10)


def test_while_all_threads_of_a_server_hang_calls_end_at_their_deadlines_and_later_calls_are_answered(
    hall: Hall,
) -> None:
    slow = [hall.pool.submit(hall.client.call, Slow()) for _ in range(8)]
    wait_until(lambda: hall.counters.slow_calls == 8)

    answers = list(hall.pool.map(hall.call, range(8), [1.0] * 8))

    assert [type(answer) for answer in answers] == [errors.NoReply] * 8
    hall.counters.may_go_on.set()
    assert {one.result(20) for one in slow} == {"at last"}
    assert is_right(100, hall.call(100))
    # Calls past their deadlines were not carried out later.
    assert hall.counters.done == {100: 1}


# --- Calls that arrive in one message and are handled by one thread ---------------------------------------------------


def test_calls_of_one_message_are_handled_by_one_thread_and_each_has_its_own_answer_and_context(
    on_rabbit: Hall,
) -> None:
    on_rabbit.counters.may_go_on.set()
    for beginning in range(1, 5 * TOGETHER, TOGETHER):
        made = on_rabbit.begin_calls(range(beginning, beginning + TOGETHER), Listed)
        assert all(is_right(number, future.result(20)) for number, future in made.items())

    counters = on_rabbit.counters
    assert counters.done == Counter(range(1, 5 * TOGETHER + 1))
    assert max(map(len, counters.lists)) > 2
    for number, (seen, seconds) in counters.contexts.items():
        assert seen == request_id(number)
        assert seconds is not None
        assert 0 < seconds <= 20


def test_a_slow_call_of_a_message_delays_no_other_call_and_is_answered_in_the_end(on_rabbit: Hall) -> None:
    made = on_rabbit.begin_calls(range(1, TOGETHER + 1), Listed)
    for number in made:
        if number % 5:
            assert is_right(number, made[number].result(20))
    long = [number for each in on_rabbit.counters.lists for number in each if number % 5 == 0]
    assert long
    assert not any(made[number].done() for number in long)
    on_rabbit.counters.may_go_on.set()
    assert all(is_right(number, made[number].result(20)) for number in long)
    assert on_rabbit.counters.done == Counter(range(1, TOGETHER + 1))


def test_an_error_of_a_handler_of_many_is_the_error_of_each_call_of_that_message(on_rabbit: Hall) -> None:
    on_rabbit.counters.may_go_on.set()
    on_rabbit.counters.list_fails = True
    made = on_rabbit.begin_calls(range(1, TOGETHER + 1), Listed)
    listed = [number for number, future in made.items() if isinstance(future.result(20), errors.StoreUnavailable)]
    assert sorted(listed) == sorted(number for each in on_rabbit.counters.lists for number in each)
    assert listed
    assert all(is_right(number, made[number].result()) for number in made if number not in listed)


# --- Calls that one thread makes together -----------------------------------------------------------------------------


def made(hall: Hall, items: Sequence[Item]) -> Iterator[list[tuple[int, object]]]:
    """Make calls together; yield the numbers with their answers or errors as they come."""
    for portion in hall.client.call_many(items):
        found: list[tuple[int, object]] = []
        for item in portion:
            assert item.is_done
            assert isinstance(item.value, Listed)
            try:
                found.append((item.value.number, item.outcome()))
            except errors.MoorageError as fault:
                found.append((item.value.number, fault))
        yield found


def items_of(numbers: range, deadline: float | None = None) -> list[Item]:
    return [
        BatchItem(
            Listed(request_id=request_id(number), number=number),
            context.Context(request_id=request_id(number), deadline=deadline),
        )
        for number in numbers
    ]


def test_each_call_that_a_thread_makes_together_with_others_has_its_own_answer_or_error_and_context(hall: Hall) -> None:
    hall.counters.may_go_on.set()
    for beginning in range(0, 3 * TOGETHER, TOGETHER):
        numbers = range(beginning, beginning + TOGETHER)
        answers = dict(pair for portion in made(hall, items_of(numbers)) for pair in portion)
        assert sorted(answers) == list(numbers)
        assert [number for number, answer in answers.items() if not is_right(number, answer)] == []
    assert hall.counters.done == dict.fromkeys(range(3 * TOGETHER), 1)
    assert {number: seen[0] for number, seen in hall.counters.contexts.items()} == {
        number: request_id(number) for number in hall.counters.done
    }


def test_calls_that_a_thread_makes_together_are_sent_in_one_message(on_rabbit: Hall, sizes: list[int]) -> None:
    on_rabbit.counters.may_go_on.set()
    for portion in made(on_rabbit, items_of(range(TOGETHER))):
        assert all(is_right(number, answer) for number, answer in portion)
    assert sizes == [TOGETHER]


def test_a_server_that_gets_no_further_threads_carries_out_each_call_once(
    on_rabbit: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_rabbit.counters.may_go_on.set()
    assert is_right(1, on_rabbit.call(1))
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if threading.current_thread().name.startswith("ThreadPoolExecutor"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    numbers = range(10, 10 + TOGETHER)
    answers = dict(pair for portion in made(on_rabbit, items_of(numbers)) for pair in portion)
    assert [number for number in numbers if not is_right(number, answers[number])] == []
    # After them all: what is carried out a second time is carried out before this.
    assert all(is_right(number, on_rabbit.call(number)) for number in range(100, 110))
    assert set(on_rabbit.counters.done.values()) == {1}


def test_a_slow_call_delays_none_of_the_calls_that_are_made_together_with_it(on_rabbit: Hall) -> None:
    answers = made(on_rabbit, items_of(range(1, 10)))
    first = [number for number, _answer in next(answers)]
    assert first == [1, 2, 3, 4, 6, 7, 8, 9]
    on_rabbit.counters.may_go_on.set()
    assert [number for portion in answers for number, _answer in portion] == [5]


def test_calls_past_their_deadline_that_are_made_together_are_refused_and_never_carried_out(hall: Hall) -> None:
    late = items_of(range(1, 4), deadline=time.monotonic() - 1)
    answers = dict(pair for portion in made(hall, [*late, *items_of(range(4, 5))]) for pair in portion)
    assert [type(answers[number]) for number in (1, 2, 3)] == [errors.DeadlineExceeded] * 3
    assert is_right(4, answers[4])
    assert hall.counters.done == {4: 1}


def test_unanswered_calls_that_are_made_together_end_each_at_its_own_deadline(on_rabbit: Hall) -> None:
    began = time.monotonic()
    items: list[Item] = [BatchItem(Slow(), context.Context(deadline=began + seconds)) for seconds in (1.5, 0.5)]
    later, soon = items
    ended = []
    for portion in on_rabbit.client.call_many(items):
        ended += [(item, time.monotonic() - began) for item in portion]
    assert [item for item, _seconds in ended] == [soon, later]
    for item, _seconds in ended:
        with pytest.raises(errors.NoReply):
            item.outcome()
    assert 0.4 < ended[0][1] < 1.4 < ended[1][1] < 5


def test_a_server_of_a_former_release_gets_calls_that_are_made_together_one_by_one(
    on_rabbit: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_rabbit.counters.may_go_on.set()
    monkeypatch.setattr(rabbit, "calls_of", mock.Mock(return_value=None))
    for beginning in (0, TOGETHER):
        numbers = range(beginning, beginning + TOGETHER)
        answers = dict(pair for portion in made(on_rabbit, items_of(numbers)) for pair in portion)
        assert sorted(answers) == list(numbers)
        assert [number for number, answer in answers.items() if not is_right(number, answer)] == []
    assert on_rabbit.counters.done == dict.fromkeys(range(2 * TOGETHER), 1)


def test_calls_that_are_made_together_while_the_broker_is_away_all_fail_with_that_error(
    on_rabbit: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_arguments: object, **_named: object) -> None:
        raise ConnectionRefusedError("it is away")

    on_rabbit.counters.may_go_on.set()
    assert is_right(1, on_rabbit.call(1))
    driver = on_rabbit.buses[1].rabbit
    assert driver is not None
    monkeypatch.setattr(driver._calls, "_connect", away)
    answers = dict(pair for portion in made(on_rabbit, items_of(range(2, 6))) for pair in portion)
    assert [type(answers[number]) for number in range(2, 6)] == [errors.BusUnavailable] * 4


# --- On the wire ------------------------------------------------------------------------------------------------------


def test_calls_that_are_made_while_another_is_under_way_share_messages(on_rabbit: Hall, sizes: list[int]) -> None:
    for beginning in range(0, 10 * TOGETHER, TOGETHER):
        on_rabbit.call_at_once(range(beginning, beginning + TOGETHER))

    assert sum(sizes) == 10 * TOGETHER
    assert len(sizes) < sum(sizes) / 2


def test_a_single_call_is_an_ordinary_message_of_the_library(on_rabbit: Hall, sizes: list[int]) -> None:
    for number in range(5):
        assert is_right(number, on_rabbit.call(number))
    assert sizes == [1] * 5


def test_a_server_of_a_former_release_gets_concurrent_calls_one_by_one_and_carries_out_each_once(
    on_rabbit: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It knows no batches: its dispatcher refuses the method.
    refused = mock.Mock(return_value=None)
    monkeypatch.setattr(rabbit, "calls_of", refused)

    def batches() -> int:
        return sum(call.args[0].get("method") == "batch" for call in refused.call_args_list)

    batches_by_round = []
    for beginning in range(0, 4 * TOGETHER, TOGETHER):
        before = batches()
        answers = on_rabbit.call_at_once(range(beginning, beginning + TOGETHER))
        assert [number for number, answer in answers.items() if not is_right(number, answer)] == []
        batches_by_round.append(batches() - before)

    assert on_rabbit.counters.done == dict.fromkeys(range(4 * TOGETHER), 1)
    # After the first refusal, calls are sent one by one for some time.
    assert batches_by_round[0] > 0
    assert batches_by_round[1:] == [0, 0, 0]


def test_a_batch_that_the_broker_delivers_twice_is_carried_out_once(
    on_rabbit: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rabbit.RabbitListener.__call__

    def twice(listener: rabbit.RabbitListener, message: dict[str, object]) -> None:
        again = type(message)(message._raw_message)  # type: ignore[attr-defined]
        again.acknowledge = lambda: None  # type: ignore[attr-defined]
        real(listener, message)
        if again.get("method") == "batch":
            real(listener, again)

    monkeypatch.setattr(rabbit.RabbitListener, "__call__", twice)
    answers = on_rabbit.call_at_once(range(TOGETHER))
    assert all(is_right(number, answer) for number, answer in answers.items())
    assert set(on_rabbit.counters.done.values()) == {1}


@pytest.mark.parametrize("calls", [None, "text", [], ["text", 7, None], [{}], [{"method": "number"}], {"a": 1}])
def test_a_malformed_batch_does_not_affect_other_calls(on_rabbit: Hall, calls: object) -> None:
    client = on_rabbit.buses[1].library_client(oslo_messaging.Target(topic=on_rabbit.topic, namespace="moorage.bus"))
    client.prepare(version="1.1").cast({}, "batch", calls=calls)
    assert is_right(1, on_rabbit.call(1))


@pytest.mark.parametrize("version", ["x", "1", None])
def test_a_call_with_a_malformed_version_does_not_affect_the_others_of_its_batch(
    on_rabbit: Hall, version: str | None
) -> None:
    client = on_rabbit.buses[1].library_client(oslo_messaging.Target(topic=on_rabbit.topic, namespace="moorage.bus"))
    calls = [
        {"method": "listed", "version": said, "args": {"request_id": request_id(number), "number": number}}
        for number, said in ((1, version), (2, "1.0"))
    ]
    client.prepare(version="1.1").cast({}, "batch", calls=calls)
    assert is_right(4, on_rabbit.call(4))
    end = time.monotonic() + 10
    while not on_rabbit.counters.done[2]:
        assert time.monotonic() < end
        time.sleep(0.01)
