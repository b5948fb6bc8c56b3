"""A worker and its operations, for the tests of the engine of the conductors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import select

from conductor.engine.acknowledgements import Acknowledgements
from conductor.engine.bulkheads import Bulkheads
from conductor.engine.operations import Operations
from conductor.engine.steps import BUILD, Backoff, Operation
from conductor.engine.worker import Worker
from conductor.schema import conductor_operations
from moorage import errors
from moorage.bus.bus import Client
from moorage.db.database import Database

QUICK = Backoff(first=0.01, longest=0.05)


def worker_of(operations: Operations, threads: int = 1, bulkheads: Bulkheads | None = None) -> Worker:
    """Return a worker whose steps send nothing that could be acknowledged."""
    destinations = bulkheads or Bulkheads("host", 1, QUICK, (errors.NoReply,), 1.0, postpones=True)
    return Worker(operations, threads, "test", destinations, Acknowledgements(cast(Client, None)))


@contextmanager
def working(
    operations: Operations, *, threads: int = 1, bulkheads: Bulkheads | None = None, **steps: Callable[[Operation], Any]
) -> Iterator[Worker]:
    """Run a worker with these steps of kind `build`, by name."""
    worker = worker_of(operations, threads, bulkheads)
    worker.start({(BUILD, name): step for name, step in steps.items()})
    try:
        yield worker
    finally:
        worker.stop()


def ordered(database: Database, operations: Operations, *new: Operation) -> Sequence[Operation]:
    return database.write(lambda connection: operations.begin(connection, list(new)))


def reasons(database: Database) -> Sequence[bytes]:
    """Return the reasons on record why operations wait."""
    reason = conductor_operations.c.reason
    return database.read(lambda connection: connection.scalars(select(reason).where(reason.is_not(None))).all())
