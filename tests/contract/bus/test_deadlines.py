"""Test that a message has the remaining time of its caller, and that a late message writes nothing, on both buses."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Connection, exc, text
from support.processes.stopwatch import Stopwatch

from moorage import context, errors
from moorage.bus import bus
from moorage.bus.handlers import stamp
from moorage.config import options
from moorage.db.database import Database
from moorage.messages.wire import Message


class Note(Message[str], frozen=True, kw_only=True):
    topic = "desk"
    method = "note"
    word: str


class Hold(Message[str], frozen=True, kw_only=True):
    topic = "desk"
    method = "hold"


class TimeLeft(Message[float | None], frozen=True, kw_only=True):
    topic = "desk"
    method = "time_left"


class Relay(Message[str], frozen=True, kw_only=True):
    topic = "desk"
    method = "relay"


class Desk:
    """A service that writes words into a database, or waits until a test lets it continue."""

    def __init__(self, database: Database | None = None, onward: bus.Client | None = None) -> None:
        self.database = database
        self.onward = onward
        self.entered = threading.Event()
        self.may_go_on = threading.Event()
        self.refused: list[errors.MoorageError] = []
        self.begun: list[str] = []
        self.pause: Callable[[], object] = lambda: None
        self.done = threading.Semaphore(0)

    @bus.serves(Note)
    def note(self, message: Note) -> str:
        assert self.database is not None
        self.begun.append(message.word)

        def work(connection: Connection) -> None:
            connection.execute(text("INSERT INTO words VALUES (:word)"), {"word": message.word})
            self.pause()

        try:
            self.database.write(work)
        except errors.MoorageError as fault:
            self.refused.append(fault)
            raise
        finally:
            self.done.release()
        return message.word

    @bus.serves(Hold)
    def hold(self, message: Hold) -> str:
        self.entered.set()
        assert self.may_go_on.wait(20)
        return "held"

    @bus.serves(TimeLeft)
    def time_left(self, message: TimeLeft) -> float | None:
        left = context.seconds_left()
        if left is None:
            self.done.release()
        return left

    @bus.serves(Relay)
    def relay(self, message: Relay) -> str:
        assert self.onward is not None
        try:
            return self.onward.call(Hold(), timeout=600)
        except errors.MoorageError as fault:
            self.refused.append(fault)
            raise
        finally:
            self.done.release()


class Office:
    """A broker with the buses that a test connects to it."""

    def __init__(self, url: str) -> None:
        self.conf = options.new({"DEFAULT": {"transport_url": url}, "rpc": {"call_timeout": 20}})
        self.buses: list[bus.Bus] = []
        self.desks: list[Desk] = []
        self.topic = f"desk-{uuid4()}"

    def client(self, topic: str | None = None) -> bus.Client:
        self.buses.append(bus.Bus(self.conf))
        return self.buses[-1].client(topic or self.topic)

    def serve(self, desk: Desk, topic: str | None = None, threads: int = 8) -> Desk:
        self.desks.append(desk)
        self.buses.append(bus.Bus(self.conf))
        self.buses[-1].server(topic or self.topic, "first", [desk], threads).start()
        return desk

    def close(self) -> None:
        for desk in self.desks:
            desk.may_go_on.set()
        for each in self.buses:
            each.close()


@pytest.fixture
def office(shared_bus_url: str) -> Iterator[Office]:
    built = Office(shared_bus_url)
    yield built
    built.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path}/words.sqlite", "test")
    made.write(lambda connection: connection.execute(text("CREATE TABLE words (word TEXT)")) and None)
    yield made
    made.close()


def words(database: Database) -> list[str]:
    return list(database.read(lambda connection: connection.scalars(text("SELECT word FROM words ORDER BY word"))))


# --- Late messages --------------------------------------------------------------------------------------------------


def test_a_call_that_waits_in_a_busy_server_beyond_its_deadline_is_not_begun(
    office: Office, database: Database
) -> None:
    desk = office.serve(Desk(database), threads=1)
    client = office.client()
    with ThreadPoolExecutor() as pool:
        held = pool.submit(client.call, Hold())
        assert desk.entered.wait(5)
        with pytest.raises(errors.NoReply):
            client.call(Note(word="late"), timeout=2)
        desk.may_go_on.set()
        assert held.result(10) == "held"
    assert client.call(Note(word="in time")) == "in time"
    assert words(database) == ["in time"]
    # Its reads and calls would be wasted.
    assert desk.begun == ["in time"]


def test_a_call_that_is_late_at_commit_writes_nothing(office: Office, database: Database) -> None:
    desk = office.serve(Desk(database))
    client = office.client()
    client.call(Note(word="first"))
    assert desk.done.acquire(timeout=5)
    gone = threading.Event()
    desk.pause = lambda: gone.wait(20)
    # Long enough for the call to begin on a busy machine.
    with pytest.raises(errors.NoReply):
        client.call(Note(word="late"), timeout=3)
    gone.set()
    assert desk.done.acquire(timeout=5)
    assert [(type(fault), fault.data) for fault in desk.refused] == [
        (errors.DeadlineExceeded, {"point": "before COMMIT"})
    ]
    assert words(database) == ["first"]


def test_a_caller_that_still_waits_is_told_that_the_deadline_was_exceeded(office: Office, database: Database) -> None:
    desk = office.serve(Desk(database))
    desk.pause = lambda: _sleep_beyond(context.seconds_left())
    client = office.client()
    if office.conf.transport_url.startswith("rabbit"):
        # The deadline of a server is earlier than that of its caller, so its answer arrives in time.
        with pytest.raises(errors.DeadlineExceeded, match="before COMMIT"):
            client.call(Note(word="late"), timeout=4)
    else:
        with pytest.raises((errors.DeadlineExceeded, errors.NoReply)):
            client.call(Note(word="late"), timeout=1)
    assert desk.done.acquire(timeout=5)
    assert words(database) == []


def _sleep_beyond(left: float | None) -> None:
    assert left is not None
    time.sleep(left + 0.01)


# --- Nested calls, and calls without a deadline ----------------------------------------------------------------------


def test_a_nested_call_has_the_remaining_time_of_the_outer_call(office: Office) -> None:
    topic = f"{office.topic}-behind"
    behind = office.serve(Desk(), topic)
    front = office.serve(Desk(onward=office.client(topic)))
    watch = Stopwatch()
    with pytest.raises(errors.Unavailable):
        office.client().call(Relay(), timeout=6)
    assert behind.entered.is_set()
    assert front.done.acquire(timeout=20)
    assert watch.seconds < 30
    [fault] = front.refused
    assert isinstance(fault, errors.NoReply)
    assert fault.data["seconds"] <= 6


def test_a_server_knows_the_remaining_time_of_a_call(office: Office) -> None:
    office.serve(Desk())
    left = office.client().call(TimeLeft(), timeout=10)
    assert left is not None
    assert 3 < left <= 10


def test_a_cast_has_no_deadline(office: Office) -> None:
    desk = office.serve(Desk())
    with context.bound(deadline=time.monotonic() + 5):
        office.client().cast(TimeLeft())
    assert desk.done.acquire(timeout=5)


@pytest.mark.parametrize("sent", [None, "5", -1, True, float("nan"), float("inf"), [1]])
def test_an_invalid_remaining_time_is_ignored(sent: object) -> None:
    ctxt = {"seconds_left": sent, "deadline": 5.0}
    stamp(ctxt, taken=100.0)
    assert ctxt == {}


def test_a_deadline_is_counted_from_the_time_at_which_the_message_was_taken() -> None:
    ctxt: dict[str, object] = {"seconds_left": 2.5, "request_id": "r"}
    stamp(ctxt, taken=100.0)
    assert ctxt == {"deadline": 102.5, "request_id": "r"}


# --- The context ----------------------------------------------------------------------------------------------------


def test_a_nested_context_can_only_shorten_the_deadline() -> None:
    with context.bound(deadline=5.0):
        with context.bound(deadline=9.0) as later:
            assert later.deadline == 5.0
        with context.bound(deadline=2.0, request_id="r") as earlier:
            assert earlier.deadline == 2.0
        with context.bound(attempt_id="a") as same:
            assert same.deadline == 5.0
    assert context.current().deadline is None


def test_nothing_is_sent_after_the_deadline(office: Office) -> None:
    desk = office.serve(Desk())
    with context.bound(deadline=time.monotonic() - 1), pytest.raises(errors.DeadlineExceeded):
        office.client().call(Hold())
    assert not desk.entered.is_set()


# --- The database ---------------------------------------------------------------------------------------------------


class FailsLate:
    """Work that fails with an error after the deadline of its caller."""

    def __init__(self, fault: Callable[[], Exception]) -> None:
        self.tries = 0
        self._fault = fault

    def __call__(self, connection: Connection) -> None:
        self.tries += 1
        _sleep_beyond(context.seconds_left())
        raise self._fault()


def test_a_locked_database_is_not_tried_again_after_the_deadline(database: Database) -> None:
    locked = sqlite3.OperationalError("database is locked")
    locked.sqlite_errorcode = sqlite3.SQLITE_BUSY
    work = FailsLate(lambda: exc.OperationalError("UPDATE", {}, locked))
    with context.bound(deadline=time.monotonic() + 1.5), pytest.raises(errors.Unavailable):
        database.write(work)
    assert work.tries == 1


def test_no_transaction_begins_after_the_deadline(database: Database) -> None:
    work = FailsLate(lambda: AssertionError("the transaction has begun"))
    for begin in (database.read, database.write):
        with context.bound(deadline=time.monotonic() - 1), pytest.raises(errors.DeadlineExceeded):
            begin(work)
    assert work.tries == 0
