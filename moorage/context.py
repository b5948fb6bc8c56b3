"""The context of a thread: request id, attempt id, service name, the caller's deadline, and the sending worked for.

The ids are part of every log line and travel with every message. The deadline travels as a duration, so that no two
machines' clocks are compared.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from moorage import errors


class Sending(NamedTuple):
    """One sending of a request. A copy of its message has the same one; a request that is repeated has the next."""

    #: The uuid of the process that has sent it.
    sender: str
    #: Grows with each sending of that process.
    number: int


@dataclass(frozen=True, slots=True)
class Context:
    """The request that a thread works for; ``service`` distinguishes several services in one process.

    ``deadline`` is the caller's deadline by this process's monotonic clock; null where no caller waits. ``span`` is the
    span under way of :mod:`moorage.tracing`; null where nothing is traced.
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
    token = _CURRENT.set(
        Context(
            request_id=before.request_id if request_id is None else request_id,
            attempt_id=before.attempt_id if attempt_id is None else attempt_id,
            service=before.service if service is None else service,
            deadline=min(deadlines, default=None),
            span=before.span if span is None else span,
            sending=before.sending,
        )
    )
    try:
        yield current()
    finally:
        _CURRENT.reset(token)


class adopted:  # noqa: N801 - a context manager; a generator would take three times as long, several times a call
    """Replace the current thread's context by another thread's until exit: the work is that thread's."""

    __slots__ = ("_other", "_token")

    def __init__(self, other: Context) -> None:
        self._other = other

    def __enter__(self) -> None:
        self._token = _CURRENT.set(self._other)

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)


def adopt(other: Context) -> None:
    """Replace the current context by another thread's for good: for a :class:`contextvars.Context` of its own."""
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
