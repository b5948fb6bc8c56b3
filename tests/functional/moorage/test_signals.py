"""Test the effect of signals on the process of a service and on its workers."""

import configparser
import os
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moorage.cli.shell import Shell

#: Services for the tests; each prints a line for each of its calls.
SERVICE = """
import logging, os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from moorage import errors
from moorage.service import liveness, workers
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

class WithThread(Quiet):
    def start(self):
        self.ends = threading.Event()
        watched = threading.Thread(target=self.ends.wait, name="watched")
        watched.start()
        liveness.watch(watched)
    def reload(self):
        self.ends.set()

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

class Worker(Reloading):
    def __init__(self, name):
        self.name = name
    def _print(self, what):
        # In one piece: several processes print.
        os.write(1, f"{what} {self.name} {os.getpid()}\\n".encode())
    def start(self):
        self._print("start")
    def reload(self):
        self._print("reload")
    def stop(self):
        self._print("stop")

class FailsAsTheSecond(Worker):
    def start(self):
        if self.name == "one-2":
            sys.exit(3)

class StopsNever(Worker):
    def stop(self):
        super().stop()
        forever()

def run_workers(service, count=2, **settings):
    worker = workers.fork("one", count)
    run(service(worker.name), signals=worker.signals, **settings)
"""


class Process:
    """A process of a service, and its output."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._printed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def until(self, line: str, seconds: float = 30.0) -> None:
        """Read the output up to a line that begins with ``line``."""
        while not self.lines or not self.lines[-1].startswith(line):
            self.lines.append(self.next(seconds))

    def next(self, seconds: float = 30.0) -> str:
        """Return the next line of the output."""
        return self._printed.get(timeout=seconds)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 30.0) -> int:
        """Wait for the end of the process, and return its exit status."""
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
    with program(f"{away}run({service}(), {given})") as process:
        yield process


@contextmanager
def program(ending: str) -> Iterator[Process]:
    words = [sys.executable, "-c", f"{textwrap.dedent(SERVICE)}\n{ending}\n"]
    # In its own process group, as a command of a terminal.
    process = Process(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, process_group=0))
    try:
        yield process
    finally:
        process.close()


STOPS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


@STOPS
def test_a_signal_stops_a_service_cleanly(number: signal.Signals) -> None:
    with running("Quiet") as service:
        service.until("Ready")
        service.send(number)
        assert service.ended() == 0
        assert service.lines == ["Ready", "Stopping", "stop", "Stopped"]


@STOPS
def test_a_signal_ends_a_service_that_waits_for_the_database(number: signal.Signals) -> None:
    with running("StoreAway") as service:
        service.until("Waiting for")
        service.send(number)
        assert service.ended() == 0
        assert service.lines[-1] == "Stopped before it was ready"


def test_a_start_is_repeated_until_the_database_is_available_and_is_logged_once() -> None:
    with running("StoreAway", away=5) as service:
        service.until("Ready")
        assert service.lines.count("start") == 5
        # After each failed start, the service is stopped.
        assert service.lines.count("stop") == 4
        assert [line for line in service.lines if line.startswith("Waiting")] == [
            "Waiting for what it starts with: The database of main cannot be reached: it is away."
        ]


def test_a_start_that_hangs_is_ended_by_force_after_the_time_for_a_stop() -> None:
    with running("StartHangs", stop_seconds=0.3) as service:
        service.until("start")
        service.send(signal.SIGTERM)
        assert service.ended() == 1
        assert service.lines[-1] == "Not stopped within 0.3 s, and ended by force; at work: MainThread"


def test_a_stop_that_hangs_is_ended_by_force_after_the_time_for_a_stop() -> None:
    with running("StopHangs", stop_seconds=0.3) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("stop")
        assert service.ended() == 1


def test_threads_that_hang_after_the_stop_are_ended_by_force() -> None:
    with running("ExitHangs", stop_seconds=0.3) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("Stopped")
        assert service.ended() == 1
        assert "ThreadPoolExecutor" in service.lines[-1]


def test_a_second_signal_ends_a_service_at_once() -> None:
    with running("StopHangs", stop_seconds=3600) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("stop")
        service.send(signal.SIGINT)
        assert service.ended() == 1


@pytest.mark.parametrize(("service", "printed"), [("Quiet", []), ("Reloading", ["reload"])])
def test_sighup_reloads_a_service_that_can_reload_and_ends_no_service(service: str, printed: list[str]) -> None:
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


# --- The supervisor --------------------------------------------------------------------------------------------------


class Systemd:
    """The socket of a supervisor with systemd's protocol, named in the environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(30)
        self._socket.bind(str(folder / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))

    def next(self) -> list[str]:
        return self._socket.recv(1000).decode().splitlines()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    supervisor = Systemd(tmp_path, monkeypatch)
    yield supervisor
    supervisor.close()


def test_a_service_notifies_the_supervisor_when_it_is_ready_reloads_and_stops(systemd: Systemd) -> None:
    with running("Reloading") as service:
        assert systemd.next() == ["READY=1"]
        service.send(signal.SIGHUP)
        reloading, since = systemd.next()
        assert (reloading, since.partition("=")[0]) == ("RELOADING=1", "MONOTONIC_USEC")
        assert systemd.next() == ["READY=1"]
        service.send(signal.SIGTERM)
        assert systemd.next() == ["STOPPING=1"]
        assert service.ended() == 0


def test_a_service_that_waits_for_the_database_is_not_ready(systemd: Systemd) -> None:
    with running("StoreAway") as service:
        service.until("Waiting for")
        service.send(signal.SIGTERM)
        assert service.ended() == 0
    systemd._socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.next()


def test_watchdog_notifications_end_when_a_watched_thread_has_died(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with program("run(WithThread())") as service:
        while systemd.next() != ["WATCHDOG=1"]:
            pass
        service.send(signal.SIGHUP)
        service.until("These threads have died")
        assert service.lines[-1].endswith("watched")


def test_the_units_start_existing_commands_with_existing_options() -> None:
    shell = Shell()
    for unit in (Path(__file__).parents[3] / "etc/systemd").iterdir():
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.optionxform = str  # type: ignore[assignment,method-assign]
        parsed.read(unit)
        words = parsed["Service"]["ExecStart"].split()
        assert words[0] == "/opt/moorage/bin/moorage"
        given = [word.replace("%i", "cell1") for word in words[1:] if not word.startswith("$")]
        command, name, rest = shell.command_manager.find_command(given)
        command(shell, None, name).get_parser(name).parse_args(rest)
        assert (parsed["Service"]["Type"], parsed["Install"]["WantedBy"]) == ("notify", "multi-user.target")


# --- Workers --------------------------------------------------------------------------------------------------------


def started(process: Process, lines: int = 2) -> dict[str, int]:
    """Wait for the lines of workers that have started, and return their process ids by name."""
    while len(found := [line.split() for line in process.lines if line.startswith("start ")]) < lines:
        process.lines.append(process.next())
    return {name: int(pid) for _, name, pid in found}


def workers_that(process: Process, what: str) -> list[str]:
    return sorted(line.split()[1] for line in process.lines if line.startswith(f"{what} "))


@STOPS
def test_a_signal_to_the_parent_stops_all_workers_cleanly(number: signal.Signals) -> None:
    with program("run_workers(Worker, 3)") as service:
        assert sorted(started(service, 3)) == ["one-1", "one-2", "one-3"]
        service.send(number)
        assert service.ended() == 0
        assert workers_that(service, "stop") == ["one-1", "one-2", "one-3"]


def test_a_signal_to_all_processes_at_once_stops_the_workers_cleanly() -> None:
    # As a terminal's Ctrl-C, and as systemd by default.
    with program("run_workers(Worker)") as service:
        started(service)
        os.killpg(service.process.pid, signal.SIGINT)
        assert service.ended() == 0
        assert workers_that(service, "stop") == ["one-1", "one-2"]


def test_a_second_signal_ends_the_workers_at_once() -> None:
    with program("run_workers(StopsNever, stop_seconds=3600)") as service:
        started(service)
        service.send(signal.SIGTERM)
        while len(workers_that(service, "stop")) < 2:
            service.lines.append(service.next())
        service.send(signal.SIGTERM)
        assert service.ended() == 1


def test_sighup_is_passed_on_to_all_workers() -> None:
    with program("run_workers(Worker)") as service:
        started(service)
        service.send(signal.SIGHUP)
        while len(workers_that(service, "reload")) < 2:
            service.lines.append(service.next())
        service.send(signal.SIGTERM)
        assert service.ended() == 0
        assert workers_that(service, "reload") == ["one-1", "one-2"]


def test_a_worker_that_dies_is_started_again_under_its_name() -> None:
    with program("workers._START_SECONDS = 0.0; run_workers(Worker)") as service:
        first = started(service)
        os.kill(first["one-2"], signal.SIGKILL)
        again = started(service, 3)
        assert again["one-1"] == first["one-1"]
        assert again["one-2"] != first["one-2"]
        service.send(signal.SIGTERM)
        assert service.ended() == 0
        assert workers_that(service, "stop") == ["one-1", "one-2"]
        assert "Worker one-2 has ended with status 9, and is started again" in service.lines


def test_a_worker_that_fails_at_its_start_ends_the_service_with_its_status() -> None:
    with program("run_workers(FailsAsTheSecond)") as service:
        assert service.ended() == 3
        assert "Worker one-2 has ended at its start with status 3; the others are stopped" in service.lines
        # The other worker may not have been ready yet.
        assert workers_that(service, "stop") in ([], ["one-1"])


def test_workers_stop_cleanly_when_their_parent_is_killed() -> None:
    with program("run_workers(Worker)") as service:
        started(service)
        service.send(signal.SIGKILL)
        # The output ends when all workers have ended.
        assert service.ended() == -signal.SIGKILL
        assert workers_that(service, "stop") == ["one-1", "one-2"]


def test_a_single_worker_is_the_process_itself() -> None:
    with program("run_workers(Worker, 1)") as service:
        service.until("Ready")
        assert service.lines[0] == f"start one {service.process.pid}"
        service.send(signal.SIGTERM)
        assert service.ended() == 0
