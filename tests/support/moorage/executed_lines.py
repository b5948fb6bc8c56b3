"""Count the lines of Python that something executes: its cost, which is the same on a fast and on a busy machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def executed_lines(work: Callable[[], object]) -> int:
    """Return the number of lines that one call executes in this thread, calls and the rounds of loops included.

    What a function written in C does counts as the line that calls it.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event in ("call", "line")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
