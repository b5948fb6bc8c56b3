"""A server that is paused, or whose threads are all blocked, withholds only a few messages from the other servers."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.processes import pause
from moorage import errors
from moorage.bus.bus import Bus, Client, serves
from moorage.config import options
from moorage.messages import ListCells
from moorage.model import Cell

#: Calls, seconds until an unanswered call fails, and threads of a server.
CALLS, SECONDS, THREADS = 12, 3.0, 2


class _Cells:
    """Answers with no cells."""

    def __init__(self) -> None:
        self.taken = 0

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        self.taken += 1
        return []


class _Blocked(_Cells):
    """Answers when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        self.taken += 1
        self.may_answer.wait()
        return []


def _bus(url: str) -> Bus:
    return Bus(options.new({"DEFAULT": {"transport_url": url}}))


def _serve(url: str, name: str) -> None:
    """Serve until killed, and print a line when ready."""
    _bus(url).server("placement", name, [_Cells()]).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threading.Event().wait()


@pytest.fixture
def bus(rabbitmq_url: str) -> Iterator[Bus]:
    opened = _bus(rabbitmq_url)
    yield opened
    opened.close()


def _is_answered(client: Client) -> bool:
    try:
        client.call(ListCells())
    except errors.NoReply:
        return False
    return True


def test_a_paused_server_withholds_one_message_from_the_other(bus: Bus, rabbitmq_url: str) -> None:
    with subprocess.Popen([sys.executable, __file__, rabbitmq_url, "paused"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            peer = _Cells()
            bus.server("placement", "peer", [peer]).start()
            client = bus.client("placement", timeout=SECONDS)
            assert all(_is_answered(client) for _ in range(4))
            assert 0 < peer.taken < 4, "both servers get messages in turn"

            pause(process.pid)

            assert [_is_answered(client) for _ in range(CALLS)].count(False) == 1
        finally:
            process.kill()


def test_a_server_without_a_free_thread_leaves_messages_to_the_other(bus: Bus) -> None:
    blocked, peer = _Blocked(), _Cells()
    bus.server("placement", "blocked", [blocked], threads=THREADS).start()
    bus.server("placement", "peer", [peer], threads=THREADS).start()
    client = bus.client("placement", timeout=SECONDS)
    try:
        with ThreadPoolExecutor(CALLS) as callers:
            answered = list(callers.map(lambda _: _is_answered(client), range(CALLS)))
        taken = blocked.taken
    finally:
        blocked.may_answer.set()

    assert taken == THREADS
    # The server has received one more message, which waits for a thread, and the broker has sent it another one.
    assert THREADS <= answered.count(False) <= THREADS + 2
    assert peer.taken == answered.count(True)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
