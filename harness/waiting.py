"""Wait until something is true, for as long as it makes progress."""

import time
from collections.abc import Callable

#: Seconds to wait for something that takes no time on an idle machine. This bounds a wait for something that never
#: comes; it does not measure speed: beside other work everything may take a hundred times as long.
PATIENCE_SECONDS = 240.0


def wait_until(
    true: Callable[[], object],
    what: str | Callable[[], object] = "it",
    seconds: float = PATIENCE_SECONDS,
    interval: float = 0.02,
    progress: Callable[[], object] = lambda: None,
    longest: float = 0.1,
) -> None:
    """Wait until ``true`` returns a true value.

    :param interval: seconds between the first two tries; each following interval is a tenth longer, up to ``longest``.
        Each try adds to the load on the cloud.
    :param what: the subject of the error, or a function that returns it.
    :param progress: returns the present progress. Each change of it restarts the time.
    :raises TimeoutError: the progress has not changed for ``seconds``.
    """
    reached, end = progress(), time.monotonic() + seconds
    while not true():
        if (now := progress()) != reached:
            reached, end = now, time.monotonic() + seconds
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s without success for {what if isinstance(what, str) else what()}")
        time.sleep(interval)
        interval = max(interval, min(interval * 1.1, longest))
