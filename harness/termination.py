"""End a command early together with everything that it has started."""

import contextlib
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does: programs are stopped, and files and tables are removed.

    Without it only the private servers would end, and a database that was given by its URL would keep its tables.
    SIGHUP, which a closed terminal sends, stays ignored if it is, as by `nohup`.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, _unwind)
    if before[signal.SIGHUP] is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _unwind)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwind(number: int, _: FrameType | None) -> None:
    # No later signal may interrupt the cleaning that the first one has started.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def ends_with_this_process() -> list[str]:
    """Return a command prefix that kills the command when this process ends, even if this process cannot clean up.

    In any thread but the main one the prefix is empty: the kernel watches the thread that started the command, so the
    command would end together with that thread.
    """
    if threading.current_thread() is threading.main_thread() and shutil.which("setpriv"):
        return ["setpriv", "--pdeathsig", "KILL", "--"]
    return []
