"""Replaces the threads, clocks and random numbers of the standard library, before any other module is imported.

Afterwards the process has only one thread. Modules that took a reference earlier keep the original, so this must be
done first, in its own process.
"""

# ruff: noqa: SLF001  # the replaced names are private
import _thread
import itertools
import os
import queue
import random
import sys
import threading
import time
from typing import Any

# It keeps the original locks: no task waits while it holds one, so counting is not a switching point.
import prometheus_client  # noqa: F401

from harness.simulation.machine import primitives
from harness.simulation.machine.kernel import KERNEL

#: The wall clock at the beginning of each history.
EPOCH = 1_800_000_000.0
#: The modules that take references to threads, clocks or random numbers when they are imported.
_FIRST = ("concurrent.futures.thread", "moorage", "oslo_messaging", "sqlalchemy")

_random = random.Random()
_hashes = itertools.count()
#: The error of the wall clock in seconds, by process.
wall_offsets: dict[str, float] = {}
#: The process whose wall clock is that of the databases.
STORE = "store"


def wall_clock(process: str | None = None) -> float:
    """Return the time of a process's wall clock in seconds since 1970; by default, of the calling task's process."""
    return EPOCH + KERNEL.now + wall_offsets.get(process or KERNEL.current.process, 0.0)


def install() -> None:
    """Replace threads, clocks and random numbers.

    :raises RuntimeError: modules that use threads are already imported.
    """
    early = [name for name in _FIRST if name in sys.modules]
    if early:
        raise RuntimeError(f"the simulation has to be installed before {', '.join(early)} is imported")
    # For mypy a module has the declared attributes only.
    modules: tuple[Any, ...] = (_thread, threading, time, queue, os, random)
    thread, threads, clocks, queues, system, chance = modules
    thread.allocate_lock = threads._allocate_lock = threads.Lock = primitives.Lock
    thread.RLock = threads.RLock = threads._CRLock = threads._RLock = primitives.RLock
    thread.start_new_thread = threads._start_new_thread = primitives.start_new_thread
    thread.get_ident = threads.get_ident = primitives.get_ident
    thread._set_sentinel = threads._set_sentinel = primitives.set_sentinel
    thread._local = threads.local = primitives.Local
    clocks.monotonic = threads._time = queues.time = primitives.monotonic
    clocks.perf_counter = primitives.perf_counter
    clocks.time = wall_clock
    clocks.time_ns = lambda: int(wall_clock() * 1e9)
    clocks.sleep = KERNEL.sleep
    queues.SimpleQueue = queues._PySimpleQueue
    system.urandom = chance._urandom = _random.randbytes
    # An executor joins its threads in the order of a set; by default that is the order of their addresses.
    threads.Thread.__hash__ = lambda thread: thread.__dict__.setdefault("_simulated_hash", next(_hashes))
    _adopt_main_thread(threads)


def _adopt_main_thread(threads: Any) -> None:
    """Make the main thread the kernel's first task."""
    main = threads._main_thread
    threads._active.pop(main._ident, None)
    main._ident = primitives.get_ident()
    threads._active[main._ident] = main
    threads._active_limbo_lock = primitives.Lock()
    threads._shutdown_locks_lock = primitives.Lock()


def begin(seed: object) -> None:
    """Derive all random numbers from a seed, and restart the clocks."""
    _random.seed(f"{seed}/urandom")
    random.seed(f"{seed}/random")
    wall_offsets.clear()
