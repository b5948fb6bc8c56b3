"""End a test that hangs: the stacks of all threads are printed, and the test fails, within about a minute.

A time limit alone cannot distinguish a test that hangs from a test on a slow machine, and must be long for the latter.
This module watches whether the test's threads run or wait for a processor: the threads of a test that hangs do neither.
"""

import collections
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

#: Seconds without activity after which a test counts as hung. Longer than any intentional wait of a test.
IDLE_SECONDS = 60.0
#: The share of one processor below which there is no activity.
IDLE_SHARE = 0.05
#: The maximum share of the periodic threads of an idle cloud. It does not count while the test itself polls.
IDLE_CLOUD_SHARE = 0.3
_SAMPLE_SECONDS = 2.0
#: The servers' own processes always use some of a processor, but less than this share while a test hangs.
BUSY_SERVERS_SHARE = 0.5
_SERVERS = ("mariadbd", "mysqld", "beam.smp", "epmd", "erl_child_setup", "inet_gethost")


#: Seconds that each thread has run, or has waited for a processor, by the ids of its process and its own.
Threads = Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class Sample:
    """The activity of all threads up to a moment, of the servers' threads, and of the test's main thread."""

    at: float
    threads: Threads
    main_thread: float
    servers: Threads = field(default_factory=dict)
    processes: frozenset[int] = frozenset()


def hangs(samples: Sequence[Sample]) -> bool:
    """Return whether there was no activity between the samples, or only the background of a blocked test.

    A process that has started or ended counts as activity.
    """
    first, last = samples[0], samples[-1]
    if any(sample.processes != first.processes for sample in samples):
        return False
    seconds = last.at - first.at
    if _active_seconds([sample.servers for sample in samples]) > BUSY_SERVERS_SHARE * seconds:
        return False
    share = _active_seconds([sample.threads for sample in samples]) / seconds
    is_blocked = last.main_thread - first.main_thread < 0.001 * seconds
    return share < (IDLE_CLOUD_SHARE if is_blocked else IDLE_SHARE)


def _active_seconds(readings: Sequence[Threads]) -> float:
    """Return the seconds of activity between the first reading and the last.

    They are summed thread by thread, from each reading to the next. When a thread ends, its counter disappears; the
    time that it had counted before must not reduce the time of the others since then.
    """
    return sum(
        max(0.0, seconds - before.get(thread, 0.0))
        for before, after in pairwise(readings)
        for thread, seconds in after.items()
    )


class HungTests:
    """Watch the current test from a separate thread, one for the whole session."""

    def __init__(self) -> None:
        self._test: str | None = None
        self._number = 0
        self._thread = threading.Thread(target=self._watch, name="hung-tests", daemon=True)

    def start(self) -> None:
        """Start to watch, if the kernel accounts for threads; a second start does nothing."""
        if Path("/proc/self/schedstat").exists() and not self._thread.is_alive():
            self._thread.start()

    def test_began(self, name: str) -> None:
        """Watch this test from now on."""
        self._number += 1
        self._test = name

    def test_ended(self) -> None:
        """Watch nothing until the next test begins."""
        self._test = None

    def _watch(self) -> None:
        samples: collections.deque[Sample] = collections.deque()
        number = 0
        while True:
            time.sleep(_SAMPLE_SECONDS)
            if self._test is None or self._number != number:
                number = self._number
                samples.clear()
                continue
            samples.append(_sample())
            while samples[-1].at - samples[0].at > IDLE_SECONDS + _SAMPLE_SECONDS:
                samples.popleft()
            if samples[-1].at - samples[0].at >= IDLE_SECONDS and hangs(samples):
                print(f"\n{self._test} has done nothing for {IDLE_SECONDS:g} s", file=sys.__stderr__, flush=True)
                samples.clear()
                # pytest-timeout's handler prints the stacks and fails the test, as at the end of its time limit.
                if callable(signal.getsignal(signal.SIGALRM)):
                    os.kill(os.getpid(), signal.SIGALRM)


def _sample() -> Sample:
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    servers = [process for process in processes if _is_server(process)]
    return Sample(
        at=time.monotonic(),
        threads=_threads(process for process in processes if process not in servers),
        servers=_threads(servers),
        main_thread=_schedule(Path(f"/proc/{me.pid}/task/{me.pid}")),
        processes=frozenset(process.pid for process in processes),
    )


def _is_server(process: psutil.Process) -> bool:
    try:
        return process.name() in _SERVERS
    except psutil.Error:
        return False


def _threads(processes: Iterable[psutil.Process]) -> Threads:
    found: dict[tuple[int, int], float] = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                found[process.pid, int(thread.name)] = _schedule(thread)
    return found


def _schedule(thread: Path) -> float:
    """Return the seconds that a thread has run and has waited to run (proc(5), `schedstat`)."""
    try:
        ran, waited, _slices = (thread / "schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return (int(ran) + int(waited)) / 1e9


WATCH = HungTests()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch one test, its fixtures included."""
    WATCH.test_began(item.nodeid)
    try:
        return (yield)
    finally:
        WATCH.test_ended()
