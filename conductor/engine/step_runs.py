"""Run the steps of operations; steps that are due at the same time share one message and one transaction.

Each step has its own context, and another thread may continue it. It stops where it needs a call, or the transaction
that records its outcome, and continues with the result.
"""

import contextvars
import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from conductor.engine.acknowledgements import Acknowledgements
from conductor.engine.bulkheads import StepScope
from conductor.engine.operations import Operations, StepDone
from conductor.engine.rows import grouped
from conductor.engine.step_calls import Calling, StepCall, fulfil
from conductor.engine.step_counts import counted
from conductor.engine.steps import CommitStep, Operation, Retry, Steps, Superseded
from conductor.engine.waiting_steps import KeptPlace, Postponed
from moorage import context, errors, failpoints
from moorage.batches import BatchItem

LOG = logging.getLogger(__name__)

#: A need of a step: the answer to a call, its recorded outcome, or the result of a function for this step alone.
Need = StepCall[Any] | StepDone | Callable[[], Any]
#: The generator of one step: yields its needs, and returns the operation with its next step, or null.
StepGenerator = Generator[Need, Any, Operation | None]


class StepRun:
    """One step in progress."""

    def __init__(
        self, operation: Operation, begin: Callable[["StepRun"], StepGenerator], operations: Operations
    ) -> None:
        #: With the lease under which the step is done; the lease may be taken again before the step.
        self.operation = operation
        self._generator = begin(self)
        self._operations = operations
        self._in_own_context = contextvars.copy_context().run
        #: What it needs before it can be resumed. If it is a function, the thread that resumes the step calls it.
        self.need: Need | None = None
        #: The need of the step; it has the result once it was fulfilled together with those of other steps.
        self.item: BatchItem[Any, Any] = BatchItem(None)
        #: The operation with its next step; null if there is none, and until the step is over.
        self.following: Operation | None = None

    def resume(self) -> bool:
        """Resume the step until it needs something; return False if it is over.

        :raises Postponed: it must wait for room in its bulkhead.
        """
        return self._in_own_context(self._resume)

    @property
    def client(self) -> Any:
        """The client of the call that it needs, if the call may be sent together with others; else null."""
        need = self.need
        together = isinstance(need, StepCall) and need.message.may_be_batched and need.client.takes_many
        return need.client if together else None  # type: ignore[union-attr]

    @property
    def is_done(self) -> bool:
        """True if it only needs its outcome to be recorded."""
        return isinstance(self.need, StepDone)

    def _resume(self) -> bool:
        try:
            self.need = next(self._generator) if self.need is None else self._resume_with_answer(self.need)
        except StopIteration as end:
            self.following = end.value
            return False
        self.item = BatchItem(self.need.message if isinstance(self.need, StepCall) else self.need)
        return True

    def _resume_with_answer(self, need: Need) -> Need:
        """Give the step what it needs, and return what it needs next."""
        try:
            answer = self.item.outcome() if self.item.is_done else self._fulfil(need)
        except BaseException as fault:  # noqa: BLE001 - it is raised where the step has stopped
            return self._generator.throw(fault)
        return self._generator.send(answer)

    def _fulfil(self, need: Need) -> Any:
        """Fulfil a need of the step in this thread."""
        return self._operations.commit(need) if isinstance(need, StepDone) else fulfil(need)


class StepRuns:
    """Begins steps, and fulfils the needs of several of them together."""

    def __init__(self, operations: Operations, steps: Steps, acknowledgements: Acknowledgements) -> None:
        self._operations = operations
        self._steps = steps
        self._acknowledgements = acknowledgements

    def begin(self, operations: Sequence[tuple[Operation, KeptPlace | None]]) -> list[StepRun]:
        """Begin steps that one thread does together, each with the place that is kept for it, if any."""
        group = object()
        return [
            StepRun(each, partial(self._do_step, place=place, group=group), self._operations)
            for each, place in operations
        ]

    def may_go_together(self, one: Operation, other: Operation) -> bool:
        """Return whether one thread may do the next steps of both."""
        key = (one.kind, one.step)
        # While failpoints are armed, each step runs alone.
        if key != (other.kind, other.step) or key not in self._steps or failpoints.are_armed():
            return False
        return inspect.isgeneratorfunction(self._steps[key])

    def fulfil(self, runs: Sequence[StepRun], leave: Callable[[Sequence[StepRun]], None]) -> list[StepRun]:
        """Fulfil the needs of steps, together where possible; return the steps that this thread continues.

        :param leave: leaves steps to another thread; all steps of one call are left to the same thread.
        """
        alike = grouped((run.client or (StepDone if run.is_done else run), run) for run in runs)
        here, *others = alike.values()
        for each in others:
            leave(each)
        if len(here) == 1:
            return here  # a single step fulfils its need itself
        return self._record(here, leave) if here[0].is_done else self._call(here, leave)

    @staticmethod
    def _call(runs: Sequence[StepRun], leave: Callable[[Sequence[StepRun]], None]) -> list[StepRun]:
        """Make the calls of steps by one client."""
        of = {run.item: run for run in runs}
        left = len(of)
        answered: list[StepRun] = []
        for portion in runs[0].client.call_many(list(of)):
            answered = [of[item] for item in portion]
            left -= len(answered)
            if left:
                # Another thread continues these steps, so that they do not wait for the slower calls.
                leave(answered)
        return answered

    def _record(self, runs: Sequence[StepRun], leave: Callable[[Sequence[StepRun]], None]) -> list[StepRun]:
        alone = self._operations.commit_many([run.item for run in runs])
        recorded = []
        for run, record in zip(runs, alone, strict=True):
            if record is None:
                recorded.append(run)
            else:
                run.need = record
                leave([run])
        return recorded

    # --- The generator of a step --------------------------------------------------------------------------------------

    def _do_step(self, run: StepRun, place: KeptPlace | None, group: object) -> StepGenerator:
        """Do one step and record its outcome; return the operation with its next step, or null."""
        operation = run.operation
        with (
            context.bound(request_id=operation.request_id),
            failpoints.within("step", operation.kind, operation.step),
            StepScope(operation.tries, place, group, operation.uuid, operation.kind),
        ):
            try:
                if (operation.kind, operation.step) not in self._steps:
                    # A message has redirected an operation that is at a step of a newer release.
                    LOG.info("The %s of %s is left to a newer release", operation.kind, operation.subject)
                    self._operations.release(operation)
                    return None
                # The process may have been paused for longer than the lease: make sure that it still has the operation.
                current = self._operations.take_again(operation) if self._operations.is_stale(operation) else operation
                if current is None:
                    return None
                # Before the step may be postponed: with the old lease, the operation would wait for the next sweep.
                run.operation = current
                return (yield from self._run_and_record(current))
            except Superseded:
                LOG.debug("Step %s of the %s of %s was overtaken", operation.step, operation.kind, operation.subject)
                return None
            except Postponed:
                raise
            except errors.MoorageError as fault:
                LOG.warning("Step %s of %s cannot be recorded: %s", operation.step, operation.subject, fault)
            except Exception:  # the thread must survive any error of one operation
                LOG.exception("Step %s of %s cannot be recorded", operation.step, operation.subject)
            # It is unknown whether the outcome was recorded: the operation counts as stale, so that this is found out
            # before the step is repeated. The repeated step sends the same requests.
            delay = self._operations.backoff.seconds(1)
            return replace(run.operation, delay=delay, taken_at=float("-inf"), resumed=True, carried=None)

    def _run_and_record(self, operation: Operation) -> StepGenerator:
        failpoints.reached("begin")
        self._acknowledgements.begin()
        with counted(operation) as note:
            commit = yield from self._run(operation)
            failpoints.reached("done")
            try:
                following: Operation | None = yield StepDone(operation, commit, context.current(), note)
            except (Superseded, errors.MoorageError):
                raise
            except Exception as fault:
                LOG.exception("The outcome of step %s of %s cannot be written", operation.step, operation.subject)
                # The fault may also be a repeated COMMIT whose answer was lost: then the operation is superseded now.
                reason = _unexpected(fault)
                following = yield StepDone(operation, lambda _connection: Retry(reason), context.current(), note)
        # A step that is retried sends the same requests again: their answers must be kept.
        if following is None or not following.tries:
            self._acknowledgements.recorded()
        return following

    def _run(self, operation: Operation) -> Calling[CommitStep]:
        try:
            done = self._steps[operation.kind, operation.step](operation)
            return (yield from done) if isinstance(done, Generator) else done
        except Superseded:
            # Another thread or conductor has changed the operation, or is about to: recording the retry detects it.
            reason = "what it is about has changed meanwhile"
        except Postponed:
            raise
        except errors.MoorageError as fault:
            reason = str(fault)
            LOG.warning("Step %s of %s will be repeated: %s", operation.step, operation.subject, reason)
        except Exception as fault:
            reason = _unexpected(fault)
            LOG.exception("Step %s of %s has failed and will be repeated", operation.step, operation.subject)
        return lambda _connection: Retry(reason)


def _unexpected(fault: Exception) -> str:
    """Return the reason of a step that is repeated after an unexpected fault, which is in the log."""
    return f"an unexpected fault ({type(fault).__name__}), see the log"
