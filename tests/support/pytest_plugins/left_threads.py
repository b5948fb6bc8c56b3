"""Fail a test that leaves threads behind: later tests would be affected by what they log or hold."""

import threading
import time
import traceback
from collections.abc import Iterator

import pytest

from scheduler.plugins.watch import current_frames

#: Seconds for a stopped thread to end. A thread that needs longer was not stopped, or waits for something.
GRACE_SECONDS = 15.0
#: Threads of pytest and its plug-ins.
_OURS = ("hung-tests", "execnet", "pytest_timeout", "MainThread")
#: The reader of a private server's log, which lives as long as the server.
_SERVER_READER = "(_read_in_bg)"

#: Fixtures of the session that start no thread of ours.
_NO_CLOUDS = (
    "mariadb", "rabbitmq", "fresh_vhosts", "migrated_mariadb", "session_galera", "session_rabbitmq_cluster",
    "tmp_path_factory", "pytestconfig",
)  # fmt: skip


def _alive() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(_OURS) and not thread.name.endswith(_SERVER_READER)
    }


def _left(before: set[threading.Thread]) -> set[threading.Thread]:
    """Return the threads that a test has started; an earlier pool may have grown."""
    pools = {pool for thread in before if (pool := _pool(thread)) is not None}
    return {thread for thread in _alive() - before if _pool(thread) not in pools}


def _pool(thread: threading.Thread) -> str | None:
    """Return the name of the thread's pool, if it has one: the standard library gives each pool its own name."""
    pool, _, number = thread.name.rpartition("_")
    return pool if pool.startswith("ThreadPoolExecutor-") and number.isdigit() else None


@pytest.fixture(autouse=True)
def no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait for the threads that a test has started, and fail the test if they continue.

    A fixture that several tests share may start and end threads meanwhile: such tests are not checked.
    """
    before = _alive()
    yield
    if _shares_a_cloud(request):
        return
    end = time.monotonic() + GRACE_SECONDS
    while (left := _left(before)) and time.monotonic() < end:
        time.sleep(0.01)
    if left:
        frames = current_frames()
        stacks = [
            f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in left
            if thread.ident in frames
        ]
        pytest.fail(f"{len(left)} thread(s) left behind\n" + "\n".join(stacks), pytrace=False)


def _shares_a_cloud(request: pytest.FixtureRequest) -> bool:
    return any(
        found[-1].scope != "function" for name, found in request._arg2fixturedefs.items() if name not in _NO_CLOUDS
    )
