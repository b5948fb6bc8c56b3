"""The processor time and the memory that threads and processes use."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Collection, Mapping

import psutil


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor seconds that some work takes in this thread, without garbage collections."""
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return time.thread_time() - began
    finally:
        gc.enable()


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the processor seconds of processes with their children so far, by name, and of all others as `clients`."""
    used = {name: _cpu_seconds(pid) for name, pid in pids.items()}
    # The processes of clients are children of this one.
    return {**used, "clients": _cpu_seconds(os.getpid(), besides=pids.values())}


def memory_mb(pid: int | None = None) -> int:
    """Return the resident memory of a process, by default this one, in MB."""
    return int(psutil.Process(pid).memory_info().rss) // 10**6


def _cpu_seconds(pid: int, besides: Collection[int] = ()) -> float:
    """Return the processor seconds of a process and its descendants, without some of these and their descendants."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        times = process.cpu_times()
        # Children that have ended are counted too, so that the sum never decreases: a broker often runs small programs.
        total += times.user + times.system + times.children_user + times.children_system
        total += sum(_cpu_seconds(child.pid, besides) for child in process.children() if child.pid not in besides)
    return total
