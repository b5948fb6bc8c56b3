"""Bound the searches of one request by steps and processor time, shared by all hosts that are searched."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from moorage import errors

#: The most states that the searches of one request visit together. Arbitrary, like the next number: a search for a
#: packing may take longer than any client waits, so it needs some bound.
STEPS = 250_000
#: Seconds of processor time for the searches of one request together. Reading the store is not counted.
SECONDS = 5.0
#: The memory of the searches of one request together: a state counts one for each provider and each variable.
CELLS = 1_000_000
#: The clock is read once per this number of checks: reading it costs as much as the work between two checks of a small
#: host.
_CHECKS_PER_READING = 8


class SearchBudget:
    """Count the steps and the processor time of searches, and end them once either is used up.

    Only the time of the searching thread counts, and no other work on the machine.

    :param what: the object of the search, for the error.
    :param narrow: advice for a request that could be answered.
    :param within: a larger budget that is charged as well.
    """

    def __init__(
        self,
        what: str = "allocation candidates",
        *,
        steps: int = STEPS,
        seconds: float = SECONDS,
        narrow: str = errors.SearchBoundReached.narrow,
        within: "SearchBudget | None" = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._what = what
        self._most_steps = steps
        self._most_seconds = seconds
        self._narrow = narrow
        self._within = within
        self._clock = clock
        self._steps = 0
        self._cells = 0
        self._checks = 0
        self._before = 0.0
        self._since: float | None = None

    def slice(self, share: float) -> "SearchBudget":
        """Return a budget of this share of the time that is left; its use counts against this budget as well."""
        left = max(0.0, self._most_seconds - self.seconds)
        return SearchBudget(self._what, seconds=left * share, narrow=self._narrow, within=self, clock=self._clock)

    @property
    def seconds(self) -> float:
        """The processor time used so far."""
        return self._before + (0.0 if self._since is None else self._clock() - self._since)

    @property
    def is_spent(self) -> bool:
        """True if a search would be ended at its next step."""
        return self._steps >= self._most_steps or self.seconds >= self._most_seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the processor time of this thread until exit; nested uses count it once."""
        if self._since is not None:
            yield
            return
        with nullcontext() if self._within is None else self._within.running():
            self._since = self._clock()
            try:
                yield
            finally:
                self._before, self._since = self.seconds, None

    def take_step(self) -> None:
        """Count one state.

        :raises SearchBoundReached: the budget is used up.
        """
        if self._steps >= self._most_steps:
            raise self._used_up()
        self._steps += 1
        if self._within is not None:
            self._within.take_step()
        self.check()

    def check(self) -> None:
        """Compare the processor time with its limit; called within work on one state that may take long.

        :raises SearchBoundReached: the budget is used up.
        """
        if self._within is not None:
            self._within.check()
        self._checks += 1
        if self._checks % _CHECKS_PER_READING:
            return
        if self.seconds >= self._most_seconds:
            raise self._used_up()

    def may_remember(self, cells: int) -> bool:
        """Count a state that is to be remembered; return whether the memory of the request has room for it."""
        if self._within is not None:
            return self._within.may_remember(cells)
        self._cells += cells
        return self._cells <= CELLS

    def _used_up(self) -> errors.SearchBoundReached:
        return errors.SearchBoundReached(what=self._what, steps=self._steps, narrow=self._narrow)
