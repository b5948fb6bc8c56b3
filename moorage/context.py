"""Which request, and which attempt of it, the current thread works for: on every log line, across every hop."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """What a thread works for; ``service`` tells several services of one process apart."""

    request_id: str | None = None
    attempt_id: str | None = None
    service: str | None = None


# A thread begins with an empty context: what it works for is said by whoever hands it its work.
_CURRENT: ContextVar[Context] = ContextVar("moorage_context")
_NOTHING = Context()


def current() -> Context:
    """Return what the current thread works for."""
    return _CURRENT.get(_NOTHING)


@contextmanager
def bound(
    *, request_id: str | None = None, attempt_id: str | None = None, service: str | None = None
) -> Iterator[Context]:
    """Work for this request and attempt; fields that are given replace the current ones, until exit."""
    before = current()
    token = _CURRENT.set(
        Context(
            request_id=before.request_id if request_id is None else request_id,
            attempt_id=before.attempt_id if attempt_id is None else attempt_id,
            service=before.service if service is None else service,
        )
    )
    try:
        yield current()
    finally:
        _CURRENT.reset(token)
