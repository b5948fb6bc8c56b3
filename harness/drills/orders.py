"""Orders about one server of a drill, each of which waits until it has ended; and the record of all clients' work."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from typing import Any

from msgspec import structs

from harness.bench.requests import SPEC
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Client
from moorage.messages import (
    BuildInstances,
    ConfirmMigration,
    DeleteInstance,
    EvacuateInstance,
    LiveMigrateInstance,
    MigrateInstance,
    Ordered,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    ShelveInstance,
    ShowInstance,
    ShowMigration,
    UnshelveInstance,
)
from moorage.messages.wire import Message, R
from moorage.model import Image, Instance, RequestSpec

#: Seconds after which an order that has not ended counts as stuck. Arbitrary: a fault lasts for twenty seconds at most,
#: and its consequences last as long as the time-outs in the drill's settings.
_STUCK_SECONDS = 120.0
#: The kind of each order that ends a move, and the state to which it leads.
_ENDS = {ConfirmMigration: ("confirm", "confirmed"), RevertMigration: ("revert", "reverted")}


class Stuck(Exception):
    """Report an order that has not ended in time."""


class WorkRecord:
    """The record of the clients' work; events that must not happen are in ``findings``."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        #: Seconds that the longest order took.
        self.slowest = 0.0
        self.findings: list[str] = []
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    def count(self, what: str, number: int = 1) -> None:
        """Count an event."""
        with self._lock:
            self.counts[what] += number

    def find(self, what: str) -> None:
        """Note an event that must not happen."""
        with self._lock:
            self.findings.append(what)

    def ended_in(self, kind: str, seconds: float) -> None:
        """Note the duration of an order."""
        with self._lock:
            self.slowest = max(self.slowest, seconds)
            self._seconds[kind].append(seconds)

    def take_seconds(self) -> dict[str, list[float]]:
        """Return the durations, by kind, of the orders that have ended since the last call."""
        with self._lock:
            taken, self._seconds = self._seconds, defaultdict(list)
        return dict(taken)


class Server:
    """An instance, and orders about it; each waits until the order has ended."""

    def __init__(self, record: WorkRecord, client: Client, uuid: str, spec: RequestSpec = SPEC) -> None:
        self.uuid = uuid
        self._spec = spec
        self._record = record
        self._client = client
        self._orders = 0

    def build(self) -> Instance:
        """Build the instance, and return it as it is at the end of the build."""
        order = BuildInstances(request_spec=self._spec, instance_uuids=(self.uuid,), request_id=self._request_id())
        instance = self._until("build", order, "active", "error")
        self._record.count("builds" if instance.state == "active" else "failed builds")
        self._record.count("further attempts", max(0, len(instance.attempts) - 1))
        return instance

    def migrate(self) -> None:
        """Migrate the instance to another host, and revert that."""
        self._move("migrate", MigrateInstance(**self._plain()), RevertMigration)

    def resize(self) -> None:
        """Resize the instance, and confirm that."""
        flavor = self._spec.flavor
        larger = structs.replace(flavor, name="larger", vcpus=2 * flavor.vcpus, memory_mb=2 * flavor.memory_mb)
        order = ResizeInstance(**self._plain(), flavor=larger)
        self._move("resize", order, ConfirmMigration)

    def live_migrate(self, host: str | None = None) -> None:
        """Live-migrate the instance, to a given host or to any."""
        self._move_for_good("live-migrate", LiveMigrateInstance(**self._plain(), host=host))

    def evacuate(self) -> None:
        """Evacuate the instance to another host, because its own was forced down."""
        self._move_for_good("evacuate", EvacuateInstance(**self._plain()))

    def rebuild(self) -> None:
        """Rebuild the instance from another image."""
        self._until("rebuild", RebuildInstance(**self._plain(), image=Image(id="other")), "active", "error")
        self._record.count("rebuilds")

    def shelve(self) -> None:
        """Shelve the instance, and unshelve it."""
        self._until("shelve", ShelveInstance(**self._plain()), "shelved")
        self._until("unshelve", UnshelveInstance(**self._plain()), "active", "shelved")
        self._record.count("unshelvings")

    def show(self) -> Instance:
        """Return the instance as it is now."""
        return self._order(ShowInstance(instance_uuid=self.uuid))

    def delete(self) -> None:
        """Delete the instance."""
        self._until("delete", DeleteInstance(**self._plain()), "deleted")

    def _plain(self) -> dict[str, Any]:
        """Return the fields of a new order about this instance."""
        return {"request_id": self._request_id(), "instance_uuid": self.uuid}

    def _request_id(self) -> str:
        self._orders += 1
        return ids.derived(self.uuid, "order", self._orders)

    def _move(self, kind: str, order: Message[Ordered], end: type[ConfirmMigration | RevertMigration]) -> None:
        began = time.monotonic()
        migration_uuid = self._order(order).migration_uuid
        state = self._comes_to(kind, migration_uuid, {"moved", "failed"}, began)
        self._count_move(state)
        if state == "moved":
            began = time.monotonic()
            self._order(end(**self._plain()))
            ended, wanted = _ENDS[end]
            self._comes_to(ended, migration_uuid, {wanted}, began)

    def _move_for_good(self, kind: str, order: Message[Ordered]) -> None:
        """Carry out a move that the cell confirms itself."""
        began = time.monotonic()
        self._count_move(self._comes_to(kind, self._order(order).migration_uuid, {"confirmed", "failed"}, began))

    def _count_move(self, state: str) -> None:
        self._record.count("failed moves" if state == "failed" else "moves")

    def _order(self, message: Message[R]) -> R:
        """Send an order, and repeat it while nobody answers or another order is under way.

        :raises Stuck: the order was not accepted in time.
        :raises MoorageError: the order was refused.
        """
        end = time.monotonic() + _STUCK_SECONDS
        while True:
            try:
                return self._client.call(message)
            except (errors.Unavailable, errors.TryAgain) as fault:
                refusal: errors.MoorageError = fault
            except errors.InvalidState as fault:
                # The super conductor may not have learned yet that an operation in the cell has ended.
                if "under way" not in fault.reason and "being placed" not in fault.reason:
                    raise
                refusal = fault
            if time.monotonic() > end:
                raise Stuck(f"{message.method} of instance {self.uuid}: {refusal}") from refusal
            time.sleep(0.1)

    def _until(self, kind: str, order: Message[Any], *states: str) -> Instance:
        """Send an order, wait until the instance is in one of these states according to its cell, and return it."""
        began, seen = time.monotonic(), list[Instance]()
        self._order(order)

        def reached() -> bool:
            seen[:] = [self.show()]
            # If the cell does not answer, the super conductor returns only what it has handed over.
            is_known = bool(seen[0].attempts) or seen[0].state in ("error", "deleted")
            return is_known and seen[0].state in states

        self._wait(reached, f"to become {' or '.join(states)}", kind, began)
        if seen[0].state == "error" and not seen[0].reason:
            self._record.find(f"instance {self.uuid} is in error without a reason")
        return seen[0]

    def _comes_to(self, kind: str, migration_uuid: str, states: Collection[str], since: float) -> str:
        """Wait until a migration is in one of these states, and return its state."""
        seen: list[str] = []

        def reached() -> bool:
            migration = self._order(ShowMigration(uuid=migration_uuid))
            if migration.state == "failed" and not migration.reason:
                self._record.find(f"migration {migration_uuid} has failed without a reason")
            seen[:] = [migration.state]
            return migration.state in states

        self._wait(reached, f"its migration to be {' or '.join(sorted(states))}", kind, since)
        return seen[0]

    def _wait(self, reached: Callable[[], bool], what: str, kind: str, since: float) -> None:
        try:
            wait_until(reached, what, _STUCK_SECONDS, interval=0.05, longest=0.4)
        except TimeoutError as fault:
            raise Stuck(f"instance {self.uuid}: {fault}") from fault
        self._record.ended_in(kind, time.monotonic() - since)
