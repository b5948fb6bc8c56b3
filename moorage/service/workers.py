"""Several worker processes of one service: forked, watched, restarted and stopped by their parent process.

A Python process uses one core. Workers are whole services with names of their own, which share nothing but the parent.
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

#: A worker that ends within so few seconds of its start is not restarted: the same fault would end it again, and the
#: service's supervisor is to see it. It also limits how often a worker is restarted. Arbitrary.
_START_SECONDS = 10.0

_STOPS = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = (*_STOPS, signal.SIGHUP)
_HANDLED = (*_PASSED_ON, signal.SIGCHLD)


class WorkerProcess(NamedTuple):
    """The name of a worker, and where it reads the numbers of the signals that its parent passes on.

    Without a parent ``signals`` is null: the process has signals of its own.
    """

    name: str
    signals: int | None = None
    #: Its number among the workers, from 0.
    number: int = 0


class _Running(NamedTuple):
    """A worker process as its parent knows it; ``signals`` is where the parent writes."""

    name: str
    signals: int
    started: float


def fork(name: str, count: int) -> WorkerProcess:
    """Fork ``count`` workers of a service, and return in each which one it is; the parent does not return.

    A single worker is not forked. The parent passes signals to stop and to reload on to the workers, and restarts one
    that ends unasked. The workers ignore these signals, which a terminal or a supervisor may send to all processes of
    the service at once: a second one means to end without finishing. When the parent ends, however, they stop.

    To be called by the main thread, while there is no other one: threads do not survive a fork.

    :param name: the name of a single worker; several have a number after it.
    :raises SystemExit: in the parent, when all workers have ended, with the status of the first one that has failed.
    """
    if count == 1:
        return WorkerProcess(name)
    return _Parent().run([f"{name}-{number}" for number in range(1, count + 1)])


class _Parent:
    """Starts, watches and stops the workers."""

    def __init__(self) -> None:
        #: By process id.
        self._workers: dict[int, _Running] = {}
        self._is_stopping = False
        self._status = 0

    def run(self, names: Sequence[str]) -> WorkerProcess:
        # Blocked signals wait until they are asked for: none is lost, and none interrupts anything.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        to_start = names
        while True:
            for name in to_start:
                if worker := self._fork(name):
                    return worker._replace(number=names.index(name))
            if not self._workers:
                raise SystemExit(self._status)
            number = signal.sigwait(_HANDLED)
            if number in _PASSED_ON:
                self._pass_on(number)
            # Signals of several ends may have become one.
            to_start = self._ended()

    def _fork(self, name: str) -> WorkerProcess | None:
        """Start a worker; return it in the worker itself, and null in the parent."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else what is buffered would be written by both
        read, write = os.pipe()
        os.set_blocking(write, False)
        process = os.fork()
        if process:
            os.close(read)
            self._workers[process] = _Running(name, write, time.monotonic())
            LOG.info("Worker %s is process %s", name, process)
            return None
        # A worker sees the end of its parent by the end of its pipe: nobody else may have it open.
        for descriptor in (write, *(running.signals for running in self._workers.values())):
            os.close(descriptor)
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        return WorkerProcess(name, read)

    def _pass_on(self, number: int) -> None:
        self._is_stopping = self._is_stopping or number in _STOPS
        for running in self._workers.values():
            # It may have ended just now, or be too far behind to read.
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(running.signals, bytes([number]))

    def _ended(self) -> list[str]:
        """Return the names of the workers that have ended and are to be started again.

        If one of them has failed at its start, all are stopped instead.
        """
        again = []
        for process in list(self._workers):
            found, waited = os.waitpid(process, os.WNOHANG)
            if not found:
                continue
            ended = self._workers.pop(process)
            os.close(ended.signals)
            # Of one that was killed by a signal: its number.
            status = abs(os.waitstatus_to_exitcode(waited))
            if self._is_stopping:
                self._status = self._status or status
            elif time.monotonic() - ended.started < _START_SECONDS:
                LOG.error("Worker %s has ended at its start with status %s; the others are stopped", ended.name, status)
                self._status = status or 1
                self._pass_on(signal.SIGTERM)
            else:
                LOG.error("Worker %s has ended with status %s, and is started again", ended.name, status)
                again.append(ended.name)
        return [] if self._is_stopping else again
