"""Restarts of the broker cost a running process no descriptor, no thread, no memory, and only a few seconds.

`make test` restarts the broker three times; with DRILLS=long in the environment it is restarted thirty times, and the
memory of the process is checked too.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.servers import RabbitMQServer

pytestmark = pytest.mark.timeout(1800)

LONG = os.environ.get("DRILLS") == "long"
RESTARTS = 30 if LONG else 3
#: The number of restarts after which everything permanent exists: threads, pooled connections, arenas of memory.
SETTLED = 15
CALLERS = 4
#: Threads of the server that answer calls.
WORKERS = 4
#: Connections for sending messages: one for each caller, for the call of the main thread, and for each worker.
POOLED = CALLERS + 1 + WORKERS
#: The maximum number of threads: main, callers, workers, two that receive, and a heartbeat for each connection.
THREADS = 1 + CALLERS + WORKERS + 2 + (POOLED + 2)
#: The maximum number of descriptors: standard input, output and error, the listed folder, and the connections.
DESCRIPTORS = 3 + 1 + (POOLED + 2)
#: The allowed growth of the heap in kilobytes for each restart. A former leak lost one and a half megabytes each time.
MEMORY = 200

CHILD = """
import gc, os, sys, threading, time
sys.path[:0] = [{folder!r}]
from moorage import errors
from moorage.bus import bus
from moorage.config import options
from test_silent_broker import Endpoint, Hello

settings = {{"transport_url": {url!r}}}
pool = {{"rpc_conn_pool_size": {pooled}}}
made = bus.Bus(options.new({{"DEFAULT": settings, "oslo_messaging_rabbit": pool}}))
made.server("greetings", "one", [Endpoint()], threads={workers}).start()
client = made.client("greetings", timeout=5)

def ask():
    while True:
        try:
            return client.call(Hello())
        except errors.Unavailable:
            time.sleep(0.1)

def ask_for_ever():
    while True:
        ask()
        time.sleep(0.02)

for _ in range({callers}):
    threading.Thread(target=ask_for_ever, daemon=True).start()
for _ in sys.stdin:
    begun = time.monotonic()
    ask()
    seconds = time.monotonic() - begun
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    print(seconds, len(os.listdir("/proc/self/fd")), threading.active_count(), pages * 4, flush=True)
"""


class Sample(NamedTuple):
    seconds: float
    descriptors: int
    threads: int
    memory: int


class Child:
    """A process with a server and callers that never stop calling it."""

    def __init__(self, url: str) -> None:
        sizes = {"callers": CALLERS, "workers": WORKERS, "pooled": POOLED}
        program = CHILD.format(folder=str(Path(__file__).parent), url=url, **sizes)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def sample(self) -> Sample:
        """Return how long a call takes now, and the resources of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, descriptors, threads, memory = self._process.stdout.readline().split()
        return Sample(float(seconds), int(descriptors), int(threads), int(memory))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_restarts_of_the_broker_cost_a_process_no_resources_for_good(
    rabbitmq: RabbitMQServer, rabbitmq_url: str, record_property: Callable[[str, object], None]
) -> None:
    child = Child(rabbitmq_url)
    try:
        first = child.sample()
        samples = []
        for _ in range(RESTARTS):
            rabbitmq.kill()
            rabbitmq.start()
            samples.append(child.sample())
    finally:
        child.close()
    last = samples[-1]
    record_property(
        "measured",
        f"{RESTARTS} restarts of the broker: answered after {max(each.seconds for each in samples):.1f} s at most; "
        f"descriptors {first.descriptors} to {last.descriptors}, threads {first.threads} to {last.threads}, "
        f"memory {first.memory // 1000} to {last.memory // 1000} MB",
    )
    # A call that was lost with the broker takes its five seconds.
    assert max(each.seconds for each in samples) < 10
    assert max(each.descriptors for each in [first, *samples]) <= DESCRIPTORS
    assert max(each.threads for each in [first, *samples]) <= THREADS
    if LONG:
        assert last.memory - samples[SETTLED].memory < MEMORY * (RESTARTS - SETTLED)
