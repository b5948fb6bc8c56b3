"""The endpoint of decisions."""

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from moorage import errors, metrics
from moorage.batches import BatchItem
from moorage.bus.bus import serves, serves_many
from moorage.messages import SelectDestinations
from moorage.service.stored_requests import StoredRequests
from scheduler.decide.claim_writer import ClaimWriter
from scheduler.decide.environment import DecisionEnvironment
from scheduler.decide.in_flight import InFlight
from scheduler.decide.plugin_failures import FailureCounts
from scheduler.decide.selections import Selections
from scheduler.decide.shared_decisions import DecideAlone, SharedDecisions


class DecisionEndpoint:
    """Serve ``select_destinations``, alone or with others of the same message, and count the decisions."""

    def __init__(
        self, environment: DecisionEnvironment, requests: StoredRequests, failure_counts: FailureCounts
    ) -> None:
        self._shared = SharedDecisions(environment, ClaimWriter(requests, environment.names))
        self._failure_counts = failure_counts
        self.in_flight = InFlight()

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> Selections:
        """Answer :class:`~moorage.messages.SelectDestinations`; see :func:`.destinations.select` for its errors."""
        return self._run_timed(lambda: self._shared.select(message))

    @serves_many(SelectDestinations)
    def select_many(self, calls: Sequence[BatchItem[SelectDestinations, Selections]]) -> list[DecideAlone | None]:
        """Answer requests that came in one message; see :meth:`.SharedDecisions.select_many`."""
        began = time.perf_counter()
        with self.in_flight.counted(len(calls)):
            alone = self._shared.select_many(calls)
        seconds = time.perf_counter() - began
        for call in calls:
            if call.is_done:
                metrics.DECISION_SECONDS.observe(seconds)
                with suppress(Exception):
                    self._run_and_count(call.outcome)
        return [None if decide is None else partial(self._run_timed, decide) for decide in alone]

    def _run_timed(self, decide: DecideAlone) -> Selections:
        with self.in_flight.counted(), metrics.DECISION_SECONDS.time():
            return self._run_and_count(decide)

    def _run_and_count(self, decide: DecideAlone) -> Selections:
        """Return the outcome of a decision, or raise its error, and count it."""
        result = metrics.FAULT
        try:
            answer = decide()
            result = metrics.OK
        except errors.MoorageError as fault:
            result = fault.code
            if isinstance(fault, errors.NoValidHost):
                self._failure_counts.request_decided()
            raise
        finally:
            metrics.DECISIONS.labels(result).inc()
        self._failure_counts.request_decided()
        return answer
