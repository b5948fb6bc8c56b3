"""The threads that drive operations: each does one step after the other until the operation waits or has ended."""

import heapq
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from conductor.engine import bulkheads
from conductor.engine.acknowledgements import Acknowledgements
from conductor.engine.bulkheads import Bulkheads, Postponed
from conductor.engine.operations import Operations
from conductor.engine.steps import CommitStep, Operation, Retry, Step, Superseded
from moorage import context, errors, failpoints
from moorage.service.process import Periodic

LOG = logging.getLogger(__name__)

#: Seconds between two looks at the records for operations that nobody has in hand. Arbitrary: what is begun here is
#: handed over in memory, so this finds only what a stopped or dead conductor has left, or a lost connection.
SWEEP_SECONDS = 2.0
_SWEEP_LIMIT = 200
#: Arbitrary: a statement that no database finds too long.
_RENEWED_AT_ONCE = 1000


class Worker:
    """A bounded number of threads for the operations of one schema.

    :param steps: for each kind and step, the function that does it. A step that raises is done again after a while.
    :param service: the name that log lines carry.
    :param bulkheads: of the destinations that steps call.
    :param acknowledgements: is told when the answers to a step's requests are on record.
    """

    def __init__(
        self,
        operations: Operations,
        steps: Mapping[tuple[str, str], Step],
        threads: int,
        service: str | None,
        bulkheads: Bulkheads,
        acknowledgements: Acknowledgements | None = None,
    ) -> None:
        self._acknowledgements = acknowledgements
        self._bulkheads = bulkheads
        self._operations = operations
        self._steps = steps
        operations.take_only(steps.keys())
        for kind, step in steps:
            failpoints.declare("step", kind, step)
        self._service = service
        self._changed = threading.Condition()
        # When to be done, by the monotonic clock; then in the order of arrival.
        self._queue: list[tuple[float, int, Operation]] = []
        self._arrivals = itertools.count()
        # Operations in the queue or in a thread's hands: the sweep leaves them alone.
        self._held: Counter[str] = Counter()
        self._ended = False
        self._threads = [
            threading.Thread(target=self._run, name=f"operations-{number}", daemon=True) for number in range(threads)
        ]
        lease = operations.lease_seconds
        self._sweep = Periodic("operations", self.sweep, min(SWEEP_SECONDS, lease / 2))
        # Three signs of life in the time of a lease: two of them may be lost.
        self._renewal = Periodic("leases", self.renew, lease / 3)

    def start(self) -> None:
        """Begin to work, first on what the records say is due.

        :raises StoreUnavailable: the records cannot be reached.
        """
        self._operations.adopt()
        for thread in self._threads:
            thread.start()
        self._sweep.start()
        self._renewal.start()

    def stop(self) -> None:
        """Do the steps under way to their end; everything else stays on record, free for another conductor."""
        self._sweep.stop()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        # The steps that were under way had their leases renewed to their end.
        self._renewal.stop()
        try:
            self._operations.let_go()
        except errors.MoorageError as fault:
            LOG.warning("Operations are free for others only when their leases have run out: %s", fault)

    def take_up(self, *operations: Operation | None) -> None:
        """Work on operations that this conductor has taken."""
        with self._changed:
            for operation in operations:
                if operation is not None:
                    self._held[operation.uuid] += 1
                    self._put(operation)

    def sweep(self) -> None:
        """Take what is due and in nobody's hands.

        :raises StoreUnavailable: the records cannot be reached.
        """
        with self._changed:
            held = set(self._held)
        for uuid in self._operations.due(held, _SWEEP_LIMIT):
            with self._changed:
                if self._held[uuid] or self._ended:
                    continue
            if (operation := self._operations.take(uuid)) is not None:
                LOG.info("Going on with the %s of %s at step %s", operation.kind, operation.subject, operation.step)
                self.take_up(operation)

    def renew(self) -> None:
        """Renew the leases of all that is in hand, however long a step takes.

        :raises StoreUnavailable: the records cannot be reached.
        """
        with self._changed:
            held = list(self._held)
        for start in range(0, len(held), _RENEWED_AT_ONCE):
            self._operations.renew(held[start : start + _RENEWED_AT_ONCE])

    def _put(self, operation: Operation) -> None:
        heapq.heappush(self._queue, (time.monotonic() + operation.delay, next(self._arrivals), operation))
        self._changed.notify()

    def _run(self) -> None:
        with context.bound(service=self._service):
            while (operation := self._next()) is not None:
                with context.bound(request_id=operation.request_id):
                    self._drive(operation)
                # What it was to call, it may have found unneeded: its place is free for the next one.
                self._bulkheads.wake()

    def _next(self) -> Operation | None:
        with self._changed:
            while not self._ended:
                wait = self._queue[0][0] - time.monotonic() if self._queue else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._queue)[2]
                self._changed.wait(wait)
        return None

    def _drive(self, operation: Operation) -> None:
        following: Operation | None = operation
        while following is not None:
            current = following
            try:
                with failpoints.within("step", following.kind, following.step), bulkheads.step(following.tries):
                    following = self._step(current)
            except Postponed as postponed:
                postponed.register(partial(self._resume, current))
                return
            if following is not None and (following.delay > 0 or self._ended):
                break
        with self._changed:
            if following is not None:
                self._put(following)
                return
            self._held[operation.uuid] -= 1
            self._held += Counter()  # drops those that are held no more

    def _resume(self, operation: Operation) -> None:
        with self._changed:
            self._put(replace(operation, delay=0.0))

    def _step(self, operation: Operation) -> Operation | None:
        """Do one step and record what came of it; return what is to be done next."""
        try:
            if (operation.kind, operation.step) not in self._steps:
                # A message has moved it without changing its step, which a newer release has written.
                LOG.info("The %s of %s is left to a newer release", operation.kind, operation.subject)
                self._operations.leave(operation)
                return None
            current = self._operations.keep(operation) if self._operations.is_old(operation) else operation
            return None if current is None else self._do_and_record(current)
        except Superseded:
            LOG.debug("Step %s of the %s of %s was overtaken", operation.step, operation.kind, operation.subject)
            return None
        except Postponed:
            raise
        except errors.MoorageError as fault:
            LOG.warning("Step %s of %s cannot be recorded: %s", operation.step, operation.subject, fault)
        except Exception:  # the thread must outlive whatever one operation meets
            LOG.exception("Step %s of %s cannot be recorded", operation.step, operation.subject)
        # Whether it was recorded is unknown. Done again it changes nothing, and is recorded or found superseded.
        return replace(operation, delay=self._operations.backoff.seconds(1), resumed=True)

    def _do_and_record(self, operation: Operation) -> Operation | None:
        failpoints.reached("begin")
        if self._acknowledgements is not None:
            self._acknowledgements.begin()
        record = self._done(operation)
        failpoints.reached("done")
        following = self._operations.advance(operation, record)
        # A step that is to be done again will ask for the same answers once more.
        if self._acknowledgements is not None and (following is None or not following.tries):
            self._acknowledgements.recorded()
        return following

    def _done(self, operation: Operation) -> CommitStep:
        try:
            return self._steps[operation.kind, operation.step](operation)
        except Superseded:
            # Somebody has just moved the operation as well, or is about to: recording this finds it out.
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
