"""Shared transactions: what several threads read or write while one transaction is under way stands in the next one."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from moorage import context, errors, failpoints
from moorage.batches import Batches, BatchItem

T = TypeVar("T")
R = TypeVar("R")

#: The most values of one transaction. Arbitrary: all of them wait for its slowest statement, and hold its locks.
_TOGETHER = 32


class SharedTransactions(Generic[T, R]):
    """Carry out one kind of reading or writing, each value alone or together with those of other threads.

    :param run: :meth:`~moorage.db.database.Database.read` or :meth:`~moorage.db.database.Database.write`.
    :param work: the transaction. It returns for each value its result, or the error that is this value's own: for that
        one nothing is written. An error that it raises undoes everything; then each value is carried out alone. It
        locks rows in one order, whatever the order of the values.
    """

    def __init__(
        self,
        run: Callable[[Callable[[Connection], Any]], Any],
        work: Callable[[Connection, Sequence[T]], Sequence[R | Exception]],
    ) -> None:
        self._run = run
        self._work = work
        self._batches: Batches[T, R] = Batches(self._carry_out, _TOGETHER)

    def do(self, value: T) -> R:
        """Carry out one value, and return its result.

        :raises Exception: the error of this value, or of a transaction with this value alone.
        """
        return self._batches.do(value)

    def _carry_out(self, batch: Sequence[BatchItem[T, R]]) -> None:
        # At the failpoints of a drill each request stands for itself.
        if len(batch) > 1 and not failpoints.are_observed() and self._together(batch):
            return
        for item in batch:
            item.do(self._alone)

    def _together(self, batch: Sequence[BatchItem[T, R]]) -> bool:
        """Carry out several values in one transaction; return False if one of them is in the way of the others."""
        deadlines = [item.context.deadline for item in batch if item.context.deadline is not None]
        try:
            # A late request is to write nothing: the transaction has the earliest deadline of all.
            with context.bound(deadline=min(deadlines, default=None)):
                outcomes = self._transaction([item.value for item in batch])
        except (errors.StoreUnavailable, errors.Overloaded):
            raise  # to each of them: alone they would wait for the database one after another
        except Exception:  # noqa: BLE001 - alone each gets the error that is its own
            return False
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                item.fail(outcome)
            else:
                item.succeed(outcome)
        return True

    def _alone(self, value: T) -> R:
        [outcome] = self._transaction([value])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _transaction(self, values: Sequence[T]) -> Sequence[R | Exception]:
        found: Sequence[R | Exception] = self._run(lambda connection: self._work(connection, values))
        return found
