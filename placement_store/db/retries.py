"""What was read has changed before it could be locked: the answer is a new transaction, a bounded number of times."""

from collections.abc import Callable
from typing import TypeVar

import tenacity

from moorage import errors

T = TypeVar("T")

#: With this many writers of one consumer at once, the last of them still comes through.
TRIES = 20


class Moved(Exception):
    """A row is no longer what it was when this transaction read it; never leaves this folder."""


def until_settled(transaction: Callable[[], T]) -> T:
    """Run a whole transaction, and again with milliseconds of back-off each time that it finds something moved.

    :raises ClaimContention: others were faster every time.
    """
    tries = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Moved),
        stop=tenacity.stop_after_attempt(TRIES),
        wait=tenacity.wait_random_exponential(multiplier=0.002, max=0.1),
        reraise=True,
    )
    try:
        return tries(transaction)
    except Moved as fault:
        raise errors.ClaimContention(tries=TRIES) from fault
