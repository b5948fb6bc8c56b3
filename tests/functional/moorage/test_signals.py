"""How a process of a service is stopped, reloaded and kept waiting: by signals, at any moment of its life."""

import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: A service whose parts each test replaces; it prints what happens to it, line by line.
SERVICE = """
import logging, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from moorage import errors
from moorage.service.process import run

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
forever = threading.Event().wait

class Quiet:
    def start(self):
        pass
    def stop(self):
        print("stop", flush=True)

class Reloading(Quiet):
    def reload(self):
        print("reload", flush=True)

class StartHangs(Quiet):
    def start(self):
        print("start", flush=True)
        forever()

class StopHangs(Quiet):
    def stop(self):
        print("stop", flush=True)
        forever()

class ExitHangs(Quiet):
    def start(self):
        ThreadPoolExecutor().submit(forever)

class StoreAway(Quiet):
    tries = 0
    def start(self):
        self.tries += 1
        print("start", flush=True)
        if self.tries < away:
            raise errors.StoreUnavailable(schema="main", reason="it is away")

away = 1_000_000
"""


class Process:
    """A service in a process of its own, and what it has printed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._printed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def until(self, line: str, seconds: float = 30.0) -> None:
        """Read what it prints, up to a line that begins so."""
        while not self.lines or not self.lines[-1].startswith(line):
            self.lines.append(self._printed.get(timeout=seconds))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 30.0) -> int:
        """Return its exit status, once it has one."""
        status = self.process.wait(seconds)
        self._reader.join()
        while not self._printed.empty():
            self.lines.append(self._printed.get())
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._printed.put(line.rstrip("\n"))


@contextmanager
def running(service: str, **settings: object) -> Iterator[Process]:
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items() if name != "away")
    away = f"away = {settings['away']}\n" if "away" in settings else ""
    program = f"{textwrap.dedent(SERVICE)}\n{away}run({service}(), {given})\n"
    process = Process(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True))
    try:
        yield process
    finally:
        process.close()


STOPS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


@STOPS
def test_a_signal_stops_a_service_in_order(number: signal.Signals) -> None:
    with running("Quiet") as service:
        service.until("Ready")
        service.send(number)
        assert service.ended() == 0
        assert service.lines == ["Ready", "Stopping", "stop", "Stopped"]


@STOPS
def test_a_signal_ends_a_service_that_waits_for_a_part_of_the_cloud(number: signal.Signals) -> None:
    with running("StoreAway") as service:
        service.until("Waiting for")
        service.send(number)
        assert service.ended() == 0
        assert service.lines[-1] == "Stopped before it was ready"


def test_a_service_is_started_again_and_again_until_the_cloud_is_there_and_logs_little_meanwhile() -> None:
    with running("StoreAway", away=5) as service:
        service.until("Ready")
        assert service.lines.count("start") == 5
        # What a start has begun before it failed is undone by a stop.
        assert service.lines.count("stop") == 4
        assert [line for line in service.lines if line.startswith("Waiting")] == [
            "Waiting for what it starts with: The database of main cannot be reached: it is away."
        ]


def test_a_start_that_hangs_is_ended_by_force_within_the_seconds_of_a_stop() -> None:
    with running("StartHangs", stop_seconds=0.3) as service:
        service.until("start")
        service.send(signal.SIGTERM)
        assert service.ended() == 1
        assert service.lines[-1] == "Not stopped within 0.3 s, and ended by force; at work: MainThread"


def test_a_stop_that_hangs_is_ended_by_force_within_the_seconds_of_a_stop() -> None:
    with running("StopHangs", stop_seconds=0.3) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("stop")
        assert service.ended() == 1


def test_threads_that_hang_after_the_stop_are_ended_by_force_as_well() -> None:
    with running("ExitHangs", stop_seconds=0.3) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("Stopped")
        assert service.ended() == 1
        assert "ThreadPoolExecutor" in service.lines[-1]


def test_the_second_signal_ends_a_service_at_once() -> None:
    with running("StopHangs", stop_seconds=3600) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("stop")
        service.send(signal.SIGINT)
        assert service.ended() == 1


@pytest.mark.parametrize(("service", "printed"), [("Quiet", []), ("Reloading", ["reload"])])
def test_sighup_ends_no_service_and_reloads_those_that_can(service: str, printed: list[str]) -> None:
    with running(service) as process:
        process.until("Ready")
        process.send(signal.SIGHUP)
        for line in printed:
            process.until(line)
        process.send(signal.SIGTERM)
        assert process.ended() == 0
        assert process.lines == ["Ready", *printed, "Stopping", "stop", "Stopped"]


def test_a_process_has_ten_seconds_to_stop() -> None:
    from moorage.service.process import STOP_SECONDS

    assert STOP_SECONDS == 10
