"""Make calls that wait for a batch under way, in a known order."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from moorage.batches import Batches

T = TypeVar("T")


def queue(
    threads: ThreadPoolExecutor, batches: Batches[Any, Any], calls: Iterable[Callable[[], T]]
) -> list["Future[T]"]:
    """Make each call in its own thread, once the previous calls wait for the batch under way."""
    made = []
    for count, call in enumerate(calls, 1):
        made.append(threads.submit(call))
        wait_for(batches, count)
    return made


def wait_for(batches: Batches[Any, Any], count: int) -> None:
    """Wait until ``count`` items wait for the batch under way."""
    end = time.monotonic() + 20
    while len(batches._waiting) < count:
        assert time.monotonic() < end, f"{len(batches._waiting)} of {count} wait"
        time.sleep(0.001)
