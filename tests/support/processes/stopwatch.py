"""Measure how long something takes on a machine that is busy with other work."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

#: Seconds for which each thread was ready and had no processor, by the ids of its process and its own.
_Waits = Mapping[tuple[int, int], float]


class Stopwatch:
    """Measures from its construction on.

    An upper bound of a time is to show that nothing was waited for, not that the machine is fast. So the times in which
    the threads of the test and of the processes that it has started waited for a processor are not counted. On an idle
    machine there are none.
    """

    def __init__(self) -> None:
        self._waits = _waits()
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Return the seconds by the clock; for lower bounds."""
        return time.monotonic() - self._began

    @property
    def seconds(self) -> float:
        """Return the seconds without those in which threads waited for a processor; for upper bounds."""
        elapsed = self.elapsed
        waited = sum(max(0.0, seconds - self._waits.get(thread, 0.0)) for thread, seconds in _waits().items())
        return max(0.0, elapsed - waited)


def _waits() -> _Waits:
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
