"""Shared transactions: while one is in progress, the reads or writes of other threads wait for the next one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from moorage import context, errors, failpoints
from moorage.batches import Batches, BatchItem

T = TypeVar("T")
R = TypeVar("R")

#: The most values of one transaction. Arbitrary: all of them wait for its slowest statement, and hold its locks.
_TOGETHER = 32
#: Seconds that a transaction may take while others wait for it: as long as the wait for a row lock. After that each
#: value is carried out alone, so that a value that waits for a locked row does not delay the others.
PATIENCE = 2.0


class Alone(Exception):
    """A value must be carried out by its own thread, in a separate transaction."""


class SharedTransactions(Generic[T, R]):
    """Carry out one kind of read or write, each value alone or together with values of other threads.

    :param run: :meth:`~moorage.db.database.Database.read` or :meth:`~moorage.db.database.Database.write`.
    :param work: the transaction. For each value it returns the result, or an error of this value alone, for which it
        writes nothing; :class:`Alone` means that the value cannot share the transaction. If it raises an error,
        everything is rolled back, and each value is carried out alone. It must lock rows in one order, whatever the
        order of the values.
    :param kind: the kind of values, as metrics name it.
    """

    def __init__(
        self,
        run: Callable[[Callable[[Connection], Any]], Any],
        work: Callable[[Connection, Sequence[T]], Sequence[R | Exception]],
        kind: str = "other",
    ) -> None:
        self._run = run
        self._work = work
        self._batches: Batches[T, R] = Batches(self._carry_out, _TOGETHER, kind, refuse_late=True)

    def do(self, value: T) -> R:
        """Carry out one value, alone or together with values of other threads, and return its result.

        :raises Exception: the error of this value, or of a transaction with this value alone.
        """
        try:
            return self._batches.do(value)
        except Alone:
            return self.alone(value)

    def do_many(self, items: Sequence[BatchItem[T, R]]) -> list[Callable[[], R] | None]:
        """Carry out several values together with values of other threads, and set the result or error of each item.

        :return: for each value None, or, if it must be carried out alone, a function that does so.
        """
        shared: list[BatchItem[T, R]] = [BatchItem(item.value, item.context) for item in items]
        self._batches.do_all(shared)
        alone: list[Callable[[], R] | None] = []
        for item, done in zip(items, shared, strict=True):
            alone.append(None)
            try:
                item.succeed(done.outcome())
            except Alone:
                alone[-1] = partial(self.alone, item.value)
            except Exception as fault:  # noqa: BLE001 - it is this item's outcome
                item.fail(fault)
        return alone

    def _carry_out(self, batch: Sequence[BatchItem[T, R]]) -> None:
        # The failpoints of a drill act on single requests.
        outcomes = [Alone()] * len(batch) if failpoints.are_observed() else self._outcomes(batch)
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                item.fail(outcome)
            else:
                item.succeed(outcome)

    def _outcomes(self, batch: Sequence[BatchItem[T, R]]) -> Sequence[R | Exception]:
        """Carry out values in one transaction; return for each its result, its error, or :class:`Alone`."""
        deadlines = [item.context.deadline for item in batch if item.context.deadline is not None]
        if not failpoints.are_armed():  # in a drill, a failpoint may delay a transaction, not a row lock
            deadlines.append(time.monotonic() + PATIENCE)
        try:
            # A late request must not write anything, so the transaction has the earliest of all deadlines; but not that
            # of this thread's own request, which may have been refused because it was too late.
            with context.adopted(replace(context.current(), deadline=min(deadlines, default=None))):
                return self._transaction([item.value for item in batch])
        except errors.StoreUnavailable:
            raise  # every item gets this error: alone, the items would wait for the database one after another
        except Exception as fault:  # noqa: BLE001 - carried out alone, each item gets its own error
            if len(batch) > 1 or isinstance(fault, errors.Overloaded | errors.DeadlineExceeded):
                return [Alone()] * len(batch)
            return [fault]

    def alone(self, value: T) -> R:
        """Carry out one value in a separate transaction, and return its result.

        :raises Exception: the error of this value.
        """
        [outcome] = self._transaction([value])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _transaction(self, values: Sequence[T]) -> Sequence[R | Exception]:
        found: Sequence[R | Exception] = self._run(lambda connection: self._work(connection, values))
        return found
