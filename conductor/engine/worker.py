"""The worker threads: each drives an operation from step to step until it waits, is postponed or has ended."""

import heapq
import itertools
import logging
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial

from conductor.engine import bulkheads
from conductor.engine.acknowledgements import Acknowledgements
from conductor.engine.bulkheads import Bulkheads, KeptPlace, Postponed
from conductor.engine.operations import Operations
from conductor.engine.step_counts import counted
from conductor.engine.steps import CommitStep, Operation, Retry, Steps, Superseded
from moorage import context, errors, failpoints
from moorage.occupancy import ThreadOccupancy
from moorage.service import liveness
from moorage.service.process import Periodic

LOG = logging.getLogger(__name__)

#: Seconds between two queries for due operations without a lease. Arbitrary: operations that begin here are queued in
#: memory, so the query finds only those of a stopped or dead conductor, or of a lost connection.
SWEEP_SECONDS = 2.0
_SWEEP_LIMIT = 200
#: The most operations in one statement. Arbitrary: no database refuses a statement of that length.
_RENEWED_AT_ONCE = 1000
#: Seconds after which threads that are all busy, and of which none becomes free, count as stuck. Arbitrary: a step ends
#: with the time-out of its calls, but an operation may have several steps before it waits.
_STUCK_SECONDS = 180.0
#: Seconds for which a postponed step keeps what is carried to it. Arbitrary: under load it waits for less than one.
_CARRIED_SECONDS = 5.0


class Worker:
    """A bounded number of threads for the operations of one schema.

    Where it is called, it raises ``StoreUnavailable`` if the records cannot be reached.

    :param service: the service name on log lines.
    :param bulkheads: the bulkheads of the destinations that steps call.
    :param acknowledgements: notes when the answers to a step's requests are on record.
    """

    def __init__(
        self,
        operations: Operations,
        threads: int,
        service: str | None,
        bulkheads: Bulkheads,
        acknowledgements: Acknowledgements | None = None,
    ) -> None:
        self._acknowledgements = acknowledgements
        self._bulkheads = bulkheads
        self._operations = operations
        self._steps: Steps = {}
        self._service = service
        self._changed = threading.Condition()
        # A heap by due time (monotonic clock), then by order of arrival. An operation for which a place is kept at the
        # destination of its step is due at once: until it goes on, nobody uses the place.
        self._queue: list[tuple[float, int, Operation, KeptPlace | None]] = []
        self._arrivals = itertools.count()
        # The operations in the queue or in a thread, which the sweep must skip.
        self._in_hand: Counter[str] = Counter()
        self._ended = False
        self._occupancy = ThreadOccupancy(threads)
        self._threads = [
            threading.Thread(target=self._run, name=f"operations-{number}", daemon=True) for number in range(threads)
        ]
        lease = operations.lease_seconds
        self._sweep = Periodic("operations", self.sweep, min(SWEEP_SECONDS, lease / 2))
        # Three renewals per lease time: two of them may fail.
        self._renewal = Periodic("leases", self.renew, lease / 3)

    def start(self, steps: Steps) -> None:
        """Start to work, first on the operations that are due.

        :param steps: the function for each kind and step. A step that raises an error is retried after a back-off.
        """
        self._steps = steps
        self._operations.restrict_to(steps.keys())
        for kind, step in steps:
            failpoints.declare("step", kind, step)
        self._operations.release_former()
        for thread in self._threads:
            thread.start()
            liveness.watch(thread)
        self._sweep.start()
        self._renewal.start()

    def stop(self) -> None:
        """Finish the steps under way, then release all leases: other conductors take over the operations."""
        self._sweep.stop()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            liveness.forget(thread)
            if thread.is_alive():
                thread.join()
        # Not before: the leases of the steps under way must be renewed until they end.
        self._renewal.stop()
        try:
            self._operations.release_all()
        except errors.MoorageError as fault:
            LOG.warning("Operations are free for others only when their leases have run out: %s", fault)

    def check(self) -> None:
        """Check that some thread can take up an operation; a probe of the process's readiness.

        :raises Overloaded: all threads have been busy for a long time, each with one operation.
        """
        with self._changed:
            seconds = self._occupancy.seconds_stuck()
        if seconds > _STUCK_SECONDS:
            raise errors.Overloaded(reason=f"all threads for operations have been busy for {seconds:.0f} s")

    def take_up(self, *operations: Operation | None) -> None:
        """Queue operations whose lease this conductor has; null is skipped."""
        with self._changed:
            for operation in operations:
                if operation is not None:
                    self._in_hand[operation.uuid] += 1
                    self._put(operation)

    def sweep(self) -> None:
        """Take the due operations whose lease nobody has."""
        self._operations.restart_waits()
        with self._changed:
            held = set(self._in_hand)
        for uuid in self._operations.due(held, _SWEEP_LIMIT):
            with self._changed:
                if self._in_hand[uuid] or self._ended:
                    continue
            if (operation := self._operations.take(uuid)) is not None:
                LOG.info("Going on with the %s of %s at step %s", operation.kind, operation.subject, operation.step)
                self.take_up(operation)

    def renew(self) -> None:
        """Renew the leases of all operations in the queue or in a thread."""
        with self._changed:
            held = list(self._in_hand)
        for start in range(0, len(held), _RENEWED_AT_ONCE):
            self._operations.renew(held[start : start + _RENEWED_AT_ONCE])

    def _put(self, operation: Operation, place: KeptPlace | None = None) -> None:
        due = time.monotonic() + operation.delay if place is None else float("-inf")
        heapq.heappush(self._queue, (due, next(self._arrivals), operation, place))
        self._changed.notify()

    def _run(self) -> None:
        with context.bound(service=self._service):
            while (following := self._next()) is not None:
                operation, place = following
                try:
                    with context.bound(request_id=operation.request_id):
                        self._drive(operation, place)
                finally:
                    with self._changed:
                        self._occupancy.free()
                # A step that was told why it waits has recorded that: the next one can be told.
                self._bulkheads.wake()

    def _next(self) -> tuple[Operation, KeptPlace | None] | None:
        with self._changed:
            while not self._ended:
                wait = self._queue[0][0] - time.monotonic() if self._queue else None
                if wait is not None and wait <= 0:
                    self._occupancy.take()
                    return heapq.heappop(self._queue)[2:]
                self._changed.wait(wait)
        return None

    def _drive(self, operation: Operation, place: KeptPlace | None) -> None:
        following: Operation | None = operation
        while following is not None:
            current = following
            try:
                with failpoints.within("step", current.kind, current.step), bulkheads.step(current.tries, place):
                    following = self._step(current)
                place = None
            except Postponed as postponed:
                # The thread is free; the operation stays held, and is queued again when there is room.
                postponed.register(partial(self._resume, current))
                return
            # Go on in this thread, unless the next step must wait; a stopping worker begins no further step.
            if following is not None and (following.delay > 0 or self._ended):
                break
        with self._changed:
            if following is not None:
                self._put(following)
                return
            self._in_hand[operation.uuid] -= 1
            self._in_hand += Counter()  # drops the keys that have become 0

    def _resume(self, operation: Operation, place: KeptPlace | None) -> None:
        # Postponed before it has sent anything. What is carried stays what it was where nobody else has changed the
        # records; after a longer wait they are read again, since others may have.
        waited = time.monotonic() - operation.taken_at
        carried = operation.carried if waited < _CARRIED_SECONDS else None
        with self._changed:
            self._put(replace(operation, delay=0.0, carried=carried), place)

    def _step(self, operation: Operation) -> Operation | None:
        """Do one step and record its outcome; return the operation with its next step, or null."""
        try:
            if (operation.kind, operation.step) not in self._steps:
                # A message has redirected the operation at a step that a newer release has recorded.
                LOG.info("The %s of %s is left to a newer release", operation.kind, operation.subject)
                self._operations.release(operation)
                return None
            # The process may have been paused for longer than its lease: make sure that the operation is still ours.
            current = self._operations.take_again(operation) if self._operations.is_stale(operation) else operation
            return None if current is None else self._run_and_commit(current)
        except Superseded:
            LOG.debug("Step %s of the %s of %s was overtaken", operation.step, operation.kind, operation.subject)
            return None
        except Postponed:
            raise
        except errors.MoorageError as fault:
            LOG.warning("Step %s of %s cannot be recorded: %s", operation.step, operation.subject, fault)
        except Exception:  # the thread must survive any error of one operation
            LOG.exception("Step %s of %s cannot be recorded", operation.step, operation.subject)
        # It is unknown whether the outcome was recorded. Repeated, the step sends the same requests, and is recorded or
        # found superseded.
        return replace(operation, delay=self._operations.backoff.seconds(1), resumed=True, carried=None)

    def _run_and_commit(self, operation: Operation) -> Operation | None:
        failpoints.reached("begin")
        if self._acknowledgements is not None:
            self._acknowledgements.begin()
        with counted(operation) as count:
            commit = self._run_step(operation)
            failpoints.reached("done")
            following = self._operations.advance(operation, commit, count.note)
        # A step that is retried sends the same requests again: their answers must be kept.
        if self._acknowledgements is not None and (following is None or not following.tries):
            self._acknowledgements.recorded()
        return following

    def _run_step(self, operation: Operation) -> CommitStep:
        try:
            return self._steps[operation.kind, operation.step](operation)
        except Superseded:
            # Another one has just changed the operation too, or is about to: recording this detects it.
            reason = "what it is about has changed meanwhile"
        except Postponed:
            raise
        except errors.MoorageError as fault:
            reason = str(fault)
            LOG.warning("Step %s of %s is to be repeated: %s", operation.step, operation.subject, reason)
        except Exception as fault:
            reason = f"an unexpected fault ({type(fault).__name__}), see the log"
            LOG.exception("Step %s of %s has failed and is to be repeated", operation.step, operation.subject)
        return lambda _connection: Retry(reason)
