"""The context of a thread: request id, attempt id, service name, the caller's deadline, and the sending of the request.

The ids are part of every log line and travel with every message. The deadline travels as a duration, so that the clocks
of two machines are never compared.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NamedTuple

from moorage import errors


class Sending(NamedTuple):
    """One sending of a request. A copy of its message has the same sending; a repeated request has a later one."""

    #: The uuid of the sending process.
    sender: str
    #: Increases with each sending of that process.
    number: int


@dataclass(frozen=True, slots=True)
class Context:
    """The request that a thread works for; ``service`` distinguishes several services in one process.

    ``deadline`` is the caller's deadline by this process's monotonic clock; None if no caller waits. ``span`` is the
    current span of :mod:`moorage.tracing`; None if nothing is traced.
    """

    request_id: str | None = None
    attempt_id: str | None = None
    service: str | None = None
    deadline: float | None = None
    span: object | None = None
    sending: Sending | None = None


# A thread begins with an empty context: the code that submits work to it binds the submitter's context.
_CURRENT: ContextVar[Context] = ContextVar("moorage_context")
_NOTHING = Context()


def current() -> Context:
    """Return the context of the current thread."""
    return _CURRENT.get(_NOTHING)


@contextmanager
def bound(
    *,
    request_id: str | None = None,
    attempt_id: str | None = None,
    service: str | None = None,
    deadline: float | None = None,
    span: object | None = None,
) -> Iterator[Context]:
    """Replace the given fields of the current thread's context until exit.

    A deadline (:func:`time.monotonic`) can only become earlier.
    """
    before = current()
    deadlines = [each for each in (before.deadline, deadline) if each is not None]
    changed = replace(
        before,
        request_id=before.request_id if request_id is None else request_id,
        attempt_id=before.attempt_id if attempt_id is None else attempt_id,
        service=before.service if service is None else service,
        deadline=min(deadlines, default=None),
        span=before.span if span is None else span,
    )
    with adopted(changed):
        yield changed


class adopted:  # noqa: N801 - a context manager, used several times per call; a generator takes three times as long
    """Replace the current thread's context by another thread's until exit, while this thread works for the other."""

    __slots__ = ("_other", "_token")

    def __init__(self, other: Context) -> None:
        self._other = other

    def __enter__(self) -> None:
        self._token = _CURRENT.set(self._other)

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)


def adopt(other: Context) -> None:
    """Replace the current context by another thread's for good; to be run in a new :class:`contextvars.Context`."""
    _CURRENT.set(other)


def seconds_left() -> float | None:
    """Return the seconds until the caller's deadline, negative once it has passed; None without a deadline."""
    deadline = current().deadline
    return None if deadline is None else deadline - time.monotonic()


def is_late() -> bool:
    """Return whether the caller's deadline has passed."""
    left = seconds_left()
    return left is not None and left <= 0


def check_deadline(point: str) -> None:
    """Raise an error if the caller's deadline has passed.

    :param point: the state of the work, for the error's text, as in "before COMMIT".
    :raises DeadlineExceeded: the caller's deadline has passed.
    """
    if is_late():
        raise errors.DeadlineExceeded(point=point)
