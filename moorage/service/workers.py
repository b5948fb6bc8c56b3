"""Several worker processes of one service: forked, watched, restarted and stopped by their parent process.

A Python process uses one core. Each worker is a whole service with its own name; workers share only their parent.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

LOG = logging.getLogger(__name__)

#: A worker that ends within this many seconds of its start is not restarted: the same failure would end it again, and
#: the service's supervisor must see it. This also limits how often a worker is restarted. Arbitrary.
_START_SECONDS = 10.0

_STOPS = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = (*_STOPS, signal.SIGHUP)
_HANDLED = (*_PASSED_ON, signal.SIGCHLD)


class WorkerProcess(NamedTuple):
    """The name of a worker, and the descriptor from which it reads the numbers of signals from its parent.

    Without a parent, ``signals`` is None: the process gets its signals itself.
    """

    name: str
    signals: int | None = None
    #: The number of the worker, from 0.
    number: int = 0


class _Running(NamedTuple):
    """The parent's record of a running worker; the parent writes the numbers of signals to ``signals``."""

    name: str
    signals: int
    started: float


def fork(name: str, count: int) -> WorkerProcess:
    """Fork ``count`` workers of a service; each worker returns its own description, and the parent does not return.

    A single worker is not forked. The parent passes on signals to stop and to reload, and restarts a worker that ends
    unexpectedly. A terminal or a supervisor may send these signals to all processes of the service at once. A worker
    would treat the second signal as an order to end at once, so it ignores signals that it receives directly. When the
    parent ends, the workers stop.

    Call this in the main thread, while there is no other thread: threads do not survive a fork.

    :param name: the name of a single worker; several workers have a number after it.
    :raises SystemExit: in the parent, when all workers have ended, with the status of the first one that has failed.
    """
    if count == 1:
        return WorkerProcess(name)
    return _Parent().run([f"{name}-{number}" for number in range(1, count + 1)])


class _Parent:
    """Starts, watches and stops the workers."""

    def __init__(self) -> None:
        #: The running workers, by process id.
        self._workers: dict[int, _Running] = {}
        self._is_stopping = False
        self._status = 0

    def run(self, names: Sequence[str]) -> WorkerProcess:
        # An ignored SIGCHLD is inherited. Then no such signal arrives, and the status of an ended worker is lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Blocked signals stay pending until sigwait takes them: none is lost, and none interrupts anything.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        to_start = names
        while True:
            for name in to_start:
                try:
                    worker = self._fork(name)
                except OSError as fault:  # the machine has no process, no memory or no descriptor left
                    LOG.error("Worker %s cannot be started: %s; the others are stopped", name, fault)
                    self._stop_others(1)
                    break
                if worker:
                    return worker._replace(number=names.index(name))
            if not self._workers:
                raise SystemExit(self._status)
            number = signal.sigwait(_HANDLED)
            if number in _PASSED_ON:
                self._pass_on(number)
            # Check all workers: one SIGCHLD may stand for several ended processes.
            to_start = self._ended()

    def _fork(self, name: str) -> WorkerProcess | None:
        """Start a worker; return its description in the worker itself, and None in the parent."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise both processes would write the buffered text
        read, write = os.pipe()
        os.set_blocking(write, False)
        process = os.fork()
        if process:
            os.close(read)
            self._workers[process] = _Running(name, write, time.monotonic())
            LOG.info("Worker %s is process %s", name, process)
            return None
        # A worker detects the end of its parent by the end of its pipe, so no other process may keep a pipe open.
        for descriptor in (write, *(running.signals for running in self._workers.values())):
            os.close(descriptor)
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        return WorkerProcess(name, read)

    def _pass_on(self, number: int) -> None:
        self._is_stopping = self._is_stopping or number in _STOPS
        for running in self._workers.values():
            # The worker may have just ended, or its pipe may be full because it reads too slowly.
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(running.signals, bytes([number]))

    def _stop_others(self, status: int) -> None:
        """Stop the running workers because of one that could not start; the service then ends with this status."""
        self._status = status
        self._pass_on(signal.SIGTERM)

    def _ended(self) -> list[str]:
        """Return the names of the workers that have ended and must be started again.

        If one of them has failed at its start, stop all workers instead.
        """
        again = []
        for process in list(self._workers):
            found, waited = os.waitpid(process, os.WNOHANG)
            if not found:
                continue
            ended = self._workers.pop(process)
            os.close(ended.signals)
            # If a signal has killed the worker, this is the number of the signal.
            status = abs(os.waitstatus_to_exitcode(waited))
            if self._is_stopping:
                self._status = self._status or status
            elif time.monotonic() - ended.started < _START_SECONDS:
                LOG.error("Worker %s has ended at its start with status %s; the others are stopped", ended.name, status)
                self._stop_others(status or 1)
            else:
                LOG.error("Worker %s has ended with status %s, and is started again", ended.name, status)
                again.append(ended.name)
        return [] if self._is_stopping else again
