"""Benchmark of builds: from the order until the instances are active or in error."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Connection, bindparam, select, union_all

from conductor.schema import cell_instances, conductor_instances
from harness.bench.cloud import BenchCloud
from harness.bench.load import Load, Measured, Operation, measure
from harness.bench.requests import SPEC
from moorage import ids
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import BuildInstances
from placement_store.db import bulk

_TIMEOUT = 60.0
#: Seconds between two reads of the records, for one build and for many: each read slows down the measured cloud.
_INTERVAL, _INTERVAL_OF_MANY = 0.002, 0.05
# Built once, so that a read costs less.
_ENDED = union_all(
    *(
        select(table.c.uuid, table.c.state).where(
            table.c.uuid.in_(bindparam("uuids", expanding=True)), table.c.state.in_(("active", "error"))
        )
        for table in (conductor_instances, cell_instances)
    )
)


class _Watch:
    """Watches the conductors' records for the ends of builds: one statement for all builds that a process waits for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[str, threading.Event] = {}
        #: Seconds of the shortest build so far.
        self._shortest = 0.0
        self._ended: dict[str, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()

    def wait(self, uuids: Collection[str]) -> list[str]:
        """Wait until builds have ended, and return the instances that are active.

        :raises TimeoutError: a build does not end.
        """
        began = time.monotonic()
        # No build ends within half of the shortest time, so a read before would only slow down the measured cloud.
        time.sleep(self._shortest / 2)
        events = {uuid: self._waiting.setdefault(uuid, threading.Event()) for uuid in uuids}
        for event in events.values():
            if not event.wait(_TIMEOUT):
                raise TimeoutError(f"a build has not ended for {_TIMEOUT:g} s")
        seconds = time.monotonic() - began
        self._shortest = min(self._shortest or seconds, seconds)
        return [uuid for uuid in uuids if self._ended.pop(uuid, "") == "active"]

    def _run(self) -> None:
        with self._database.engine.connect() as connection:
            if not self._database.is_sqlite:
                # Without transactions, a read is one round trip instead of two.
                connection.execution_options(isolation_level="AUTOCOMMIT")
            while not self._closed.wait(_INTERVAL if len(self._waiting) <= 1 else _INTERVAL_OF_MANY):
                for uuid, state in ended(connection, list(self._waiting)).items():
                    self._ended[uuid] = state
                    self._waiting.pop(uuid).set()
                if self._database.is_sqlite:
                    connection.rollback()  # the next read must see later commits


def ended(connection: Connection, uuids: Collection[str]) -> dict[str, str]:
    """Return the states of the instances whose builds have ended, by uuid."""
    found: dict[str, str] = {}
    for chunk in bulk.chunks(sorted(uuids)):
        found |= {row.uuid: row.state for row in connection.execute(_ENDED, {"uuids": list(chunk)})}
    return found


@contextmanager
def _clients(transport_url: str, database_url: str, per_order: int) -> Iterator[Callable[[int], Operation]]:
    conf = options.new({"DEFAULT": {"transport_url": transport_url}})
    with (
        closing(Bus(conf)) as bus,
        closing(Database(database_url, "conductor")) as database,
        closing(_Watch(database)) as watch,
    ):
        conductor = bus.client("conductor", timeout=_TIMEOUT)

        def order() -> tuple[str, ...]:
            uuids = tuple(ids.fresh() for _ in range(per_order))
            conductor.call(BuildInstances(request_spec=SPEC, instance_uuids=uuids, request_id=ids.fresh()))
            return tuple(watch.wait(uuids))

        yield lambda _number: order


def build(cloud: BenchCloud, per_order: int, load: Load) -> Measured:
    """Measure builds: each client waits until its order has ended, then sends the next one."""
    database_url = cloud.database.url.render_as_string(hide_password=False)
    return measure(load, _clients, cloud.transport_url, database_url, per_order, cpu=cloud.cpu_seconds)


def active(cloud: BenchCloud) -> list[str]:
    """Return the uuids of all active instances."""
    query = select(cell_instances.c.uuid).where(cell_instances.c.state == "active")
    return list(cloud.database.read(lambda connection: connection.scalars(query).all()))
