"""Measure how long something takes on a machine that is busy with other work."""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

#: Seconds for which each thread was ready and had no processor, by the ids of its process and its own.
Waits = Mapping[tuple[int, int], float]


class Stopwatch:
    """Measures from its construction on.

    An upper bound of a time is to show that nothing was waited for, not that the machine is fast. So the time in which
    one thread of the test, or of the processes that it has started, waited for a processor is not counted: the longest
    one. On an idle machine there is none. The sum over all threads would be more than was waited for.

    :param read_waits: reads the waits of all threads; for a test of this class.
    """

    def __init__(self, read_waits: Callable[[], Waits] | None = None) -> None:
        self._read_waits = read_waits or _waits
        self._waits = self._read_waits()
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Return the seconds by the clock; for lower bounds."""
        return time.monotonic() - self._began

    @property
    def seconds(self) -> float:
        """Return the seconds without those in which a thread waited for a processor; for upper bounds."""
        elapsed = self.elapsed
        waited = (seconds - self._waits.get(thread, 0.0) for thread, seconds in self._read_waits().items())
        return elapsed - max((0.0, *waited))


def _waits() -> Waits:
    """Read the waits of all threads (proc(5), `schedstat`); empty if the kernel does not count them."""
    found: dict[tuple[int, int], float] = {}
    me = psutil.Process()
    for pid in (me.pid, *(child.pid for child in me.children(recursive=True))):
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    _ran, waited, _slices = (thread / "schedstat").read_text().split()
                    found[pid, int(thread.name)] = int(waited) / 1e9
    return found
