"""Run a transaction again when a row that it read has changed before it was locked, a bounded number of times."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import tenacity
from sqlalchemy import Connection, exc

from moorage import errors
from moorage.messages.wire import Mutation
from moorage.service.stored_requests import StoredRequests

T = TypeVar("T")

#: With this many concurrent writers of one consumer, the last of them still succeeds.
TRIES = 20


class StaleRead(Exception):
    """A row has changed since this transaction read it; :func:`retry_on_stale_read` handles it, it is never sent."""


@contextmanager
def stale_if_taken() -> Iterator[None]:
    """Raise StaleRead if a concurrent transaction has written a row with the same key; a new transaction finds it."""
    try:
        yield
    except exc.IntegrityError as fault:
        raise StaleRead from fault


def retry_on_stale_read(transaction: Callable[[], T]) -> T:
    """Run a whole transaction, and run it again, after milliseconds of back-off, each time that it raises StaleRead.

    :raises ClaimContention: each of :data:`TRIES` transactions has read something stale.
    """
    try:
        return transaction()
    except StaleRead as fault:
        return _retried(fault, transaction)


def _retried(first: StaleRead, transaction: Callable[[], T]) -> T:
    """Run a transaction again after its first try, which counts; the retrier is built only here, for its cost."""
    failed = [first]

    def again() -> T:
        if failed:
            raise failed.pop()
        return transaction()

    tries = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(StaleRead),
        stop=tenacity.stop_after_attempt(TRIES),
        wait=tenacity.wait_random_exponential(multiplier=0.002, max=0.1),
        reraise=True,
    )
    try:
        return tries(again)
    except StaleRead as fault:
        raise errors.ClaimContention(tries=TRIES) from fault


def run_once(requests: StoredRequests, message: Mutation[T], work: Callable[[Connection], T]) -> T:
    """Carry out a request in one transaction that also stores its reply, or return the reply stored before.

    :param requests: where replies are stored, by request id.
    :param work: the part of the transaction that carries the request out and returns the reply.
    :raises ClaimContention: as in :func:`retry_on_stale_read`.
    """
    return retry_on_stale_read(lambda: requests.once_or_refused(message, work).result)
