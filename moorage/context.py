"""Which request, and which attempt of it, the current thread works for, and how long its caller still waits.

The ids stand on every log line and cross every hop. Of the time, a duration crosses: no machine's clock is compared
with another's.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from moorage import errors


@dataclass(frozen=True, slots=True)
class Context:
    """Describe the request that a thread works for; ``service`` tells several services of one process apart.

    ``deadline`` is the end of the caller's time by this process's monotonic clock; without one, nobody waits.
    """

    request_id: str | None = None
    attempt_id: str | None = None
    service: str | None = None
    deadline: float | None = None


# A thread begins with an empty context: what it works for is said by whoever hands it its work.
_CURRENT: ContextVar[Context] = ContextVar("moorage_context")
_NOTHING = Context()


def current() -> Context:
    """Return what the current thread works for."""
    return _CURRENT.get(_NOTHING)


@contextmanager
def bound(
    *,
    request_id: str | None = None,
    attempt_id: str | None = None,
    service: str | None = None,
    deadline: float | None = None,
) -> Iterator[Context]:
    """Work for this request and attempt; fields that are given replace the current ones, until exit.

    A deadline, of :func:`time.monotonic`, can only become earlier.
    """
    before = current()
    deadlines = [each for each in (before.deadline, deadline) if each is not None]
    token = _CURRENT.set(
        Context(
            request_id=before.request_id if request_id is None else request_id,
            attempt_id=before.attempt_id if attempt_id is None else attempt_id,
            service=before.service if service is None else service,
            deadline=min(deadlines, default=None),
        )
    )
    try:
        yield current()
    finally:
        _CURRENT.reset(token)


def seconds_left() -> float | None:
    """Return the seconds that are left of the caller's time, negative when it is over; None without a deadline."""
    deadline = current().deadline
    return None if deadline is None else deadline - time.monotonic()


def is_late() -> bool:
    """Return whether the caller's time is over."""
    left = seconds_left()
    return left is not None and left <= 0


def check_deadline(point: str) -> None:
    """Do nothing while there is time left.

    :param point: where the work has come to, as in "before COMMIT".
    :raises DeadlineExceeded: the caller's time is over.
    """
    if is_late():
        raise errors.DeadlineExceeded(point=point)
