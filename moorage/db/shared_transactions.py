"""Shared transactions: what several threads read or write while one transaction is under way stands in the next one."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from moorage import context, errors, failpoints
from moorage.batches import Batches, BatchItem

T = TypeVar("T")
R = TypeVar("R")

#: The most values of one transaction. Arbitrary: all of them wait for its slowest statement, and hold its locks.
_TOGETHER = 32
#: Seconds that a transaction may take while others wait for its end. As long as a row lock is waited for: values that
#: need a row which somebody keeps then wait for it alone, and hold nobody up.
_PATIENCE = 2.0


class Alone(Exception):
    """A value is to be carried out by its own thread, at the same time as others."""


class SharedTransactions(Generic[T, R]):
    """Carry out one kind of reading or writing, each value alone or together with those of other threads.

    :param run: :meth:`~moorage.db.database.Database.read` or :meth:`~moorage.db.database.Database.write`.
    :param work: the transaction. It returns for each value its result, or the error that is this value's own: for that
        one nothing is written; :class:`Alone` is for one that cannot go with the others. An error that it raises undoes
        everything; then each value is carried out alone. It locks rows in one order, whatever the order of the values.
    :param kind: what they are, as metrics name it.
    """

    def __init__(
        self,
        run: Callable[[Callable[[Connection], Any]], Any],
        work: Callable[[Connection, Sequence[T]], Sequence[R | Exception]],
        kind: str = "other",
    ) -> None:
        self._run = run
        self._work = work
        self._batches: Batches[T, R] = Batches(self._carry_out, _TOGETHER, kind)

    def do(self, value: T) -> R:
        """Carry out one value, alone or together with those of other threads, and return its result.

        :raises Exception: the error of this value, or of a transaction with this value alone.
        """
        try:
            return self._batches.do(value)
        except Alone:
            return self.alone(value)

    def do_many(self, items: Sequence[BatchItem[T, R]]) -> list[Callable[[], R] | None]:
        """Carry out several values together with those of other threads, and give each item its result or its error.

        :return: for a value that is to be carried out alone, the function that does so; null for the others.
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
        # At the failpoints of a drill each request stands for itself.
        outcomes = [Alone()] * len(batch) if failpoints.are_observed() else self._outcomes(batch)
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                item.fail(outcome)
            else:
                item.succeed(outcome)

    def _outcomes(self, batch: Sequence[BatchItem[T, R]]) -> Sequence[R | Exception]:
        """Carry out values in one transaction; return for each its result, its error, or that it is to be alone."""
        deadlines = [item.context.deadline for item in batch if item.context.deadline is not None]
        if not failpoints.are_armed():  # a transaction that is held up in a drill is not held up by a row
            deadlines.append(time.monotonic() + _PATIENCE)
        try:
            # A late request is to write nothing: the transaction has the earliest deadline of all.
            with context.bound(deadline=min(deadlines, default=None)):
                return self._transaction([item.value for item in batch])
        except errors.StoreUnavailable:
            raise  # to each of them: alone they would wait for the database one after another
        except Exception as fault:  # noqa: BLE001 - alone each gets the error that is its own
            if len(batch) > 1 or isinstance(fault, errors.Overloaded | errors.DeadlineExceeded):
                return [Alone()] * len(batch)
            return [fault]

    def alone(self, value: T) -> R:
        """Carry out one value in a transaction of its own, and return its result.

        :raises Exception: the error of this value.
        """
        [outcome] = self._transaction([value])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _transaction(self, values: Sequence[T]) -> Sequence[R | Exception]:
        found: Sequence[R | Exception] = self._run(lambda connection: self._work(connection, values))
        return found
