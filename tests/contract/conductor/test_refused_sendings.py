"""Test that a stored refusal answers all copies of one sending, and does not answer a repetition of the request."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Connection, func, select

from conductor.schema import conductor_requests
from moorage import context, errors, ids
from moorage.bus.calling import SENDINGS, outgoing, read_sending
from moorage.context import Sending
from moorage.db.database import Database
from moorage.messages import Done, ShelveInstance
from moorage.service.stored_requests import StoredRequests


class Room:
    """An order, and the state on which it depends."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.stored = StoredRequests(database, conductor_requests)
        self.message = ShelveInstance(request_id=ids.fresh(), instance_uuid=ids.fresh())
        #: The reason for which the order is not possible; None if it is possible.
        self.obstacle: Exception | None = None
        self.done = 0

    def order(self, sending: Sending | None) -> object:
        """Give the order by a sending, and return its answer or its error."""

        def work(_connection: Connection) -> Done:
            if self.obstacle is not None:
                raise self.obstacle
            self.done += 1
            return Done()

        return self.answer(sending, lambda: self.stored.once_or_refused(self.message, work).result)

    def refuse(self, sending: Sending | None, refusal: errors.MoorageError) -> object:
        """Refuse the order before a transaction begins."""
        return self.answer(sending, lambda: self.stored.store_refusal(self.message, refusal).result)

    @staticmethod
    def answer(sending: Sending | None, ask: Callable[[], object]) -> object:
        with context.adopted(replace(context.current(), sending=sending)):
            try:
                return ask()
            except errors.MoorageError as refusal:
                return type(refusal), refusal.data

    @property
    def rows(self) -> int:
        count = select(func.count()).select_from(conductor_requests)
        return self.database.read(lambda connection: connection.scalar(count)) or 0


@pytest.fixture
def room(database: Database) -> Room:
    return Room(database)


NOT_NOW = errors.InvalidState(reason="not now")
REFUSED = (errors.InvalidState, {"reason": "not now"})


@pytest.mark.parametrize("where", ["in the transaction", "before it"])
def test_a_copy_of_a_refused_sending_is_refused_although_the_order_is_possible_now(room: Room, where: str) -> None:
    sending, room.obstacle = SENDINGS.next(), NOT_NOW
    assert (room.order(sending) if where == "in the transaction" else room.refuse(sending, NOT_NOW)) == REFUSED
    room.obstacle = None
    assert [room.order(sending), room.order(sending)] == [REFUSED, REFUSED]
    assert room.done == 0


def test_a_repeated_request_is_carried_out_after_a_refusal_and_all_its_sendings_get_the_answer(room: Room) -> None:
    first, second, room.obstacle = SENDINGS.next(), SENDINGS.next(), NOT_NOW
    assert room.order(first) == REFUSED
    room.obstacle = None
    assert [room.order(second), room.order(second), room.order(first)] == [Done()] * 3
    assert room.done == 1


def test_an_earlier_sending_of_the_same_process_is_refused_with_the_one_that_was_answered(room: Room) -> None:
    late, answered, room.obstacle = SENDINGS.next(), SENDINGS.next(), NOT_NOW
    assert room.order(answered) == REFUSED
    room.obstacle = None
    assert room.order(late) == REFUSED
    assert room.done == 0


def test_the_refusal_of_the_latest_sending_is_stored(room: Room) -> None:
    one, two, three, room.obstacle = *(SENDINGS.next() for _ in range(3)), NOT_NOW
    assert [room.order(sending) for sending in (one, three, two)] == [REFUSED] * 3
    room.obstacle = None
    assert [room.order(sending) for sending in (one, two, three)] == [REFUSED] * 3


def test_another_process_that_repeats_the_request_is_not_refused(room: Room) -> None:
    room.obstacle = NOT_NOW
    assert room.order(SENDINGS.next()) == REFUSED
    room.obstacle = None
    assert room.order(Sending(ids.fresh(), 1)) == Done()


def test_another_request_of_the_same_process_is_not_refused(room: Room) -> None:
    sending, room.obstacle = SENDINGS.next(), NOT_NOW
    assert room.order(sending) == REFUSED
    room.obstacle = None
    room.message = ShelveInstance(request_id=ids.fresh(), instance_uuid=room.message.instance_uuid)
    assert room.order(sending) == Done()


@pytest.mark.parametrize(
    "undecided",
    [
        errors.StoreUnavailable(schema="x", reason="y"),
        errors.DeadlineExceeded(point="before COMMIT"),
        errors.RequestInProgress(request_id="x"),
        errors.InternalError(kind="KeyError"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_leaves_the_outcome_open_is_not_stored_as_a_refusal(
    room: Room, undecided: errors.MoorageError
) -> None:
    sending, room.obstacle = SENDINGS.next(), undecided
    before = room.rows
    assert room.order(sending) == (type(undecided), undecided.data)
    assert room.rows == before
    room.obstacle = None
    assert room.order(sending) == Done()


def test_the_refusal_of_an_order_without_a_sending_is_not_stored(room: Room) -> None:
    before, room.obstacle = room.rows, NOT_NOW
    assert room.order(None) == REFUSED
    assert room.rows == before
    room.obstacle = None
    assert room.order(None) == Done()


@pytest.mark.parametrize("has_sending", [True, False])
def test_a_refusal_after_a_copy_was_carried_out_is_replaced_by_the_answer_of_the_copy(
    room: Room, has_sending: bool
) -> None:
    sending = SENDINGS.next() if has_sending else None
    assert room.order(sending) == Done()
    assert room.refuse(sending, NOT_NOW) == Done()
    assert room.order(sending) == Done()


def test_two_concurrent_copies_get_the_same_answer(room: Room) -> None:
    answers = set()
    with ThreadPoolExecutor(2) as threads:
        for number in range(30):
            room.message = ShelveInstance(request_id=ids.fresh(), instance_uuid=ids.fresh())
            sending, start = SENDINGS.next(), threading.Barrier(2)

            def give(
                refused: bool, sending: Sending = sending, start: threading.Barrier = start, number: int = number
            ) -> object:
                start.wait(10)
                threading.Event().wait(0.001 * (number % 3) if refused else 0)
                return room.refuse(sending, NOT_NOW) if refused else room.order(sending)

            calls = [threads.submit(give, refused) for refused in (True, False)]
            one, other = (call.result(30) for call in calls)
            assert one == other
            # A third copy gets the same answer later.
            assert room.order(sending) == one
            answers.add(str(one))
    assert answers <= {str(REFUSED), str(Done())}


def test_a_refusal_is_pruned_like_an_acknowledged_answer(room: Room) -> None:
    before, sending, room.obstacle = room.rows, SENDINGS.next(), NOT_NOW
    assert room.order(sending) == REFUSED
    assert room.rows == before + 1
    room.stored.prune(acknowledged=3600, unacknowledged=-1)
    assert room.order(sending) == REFUSED
    room.stored.prune(acknowledged=-1, unacknowledged=3600)
    room.obstacle = None
    assert room.order(sending) == Done()


def test_a_stored_refusal_with_an_unknown_code_is_still_a_refusal(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, room.obstacle = SENDINGS.next(), NOT_NOW
    with monkeypatch.context() as patched:
        patched.setattr(errors.InvalidState, "code", "of.a.later.release")
        assert room.order(sending) == REFUSED
    room.obstacle = None
    assert room.order(sending) == (errors.InvalidState, {"reason": "it was refused before (of.a.later.release)"})


# --- On the wire ------------------------------------------------------------------------------------------------------


def test_each_call_is_its_own_sending_and_calls_on_its_behalf_have_the_same_sending() -> None:
    message = ShelveInstance(request_id=ids.fresh(), instance_uuid=ids.fresh())
    first, second = (read_sending(outgoing(message, 1.0)["sending"]) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (second.sender, second.number) == (first.sender, first.number + 1)
    with context.adopted(replace(context.current(), sending=first)):
        assert read_sending(outgoing(message)["sending"]) == first


@pytest.mark.parametrize(
    "text", [None, 7, "", "a", "a/", "a/b", "a/-1", "a/1.5", "a/\u0663", "x" * 50 + "/123456"], ids=repr
)
def test_a_malformed_sending_is_ignored(text: object) -> None:
    assert read_sending(text) is None
