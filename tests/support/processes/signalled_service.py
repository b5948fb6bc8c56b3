"""Processes of services that a test sends signals, and whose output it reads."""

import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

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

class LogHangs(StopHangs):
    def stop(self):
        logging.getLogger().handlers[0].acquire()
        super().stop()

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

class LosesItsThreadAsTheSecond(Worker, WithThread):
    def start(self):
        WithThread.start(self)
        Worker.start(self)
    def reload(self):
        if self.name == "one-2":
            WithThread.reload(self)
    def stop(self):
        self.ends.set()
        Worker.stop(self)

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
