"""Load by many clients: threads in several processes, which start together and are counted for a given time."""

import multiprocessing
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from moorage import errors

#: One operation of a client; it returns the uuids that it has created.
Operation = Callable[[], tuple[str, ...]]
#: Opens the resources that the clients of one process share, and yields a function that returns the operation of a
#: client by its number. It is called in the clients' process with the arguments of the run, so it must be a function of
#: a module.
Opened = Callable[..., AbstractContextManager[Callable[[int], Operation]]]

#: Seconds for a process of clients to start and connect, and for it to end.
_PATIENCE = 120.0


@dataclass(frozen=True)
class Load:
    """The number of clients, the number of processes that they are divided among, and the seconds that are counted.

    With no process, the clients are threads of this process; a bus inside this process requires that.
    """

    clients: int
    processes: int
    seconds: float
    warm_up: float = 2.0


@dataclass
class Measured:
    """The result of a load: the latency of each operation in seconds, refusals by error, and all created uuids.

    The uuids include those of the warm-up. Operations and refusals are those that ended in the counted time.
    """

    seconds: float
    latencies: np.ndarray[Any, np.dtype[np.float64]]
    items: int
    refused: Mapping[str, int]
    created: list[str]
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    #: Claims of a decision that the store has refused, so that the decision was repeated.
    conflicts: int = 0

    @property
    def calls_per_s(self) -> float:
        """Operations a second."""
        return len(self.latencies) / self.seconds

    @property
    def items_per_s(self) -> float:
        """Created items a second."""
        return self.items / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latency in milliseconds; 0 if no operation has ended."""
        return float(np.percentile(self.latencies, percent)) * 1000 if len(self.latencies) else 0.0

    def figures(self) -> dict[str, Any]:
        """Return the figures that all loads share; processor time is per created item or, without any, per call."""
        each = self.items or len(self.latencies) or 1
        return {
            "calls_per_s": round(self.calls_per_s, 1),
            "p50_ms": round(self.percentile_ms(50), 3),
            "p99_ms": round(self.percentile_ms(99), 3),
            "conflicts": self.conflicts,
            "refused": dict(self.refused),
            "cpu_ms": {name: round(seconds * 1000 / each, 2) for name, seconds in self.cpu_seconds.items()},
        }


@dataclass
class _Tally:
    """The counts of one client."""

    latencies: list[float] = field(default_factory=list)
    items: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    created: list[str] = field(default_factory=list)

    def run(self, operation: Operation, begin: float, end: float, gone: threading.Event) -> None:
        """Repeat an operation until ``end``, and count the operations that end between ``begin`` and ``end``.

        :param gone: is set when nobody waits for the counts any more.
        """
        while (started := time.monotonic()) < end and not gone.is_set():
            refusal, uuids = "", tuple[str, ...]()
            try:
                uuids = operation()
            except errors.MoorageError as fault:
                refusal = fault.code
            ended = time.monotonic()
            self.created.extend(uuids)
            if not begin <= ended <= end:
                continue
            if refusal:
                self.refused[refusal] += 1
            else:
                self.latencies.append(ended - started)
                self.items += len(uuids)


def measure(
    load: Load,
    opened: Opened,
    *arguments: object,
    cpu: Callable[[], Mapping[str, float]] = dict,
    conflicts: Callable[[], int] = int,
) -> Measured:
    """Run a load, and measure it.

    :param cpu: returns the processor seconds of each process so far; called at the start and the end of the counted
        time.
    :param conflicts: returns the number of refused claims so far; called at the same times.
    :raises RuntimeError: a process of clients has ended early.
    """
    with _started(load, opened, arguments) as pipes:
        begin = time.monotonic() + load.warm_up
        end = begin + load.seconds
        for pipe in pipes:
            pipe.send((begin, end))
        time.sleep(max(0.0, begin - time.monotonic()))
        before, refused_before = cpu(), conflicts()
        time.sleep(max(0.0, end - time.monotonic()))
        after, refused_after = cpu(), conflicts()
        tallies: list[_Tally] = [tally for pipe in pipes for tally in _received(pipe)]
    return Measured(
        seconds=load.seconds,
        latencies=np.array([each for tally in tallies for each in tally.latencies]),
        items=sum(tally.items for tally in tallies),
        refused=dict(sum((tally.refused for tally in tallies), Counter())),
        created=[uuid for tally in tallies for uuid in tally.created],
        cpu_seconds={name: after[name] - before.get(name, 0.0) for name in after},
        conflicts=refused_after - refused_before,
    )


@contextmanager
def _started(load: Load, opened: Opened, arguments: tuple[object, ...]) -> Iterator[list[Connection]]:
    """Start the clients, and yield a pipe to each of their processes once all clients are connected."""
    spawn = multiprocessing.get_context("spawn")
    pipes, running = [], []
    for number in range(max(1, load.processes)):
        ours, theirs = spawn.Pipe()
        numbers = range(number, load.clients, max(1, load.processes))
        run = (opened, arguments, numbers, theirs)
        kind = spawn.Process if load.processes else threading.Thread
        running.append(kind(target=_run, args=run, daemon=True))
        running[-1].start()
        if load.processes:
            theirs.close()
        pipes.append(ours)
    try:
        for pipe in pipes:
            _received(pipe)
        yield pipes
    except BaseException:
        # A call of theirs to a service that has been ended as well would last for its whole time-out.
        for each in running:
            if isinstance(each, multiprocessing.process.BaseProcess):
                each.terminate()
        raise
    finally:
        for pipe in pipes:
            pipe.close()
        for each in running:
            each.join(_PATIENCE)


def _received(pipe: Connection) -> Any:
    """Return what a process of clients has sent.

    :raises RuntimeError: the process has failed, or ended without an answer.
    """
    try:
        what, value = pipe.recv()
    except EOFError:
        raise RuntimeError("a process of clients has ended before its time") from None
    if what == "failed":
        raise RuntimeError(f"the clients failed: {value}")
    return value


def _run(opened: Opened, arguments: tuple[object, ...], numbers: range, pipe: Connection) -> None:
    """Run the clients of one process: report that they are connected, get the counted time, and send the tallies."""
    gone = threading.Event()
    try:
        if threading.current_thread() is threading.main_thread():
            # In a process of its own. On a terminal, Ctrl-C reaches every process: the one that measures ends this one.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        with opened(*arguments) as client:
            operations = [client(number) for number in numbers]
            pipe.send(("connected", None))
            begin, end = pipe.recv()
            tallies = [_Tally() for _ in operations]
            with ThreadPoolExecutor(len(operations)) as pool:
                done = [
                    pool.submit(tally.run, operation, begin, end, gone)
                    for tally, operation in zip(tallies, operations, strict=True)
                ]
                # Nothing more is sent: the pipe is readable early only if its other end has been closed.
                if pipe.poll(max(0.0, end - time.monotonic())):
                    gone.set()
            for each in done:
                each.result()
        pipe.send(("counted", tallies))
    except (EOFError, BrokenPipeError):
        pass  # the run was ended elsewhere, for instance by Ctrl-C
    except Exception as fault:  # noqa: BLE001 - the other process reports it
        with suppress(BrokenPipeError):
            pipe.send(("failed", f"{type(fault).__name__}: {fault}"))
