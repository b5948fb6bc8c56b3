"""A server that is paused, or whose threads are all stuck, keeps few messages from its peers."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from moorage import errors
from moorage.bus.bus import Bus, Client, serves
from moorage.config import options
from moorage.messages import ListCells
from moorage.model import Cell

CALLS, SECONDS, THREADS = 12, 5.0, 2


class _Cells:
    """Answers with no cells."""

    def __init__(self) -> None:
        self.taken = 0

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        self.taken += 1
        return []


class _Stuck(_Cells):
    """Answers when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        self.taken += 1
        self.let_go.wait()
        return []


def _bus(url: str) -> Bus:
    return Bus(options.new({"DEFAULT": {"transport_url": url}}))


def _serve(url: str, name: str) -> None:
    """Serve until killed, and say when that begins."""
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


def test_a_paused_server_keeps_one_message_from_its_peers(bus: Bus, rabbitmq_url: str) -> None:
    with subprocess.Popen([sys.executable, __file__, rabbitmq_url, "paused"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            peer = _Cells()
            bus.server("placement", "peer", [peer]).start()
            client = bus.client("placement", timeout=SECONDS)
            assert all(_is_answered(client) for _ in range(4))
            assert 0 < peer.taken < 4, "they take turns for as long as both are there"

            process.send_signal(signal.SIGSTOP)

            assert [_is_answered(client) for _ in range(CALLS)].count(False) == 1
        finally:
            process.kill()


def test_a_server_without_a_free_thread_leaves_messages_to_its_peers(bus: Bus) -> None:
    stuck, peer = _Stuck(), _Cells()
    bus.server("placement", "stuck", [stuck], threads=THREADS).start()
    bus.server("placement", "peer", [peer], threads=THREADS).start()
    client = bus.client("placement", timeout=SECONDS)
    try:
        with ThreadPoolExecutor(CALLS) as callers:
            answered = list(callers.map(lambda _: _is_answered(client), range(CALLS)))
        taken = stuck.taken
    finally:
        stuck.let_go.set()

    assert taken == THREADS
    # One more has been taken in, and waits for a thread; and one has been sent to it.
    assert THREADS <= answered.count(False) <= THREADS + 2
    assert peer.taken == answered.count(True)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
