"""Count steps by their outcome, and operations on record by kind and step."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from sqlalchemy import Table, case, func, select

from conductor.engine.steps import Ended, Next, Operation, Outcome, Retry, Superseded, Wait
from conductor.engine.waiting_steps import Postponed
from moorage import metrics, tracing
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.metrics import GaugeSample

#: The most operations that are counted: first those that wait for a message, then the longest due. Arbitrary.
_COUNTED = 10_000


@contextmanager
def counted(operation: Operation) -> Iterator[Callable[[Outcome], None]]:
    """Count one step of an operation, with its outcome and its duration from its start until it is recorded.

    :return: yields a function to call with the outcome. If a transaction is repeated, the last outcome counts.
    """
    noted: list[Outcome] = []
    began = time.perf_counter()
    outcome = "unrecorded"
    name = f"{operation.kind} {operation.step}"
    with ExitStack() as traced:
        span = traced.enter_context(tracing.span(name, place="below request", about=operation))
        try:
            yield noted.append
            outcome = _name(noted[-1])
        except (Superseded, Postponed) as unfinished:
            outcome = "superseded" if isinstance(unfinished, Superseded) else "postponed"
            span.set_attribute("moorage.outcome", outcome)
            traced.close()  # before the exception reaches the span: this is not an error
            raise
        else:
            span.set_attribute("moorage.outcome", outcome)
        finally:
            metrics.OPERATION_STEPS.labels(operation.kind, operation.step, outcome).inc()
            if outcome != "postponed":
                seconds = time.perf_counter() - began
                metrics.OPERATION_STEP_SECONDS.labels(operation.kind, operation.step).observe(seconds)


def _name(outcome: Outcome) -> str:
    """Return the name of an outcome in the metrics."""
    if isinstance(outcome, Ended):
        return "done" if outcome.reason is None else "failed"
    return {Next: "next", Wait: "wait", Retry: "retry"}[type(outcome)]


def pending(database: Database, table: Table, scope: Mapping[str, str]) -> list[GaugeSample]:
    """Return the pending operations by kind and step: their number, how many are retried, and the age of the oldest.

    :param scope: the columns that restrict the table to one cell, with their values; empty for the super conductor.
    :raises StoreUnavailable: the database cannot be reached.
    """
    # Bounded, and read by the index on the state and the due time: SELECT kind, step, COUNT(*), … FROM (
    #   SELECT … FROM operations WHERE state = 'pending' ORDER BY due_at LIMIT :n) GROUP BY kind, step
    mine = (table.c[name] == value for name, value in scope.items())
    columns = (table.c.kind, table.c.step, table.c.tries, table.c.created_at)
    some = select(*columns).where(*mine, table.c.state == "pending").order_by(table.c.due_at).limit(_COUNTED).subquery()
    retried = func.sum(case((some.c.tries > 0, 1), else_=0))
    query = select(some.c.kind, some.c.step, func.count(), retried, now() - func.min(some.c.created_at)).group_by(
        some.c.kind, some.c.step
    )
    samples = []
    for kind, step, count, failing, age in database.read(lambda connection: connection.execute(query).all()):
        samples.append(metrics.OPERATIONS.sample(count, kind, step))
        samples.append(metrics.OPERATIONS_FAILING.sample(float(failing), kind, step))
        samples.append(metrics.OPERATION_AGE.sample(max(0.0, age), kind, step))
    return samples
