"""Test the choice of the calls that are sent in one message, and the time that replies are tried."""

import pytest

from moorage import ids
from moorage.bus.rabbit import driver, message_batches


def test_replies_to_a_missing_queue_are_given_up_after_a_fixed_time() -> None:
    now = [0.0]
    queues = driver.ReplyQueues(120.0, clock=lambda: now[0])
    while (missing := queues.missing("reply")) < 120.0:
        now[0] += 0.25
        assert now[0] < 200.0
    assert missing == now[0] == 120.0
    queues.found("reply")
    assert queues.missing("reply") == 0.0


def test_calls_with_very_different_timeouts_are_sent_in_different_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = message_batches._Outbox(clock=lambda: 0.0)
    calls = [
        message_batches.OutgoingCall({"_msg_id": ids.fresh(), "args": {}}, timeout)
        for timeout in (30, 1, 1.5, 40, 20, 600, 1.9)
    ]
    first = outbox.add(calls[0])
    assert first is not None
    assert [call.timeout for call in first.calls] == [30]
    assert [outbox.add(call) for call in calls[1:]] == [None] * 6

    batches = [outbox.take() for _ in range(4)]

    assert [None if batch is None else [call.timeout for call in batch.calls] for batch in batches] == [
        [1, 1.5, 1.9],
        [20, 40],
        [600],
        None,
    ]


def test_a_call_with_a_text_outside_utf8_is_sent_with_others() -> None:
    outbox = message_batches._Outbox(clock=lambda: 0.0)
    calls = [message_batches.OutgoingCall({"_msg_id": ids.fresh(), "text": text}, 30) for text in ("a", "\udce9", "b")]

    batches = [outbox.add(*calls[:1]), outbox.add(*calls[1:]), outbox.take()]

    assert [None if batch is None else batch.calls for batch in batches] == [calls[:1], None, calls[1:]]


def test_large_calls_are_sent_alone() -> None:
    outbox = message_batches._Outbox(clock=lambda: 0.0)
    calls = [message_batches.OutgoingCall({"_msg_id": ids.fresh(), "text": "x" * 600_000}, 30) for _ in range(4)]
    for call in calls:
        outbox.add(call)
    assert [len(batch.calls) for batch in iter(outbox.take, None) if batch] == [1, 1, 1]


def test_calls_wait_for_a_batch_as_long_as_most_answers_take() -> None:
    now = [0.0]
    outbox = message_batches._Outbox(clock=lambda: now[0])

    def answered_after(seconds: float) -> None:
        call = message_batches.OutgoingCall({"_msg_id": ids.fresh()}, 300)
        assert outbox.add(call) is not None
        now[0] += seconds
        assert outbox.remove(call, is_answered=True) is None

    for _ in range(50):
        answered_after(0.02)
    assert 0.03 < outbox.patience < 0.05

    answered_after(200.0)
    assert outbox.patience < 0.06

    for _ in range(100):
        answered_after(2.0)
    assert outbox.patience == 0.5


def test_calls_wait_until_all_answers_of_one_message_are_taken_and_then_travel_together() -> None:
    outbox = message_batches._Outbox(clock=lambda: 0.0)
    sent, following = ([message_batches.OutgoingCall({"_msg_id": ids.fresh()}, 30) for _ in range(3)] for _ in range(2))
    assert outbox.add(*sent) is not None
    for call in sent[:2]:
        call.expect_answer()

    # The first thread takes its answer and makes its next call before the second one runs. The third answer is not part
    # of the message, and nobody waits for it.
    assert outbox.remove(sent[0], is_answered=True) is None
    assert outbox.add(following[0]) is None
    assert outbox.remove(sent[1], is_answered=True) is following[0]
    assert outbox.add(following[1]) is None

    taken = outbox.take()
    assert taken is not None
    assert taken.calls == following[:2]


def test_after_an_answer_the_longest_waiting_thread_sends_all_waiting_calls_or_passes_its_turn_on() -> None:
    outbox = message_batches._Outbox(clock=lambda: 0.0)
    first, second, third, fourth = (message_batches.OutgoingCall({"_msg_id": ids.fresh()}, 30) for _ in range(4))
    sent = outbox.add(first)
    assert sent is not None
    assert [outbox.add(call) for call in (second, third)] == [None, None]

    assert outbox.remove(first, is_answered=True) is second
    # The second thread has the turn and gives up, so the third one gets the turn.
    assert outbox.add(fourth) is None
    assert outbox.remove(second, is_answered=False) is third

    taken = outbox.take()
    assert taken is not None
    assert taken.calls == [third, fourth]
    assert outbox.remove(third, is_answered=True) is None
