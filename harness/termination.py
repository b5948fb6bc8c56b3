"""How a command ends when it is ended on its way: with all that it has started."""

import contextlib
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does: what it has started is stopped, and what it has made is removed.

    Without it only the private servers would end, and a database that was named would keep its tables.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwind(number: int, _: FrameType | None) -> None:
    # A second one must not disturb what the first has begun.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def ends_with_this_process() -> list[str]:
    """Return the words before a command by which it is killed with this process, also where nothing can be cleaned up.

    They are none in another thread than the main one: the kernel means the thread that has started a command, and what
    a passing thread starts would end with that thread.
    """
    if threading.current_thread() is threading.main_thread() and shutil.which("setpriv"):
        return ["setpriv", "--pdeathsig", "KILL", "--"]
    return []
