"""Test that calls of one process to one topic share messages, and that each has its own answer, error and deadline."""

import random
import time
from collections import Counter
from unittest import mock

import pytest
from support.bus.counting_service import TOGETHER, CountingRig, Grouped, Listed, Slow, is_right, request_id
from support.processes.stopwatch import Stopwatch

from harness.waiting import wait_until
from moorage import errors
from moorage.bus.rabbit import driver

# Imported after the bus, which selects the threading backend.
import oslo_messaging

# --- Concurrent calls -----------------------------------------------------------------------------------------------


def test_each_of_many_concurrent_calls_has_its_own_answer_or_error_and_is_carried_out_once(rig: CountingRig) -> None:
    for beginning in range(0, 6 * TOGETHER, TOGETHER):
        answers = rig.call_at_once(range(beginning, beginning + TOGETHER))
        assert [number for number, answer in answers.items() if not is_right(number, answer)] == []
    assert set(rig.counters.done.values()) == {1}
    assert {number: seen[0] for number, seen in rig.counters.contexts.items()} == {
        number: request_id(number) for number in rig.counters.done
    }


def test_a_slow_call_delays_no_other_call(rig: CountingRig) -> None:
    slow = rig.pool.submit(rig.client.call, Slow())
    assert rig.counters.entered.wait(10)

    watch = Stopwatch()
    answers = rig.call_at_once(range(1, TOGETHER))

    assert watch.seconds < 10
    assert all(is_right(number, answer) for number, answer in answers.items())
    assert not slow.done()
    rig.counters.may_go_on.set()
    assert slow.result(10) == "at last"


def test_each_call_has_its_own_deadline(rig: CountingRig) -> None:
    slow = rig.pool.submit(rig.client.call, Slow())
    assert rig.counters.entered.wait(10)

    times = dict.fromkeys(range(1, TOGETHER), 0.0) | {
        number: random.choice([10.0, 30.0, 300.0]) for number in range(TOGETHER)
    }
    list(rig.pool.map(rig.call, times, times.values()))

    for number, seconds in times.items():
        _request, left = rig.counters.contexts[number]
        assert left is not None
        assert seconds * 0.3 < left <= seconds
    rig.counters.may_go_on.set()
    slow.result(10)


def test_while_all_threads_of_a_server_hang_calls_end_at_their_deadlines_and_later_calls_are_answered(
    rig: CountingRig,
) -> None:
    slow = [rig.pool.submit(rig.client.call, Slow()) for _ in range(8)]
    wait_until(lambda: rig.counters.slow_calls == 8)

    answers = list(rig.pool.map(rig.call, range(8), [1.0] * 8))

    assert [type(answer) for answer in answers] == [errors.NoReply] * 8
    rig.counters.may_go_on.set()
    assert {one.result(20) for one in slow} == {"at last"}
    assert is_right(100, rig.call(100))
    # Calls past their deadlines were not carried out later.
    assert rig.counters.done == {100: 1}


# --- Calls that arrive in one message and are handled by one thread ---------------------------------------------------


@pytest.mark.parametrize("kind", [Listed, Grouped])
def test_calls_of_one_message_are_handled_by_one_thread_and_each_has_its_own_answer_and_context(
    on_rabbit: CountingRig, kind: type[Listed]
) -> None:
    on_rabbit.counters.may_go_on.set()
    for beginning in range(1, 5 * TOGETHER, TOGETHER):
        made = on_rabbit.begin_calls(range(beginning, beginning + TOGETHER), kind)
        assert all(is_right(number, future.result(20)) for number, future in made.items())

    counters = on_rabbit.counters
    assert counters.done == Counter(range(1, 5 * TOGETHER + 1))
    assert max(map(len, counters.lists)) > 2
    for number, (seen, seconds) in counters.contexts.items():
        assert seen == request_id(number)
        assert seconds is not None
        assert 0 < seconds <= 20


@pytest.mark.parametrize("kind", [Listed, Grouped])
def test_a_slow_call_of_a_message_delays_no_other_call_and_is_answered_in_the_end(
    on_rabbit: CountingRig, kind: type[Listed]
) -> None:
    made = on_rabbit.begin_calls(range(1, TOGETHER + 1), kind)
    for number in made:
        if number % 5:
            assert is_right(number, made[number].result(20))
    long = [number for each in on_rabbit.counters.lists for number in each if number % 5 == 0]
    assert long
    assert not any(made[number].done() for number in long)
    on_rabbit.counters.may_go_on.set()
    assert all(is_right(number, made[number].result(20)) for number in long)
    assert on_rabbit.counters.done == Counter(range(1, TOGETHER + 1))


@pytest.mark.parametrize("kind", [Listed, Grouped])
def test_an_error_of_a_handler_of_many_is_the_error_of_each_call_of_that_message(
    on_rabbit: CountingRig, kind: type[Listed]
) -> None:
    on_rabbit.counters.may_go_on.set()
    on_rabbit.counters.list_fails = True
    made = on_rabbit.begin_calls(range(1, TOGETHER + 1), kind)
    listed = [number for number, future in made.items() if isinstance(future.result(20), errors.StoreUnavailable)]
    assert sorted(listed) == sorted(number for each in on_rabbit.counters.lists for number in each)
    assert listed
    assert all(is_right(number, made[number].result()) for number in made if number not in listed)


# --- On the wire ------------------------------------------------------------------------------------------------------


def test_calls_that_are_made_while_another_is_under_way_share_messages(
    on_rabbit: CountingRig, sizes: list[int]
) -> None:
    for beginning in range(0, 10 * TOGETHER, TOGETHER):
        on_rabbit.call_at_once(range(beginning, beginning + TOGETHER))

    assert sum(sizes) == 10 * TOGETHER
    assert len(sizes) < sum(sizes) / 2


def test_a_single_call_is_an_ordinary_message_of_the_library(on_rabbit: CountingRig, sizes: list[int]) -> None:
    for number in range(5):
        assert is_right(number, on_rabbit.call(number))
    assert sizes == [1] * 5


def test_a_server_of_a_former_release_gets_concurrent_calls_one_by_one_and_carries_out_each_once(
    on_rabbit: CountingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It knows no batches: its dispatcher refuses the method.
    refused = mock.Mock(return_value=None)
    monkeypatch.setattr(driver, "calls_of", refused)

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
    on_rabbit: CountingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = driver.RabbitListener.__call__

    def twice(listener: driver.RabbitListener, message: dict[str, object]) -> None:
        again = type(message)(message._raw_message)  # type: ignore[attr-defined]
        again.acknowledge = lambda: None  # type: ignore[attr-defined]
        real(listener, message)
        if again.get("method") == "batch":
            real(listener, again)

    monkeypatch.setattr(driver.RabbitListener, "__call__", twice)
    answers = on_rabbit.call_at_once(range(TOGETHER))
    assert all(is_right(number, answer) for number, answer in answers.items())
    assert set(on_rabbit.counters.done.values()) == {1}


@pytest.mark.parametrize("calls", [None, "text", [], ["text", 7, None], [{}], [{"method": "number"}], {"a": 1}])
def test_a_malformed_batch_does_not_affect_other_calls(on_rabbit: CountingRig, calls: object) -> None:
    client = on_rabbit.buses[1].library_client(oslo_messaging.Target(topic=on_rabbit.topic, namespace="moorage.bus"))
    client.prepare(version="1.1").cast({}, "batch", calls=calls)
    assert is_right(1, on_rabbit.call(1))


@pytest.mark.parametrize("version", ["x", "1", None])
def test_a_call_with_a_malformed_version_does_not_affect_the_others_of_its_batch(
    on_rabbit: CountingRig, version: str | None
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
