"""Fail a test that leaves threads behind: what they log or hold would be seen by the tests after it."""

import sys
import threading
import time
import traceback
from collections.abc import Iterator

import pytest

#: What lets a thread end that was told to. A thread that needs longer was not told, or waits for something.
GRACE_SECONDS = 15.0
#: Threads of the tests' own machinery.
_OURS = ("hung-tests", "execnet", "pytest_timeout", "MainThread")
#: The reader of a private server's log, which lives as long as the server.
_SERVER_READER = "(_read_in_bg)"

#: Fixtures of the session that run no thread of ours.
_NO_CLOUDS = ("mariadb", "rabbitmq", "migrated_mariadb", "tmp_path_factory", "pytestconfig")


def _alive() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(_OURS) and not thread.name.endswith(_SERVER_READER)
    }


@pytest.fixture(autouse=True)
def no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait for the threads that a test has started, and fail it where they go on.

    A fixture that several tests share may begin and end threads meanwhile: those tests are not looked at.
    """
    before = _alive()
    yield
    if _shares_a_cloud(request):
        return
    end = time.monotonic() + GRACE_SECONDS
    while (left := _alive() - before) and time.monotonic() < end:
        time.sleep(0.01)
    if left:
        frames = sys._current_frames()
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
