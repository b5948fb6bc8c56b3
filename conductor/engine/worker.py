"""The worker threads: each drives an operation from step to step until it waits, is postponed or has ended."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from conductor.engine.acknowledgements import Acknowledgements
from conductor.engine.bulkheads import Bulkheads
from conductor.engine.operations import Operations
from conductor.engine.rows import batches
from conductor.engine.step_runs import StepRun, StepRuns
from conductor.engine.steps import Operation, Steps
from conductor.engine.waiting_steps import KeptPlace, Postponed, Queued, StepQueue, Wake
from moorage import context, errors, failpoints
from moorage.service import liveness
from moorage.service.process import Periodic
from moorage.thread_pool import ThreadOccupancy

LOG = logging.getLogger(__name__)

#: Seconds between two queries for due operations without a lease. Arbitrary: operations that begin here are queued in
#: memory, so the query finds only operations of a stopped or dead conductor, or of a lost connection.
SWEEP_SECONDS = 2.0
_SWEEP_LIMIT = 200
#: Seconds after which the threads count as stuck, if all are busy and none becomes free. Arbitrary: a step ends at the
#: latest with the time-out of its calls, but an operation may do several steps before it waits.
_STUCK_SECONDS = 180.0
#: Seconds for which a postponed step keeps its carried records. Arbitrary: under load it waits for less than a second.
_CARRIED_SECONDS = 5.0
#: The most steps that one thread does together. Arbitrary: half of what one message can carry.
_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class PostponedStep:
    """A step that waits for room in its bulkhead; called when there is room."""

    operation: Operation
    resume: Callable[[Operation, KeptPlace | None], None]

    def __call__(self, place: KeptPlace | None) -> None:
        """Continue the step, with the place that is kept for it, if any."""
        self.resume(self.operation, place)


class Worker:
    """A bounded number of threads for the operations of one schema.

    Its public methods raise ``StoreUnavailable`` if the records cannot be reached.

    :param service: the service name on log lines.
    """

    def __init__(
        self,
        operations: Operations,
        threads: int,
        service: str | None,
        bulkheads: Bulkheads,
        acknowledgements: Acknowledgements,
    ) -> None:
        self._acknowledgements = acknowledgements
        self._bulkheads = bulkheads
        self._operations = operations
        self._runs = StepRuns(operations, {}, acknowledgements)
        self._service = service
        self._changed = threading.Condition()
        self._queue = StepQueue()
        # Steps in progress that any thread may continue; the steps of one entry are continued together.
        self._under_way: deque[Sequence[StepRun]] = deque()
        # The operations in the queue or in a thread, which the sweep must skip.
        self._in_hand: Counter[str] = Counter()
        # The newest lease number of each of them. An older one was superseded: a message has begun its step anew.
        self._lease_numbers: dict[str, int] = {}
        self._orphans_checked_at = float("-inf")
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
        self._runs = StepRuns(self._operations, steps, self._acknowledgements)
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
        """Finish the steps in progress, then release all leases: other conductors take over the operations."""
        # First: the idle threads end at once, and the others one by one.
        for thread in self._threads:
            liveness.forget(thread)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        # The sweep takes no more operations from now on; what it has just taken is released below.
        self._sweep.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        # Only now: the leases of the steps in progress must be renewed until the steps end.
        self._renewal.stop()
        try:
            self._operations.release_all()
        except errors.MoorageError as fault:
            LOG.warning("The operations are free for other conductors only after their leases have expired: %s", fault)

    def check(self) -> None:
        """Check that some thread can take up an operation; a probe of the process's readiness.

        :raises Overloaded: all threads have been busy for a long time, each with one operation.
        """
        with self._changed:
            seconds = self._occupancy.seconds_stuck()
        if seconds > _STUCK_SECONDS:
            raise errors.Overloaded(reason=f"all threads for operations have been busy for {seconds:.0f} s")

    def enqueue(self, *operations: Operation | None) -> None:
        """Queue operations whose lease this conductor has; null is skipped."""
        with self._changed:
            for operation in operations:
                if operation is not None:
                    self._in_hand[operation.uuid] += 1
                    newest = max(operation.lease_number, self._lease_numbers.get(operation.uuid, 0))
                    self._lease_numbers[operation.uuid] = newest
                    self._queue.put(operation)
            self._changed.notify()

    def sweep(self) -> None:
        """Take the due operations whose lease is free, including all operations of dead conductors."""
        self._operations.restart_waits()
        # Operations that other conductors are taking or changing at this moment are left to the next sweep.
        for uuid in self._operations.due(_SWEEP_LIMIT, or_orphaned=self._includes_orphaned()):
            with self._changed:
                if self._ended:
                    return
                if uuid in self._in_hand:
                    continue
            if (operation := self._operations.take(uuid)) is not None:
                LOG.info("Continuing the %s of %s at step %s", operation.kind, operation.subject, operation.step)
                self.enqueue(operation)

    def _includes_orphaned(self) -> bool:
        """Return whether a sweep looks for operations whose leases this conductor has and that it does not hold.

        Such a sweep reads all operations that it holds: if there are many, it is done only from time to time.
        """
        at = time.monotonic()
        looks = len(self._in_hand) <= _SWEEP_LIMIT or at - self._orphans_checked_at > self._operations.lease_seconds / 3
        if looks:
            self._orphans_checked_at = at
        return looks

    def renew(self) -> None:
        """Renew the leases of all operations in the queue or in a thread."""
        with self._changed:
            held = list(self._in_hand)
        for uuids in batches(held):
            self._operations.renew(uuids)

    def _run(self) -> None:
        with context.bound(service=self._service):
            while (runs := self._next()) is not None:
                try:
                    while runs:
                        runs = self._resume_runs(runs)
                finally:
                    with self._changed:
                        self._occupancy.free()
                # A refused step has recorded the reason by now: the next step for its destination can be refused.
                self._bulkheads.wake()

    def _next(self) -> Sequence[StepRun] | None:
        """Wait for steps to continue, or for due steps, and begin these; return null when stopped."""
        with self._changed:
            # Steps in progress are finished even if the worker is stopped.
            while not self._under_way:
                wait = self._queue.seconds_to_next()
                if self._ended:
                    return None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                elif due := self._take_due():
                    self._occupancy.take()
                    break
            else:
                self._occupancy.take()
                return self._under_way.popleft()
        return self._runs.begin(due)

    def _take_due(self) -> list[Queued]:
        """Take a due operation from the queue, and those after it whose steps may be done together with its own.

        Nothing is returned if messages have begun the steps of all of them anew.
        """
        taken = self._queue.take(self._runs.may_go_together, _TOGETHER)
        due = [(operation, place) for operation, place in taken if not self._drop_if_superseded(operation, place)]
        if due and (place := due[0][1]) is not None:
            first, most = due[0][0], _TOGETHER - len(due)

            def may_join(wake: Wake) -> bool:
                return isinstance(wake, PostponedStep) and self._runs.may_go_together(first, wake.operation)

            # Otherwise the calls of steps that have waited would be made one by one.
            also = [wake.operation for wake in place.take_along(may_join, most) if isinstance(wake, PostponedStep)]
            due += [
                (self._for_resumption(operation), None)
                for operation in also
                if not self._drop_if_superseded(operation, None)
            ]
        # Several operations may have been queued at once, but only one thread was woken: wake another one.
        if self._queue.seconds_to_next() is not None:
            self._changed.notify()
        return due

    def _resume_runs(self, runs: Sequence[StepRun]) -> list[StepRun]:
        """Continue steps, or begin the steps that follow them; return the steps that this thread must continue."""
        needing: list[StepRun] = []
        following: list[Operation] = []
        for run in runs:
            try:
                if run.resume():
                    needing.append(run)
                elif run.following is None:
                    self._let_go(run.operation)
                else:
                    following.append(run.following)
            except Postponed as postponed:
                # The thread is free for other steps; the operation is queued again when there is room.
                postponed.register(PostponedStep(run.operation, self._resume))
        here = [] if needing else self._keep_first(following)
        with self._changed:
            for operation in following:
                if operation not in here:
                    self._queue.put(operation)
            self._changed.notify()
        return self._runs.fulfil(needing, self._leave) if needing else self._runs.begin([(each, None) for each in here])

    def _keep_first(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations whose next steps this thread does at once: the first, and those that may join it."""
        # A stopping worker begins no more steps.
        ready = [operation for operation in operations if not operation.delay and not self._ended]
        return ready[:1] + [other for other in ready[1:] if self._runs.may_go_together(ready[0], other)]

    def _let_go(self, operation: Operation) -> None:
        with self._changed:
            self._in_hand[operation.uuid] -= 1
            # A Counter keeps keys whose count is 0: delete the key.
            if not self._in_hand[operation.uuid]:
                del self._in_hand[operation.uuid], self._lease_numbers[operation.uuid]

    def _leave(self, runs: Sequence[StepRun]) -> None:
        """Leave steps in progress to another thread."""
        with self._changed:
            self._under_way.append(runs)
            self._changed.notify()

    def _resume(self, operation: Operation, place: KeptPlace | None) -> None:
        if not self._drop_if_superseded(operation, place):
            with self._changed:
                self._queue.put(self._for_resumption(operation), place)
                self._changed.notify()

    def _drop_if_superseded(self, operation: Operation, place: KeptPlace | None) -> bool:
        """Let go of an operation whose step a message has begun anew, and of its place; return whether this is so."""
        dropped = operation.lease_number < self._lease_numbers[operation.uuid]
        if dropped:
            self._let_go(operation)
            if place is not None:
                place.give_back()
        return dropped

    @staticmethod
    def _for_resumption(operation: Operation) -> Operation:
        # The step was postponed before it sent anything. Its carried records are dropped after a longer wait, because
        # others may have changed the records meanwhile.
        waited = time.monotonic() - operation.taken_at
        carried = operation.carried if waited < _CARRIED_SECONDS else None
        return replace(operation, delay=0.0, carried=carried)
