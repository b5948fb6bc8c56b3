"""Test calls that one thread makes together in one message: each has its own answer, error and deadline."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest
from support.bus.counting_service import TOGETHER, CountingRig, Item, Listed, Slow, is_right, request_id

from moorage import context, errors
from moorage.batches import BatchItem
from moorage.bus.bus import Bus
from moorage.bus.rabbit import driver
from moorage.config import options


def made(rig: CountingRig, items: Sequence[Item]) -> Iterator[list[tuple[int, object]]]:
    """Make calls together; yield the numbers with their answers or errors as they come."""
    for portion in rig.client.call_many(items):
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


def test_each_call_that_a_thread_makes_together_with_others_has_its_own_answer_or_error_and_context(
    rig: CountingRig,
) -> None:
    rig.counters.may_go_on.set()
    for beginning in range(0, 3 * TOGETHER, TOGETHER):
        numbers = range(beginning, beginning + TOGETHER)
        answers = dict(pair for portion in made(rig, items_of(numbers)) for pair in portion)
        assert sorted(answers) == list(numbers)
        assert [number for number, answer in answers.items() if not is_right(number, answer)] == []
    assert rig.counters.done == dict.fromkeys(range(3 * TOGETHER), 1)
    assert {number: seen[0] for number, seen in rig.counters.contexts.items()} == {
        number: request_id(number) for number in rig.counters.done
    }


def test_calls_that_a_thread_makes_together_are_sent_in_one_message(on_rabbit: CountingRig, sizes: list[int]) -> None:
    on_rabbit.counters.may_go_on.set()
    for portion in made(on_rabbit, items_of(range(TOGETHER))):
        assert all(is_right(number, answer) for number, answer in portion)
    assert sizes == [TOGETHER]


def test_a_server_that_gets_no_further_threads_carries_out_each_call_once(
    on_rabbit: CountingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_rabbit.counters.may_go_on.set()
    assert is_right(1, on_rabbit.call(1))
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        is_of_server = threading.current_thread().name.startswith("ThreadPoolExecutor")
        # An answer may need a further connection, which has a thread for its heartbeats.
        if is_of_server and not thread.name.startswith("Rabbit-heartbeat"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    numbers = range(10, 10 + TOGETHER)
    answers = dict(pair for portion in made(on_rabbit, items_of(numbers)) for pair in portion)
    assert [number for number in numbers if not is_right(number, answers[number])] == []
    # After them all: what is carried out a second time is carried out before this.
    assert all(is_right(number, on_rabbit.call(number)) for number in range(100, 110))
    assert set(on_rabbit.counters.done.values()) == {1}


def test_a_slow_call_delays_none_of_the_calls_that_are_made_together_with_it(on_rabbit: CountingRig) -> None:
    answers = made(on_rabbit, items_of(range(1, 10)))
    first = [number for number, _answer in next(answers)]
    assert first == [1, 2, 3, 4, 6, 7, 8, 9]
    on_rabbit.counters.may_go_on.set()
    assert [number for portion in answers for number, _answer in portion] == [5]


def test_calls_past_their_deadline_that_are_made_together_are_refused_and_never_carried_out(rig: CountingRig) -> None:
    late = items_of(range(1, 4), deadline=time.monotonic() - 1)
    answers = dict(pair for portion in made(rig, [*late, *items_of(range(4, 5))]) for pair in portion)
    assert [type(answers[number]) for number in (1, 2, 3)] == [errors.DeadlineExceeded] * 3
    assert is_right(4, answers[4])
    assert rig.counters.done == {4: 1}


def test_unanswered_calls_that_are_made_together_end_each_at_its_own_deadline(on_rabbit: CountingRig) -> None:
    began = time.monotonic()
    items: list[Item] = [BatchItem(Slow(), context.Context(deadline=began + seconds)) for seconds in (4.0, 0.5)]
    later, soon = items
    ended = []
    for portion in on_rabbit.client.call_many(items):
        ended += [(item, time.monotonic() - began) for item in portion]
    assert [item for item, _seconds in ended] == [soon, later]
    for item, _seconds in ended:
        with pytest.raises(errors.NoReply):
            item.outcome()
    assert 0.4 < ended[0][1] < 3.9 < ended[1][1] < 20


def test_a_server_of_a_former_release_gets_calls_that_are_made_together_one_by_one(
    on_rabbit: CountingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_rabbit.counters.may_go_on.set()
    monkeypatch.setattr(driver, "calls_of", mock.Mock(return_value=None))
    for beginning in (0, TOGETHER):
        numbers = range(beginning, beginning + TOGETHER)
        answers = dict(pair for portion in made(on_rabbit, items_of(numbers)) for pair in portion)
        assert sorted(answers) == list(numbers)
        assert [number for number, answer in answers.items() if not is_right(number, answer)] == []
    assert on_rabbit.counters.done == dict.fromkeys(range(2 * TOGETHER), 1)


def test_calls_that_are_made_together_while_the_broker_is_away_all_fail_with_that_error(
    on_rabbit: CountingRig, monkeypatch: pytest.MonkeyPatch
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


def test_calls_that_cannot_reach_their_broker_end_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"rabbit://u:p@127.0.0.1:{nobody.getsockname()[1]}/"
    bus = Bus(options.new({"DEFAULT": {"transport_url": url}}))
    items = items_of(range(TOGETHER))
    calling = threading.Thread(target=lambda: list(bus.client("t").call_many(items)), daemon=True)

    calling.start()
    calling.join(20.0)

    try:
        assert not calling.is_alive()
        assert {type(item.error) for item in items} == {errors.BusUnavailable}
    finally:
        bus.close()
