"""The work of a cloud during a drill: clients that build servers, move some of them, and delete them."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Self

from msgspec import structs

from harness.audit import judge
from harness.bench.requests import SPEC
from harness.cloud import RunningCloud, wait_until
from harness.drills.cloud import DrillCloud, guests
from moorage import errors, ids
from moorage.bus.bus import Client
from moorage.messages import (
    BuildInstances,
    ConfirmMigration,
    DeleteInstance,
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
from moorage.model import Image, Instance

#: Seconds after which an order that has not ended counts as stuck. Arbitrary: a fault lasts for twenty seconds at most,
#: and what follows it for the time-outs of the drill's settings.
_STUCK_SECONDS = 120.0
#: Seconds for a call. A lost answer is asked for again with the same request id.
_CALL_SECONDS = 10.0
#: Seconds between two looks at the amounts of all hosts.
_LOOK_SECONDS = 1.0
#: The size that a server is resized to, and back.
_LARGER = structs.replace(SPEC.flavor, name="larger", vcpus=2, memory_mb=1024)


class Stuck(Exception):
    """Report an order that has not ended in time."""


class Workload:
    """Clients that work until they are stopped; what must not happen is in ``findings``.

    :param moves: whether servers are moved, rebuilt and shelved, too.
    """

    def __init__(self, cloud: RunningCloud | DrillCloud, clients: int, seed: int, *, moves: bool) -> None:
        self.counts: Counter[str] = Counter()
        #: Seconds from an order to its end, the longest of all.
        self.slowest = 0.0
        self.findings: list[str] = []
        self._cloud = cloud
        self._moves = moves
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._client, args=(ids.derived("drill", seed, number),), name=f"client-{number}")
            for number in range(clients)
        ]
        self._threads.append(threading.Thread(target=self._look, name="over-commit"))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Have each client finish with its server, and stop."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wait(self, seconds: float) -> bool:
        """Wait; return False as soon as something was found that must not happen."""
        end = time.monotonic() + seconds
        while not self.findings and (left := end - time.monotonic()) > 0:
            self._ended.wait(min(left, 0.1))
        return not self.findings

    def count(self, what: str, number: int = 1) -> None:
        """Count something that has happened."""
        with self._lock:
            self.counts[what] += number

    def find(self, what: str) -> None:
        """Note something that must not happen."""
        with self._lock:
            self.findings.append(what)

    def ended_in(self, seconds: float) -> None:
        """Note how long an order took."""
        with self._lock:
            self.slowest = max(self.slowest, seconds)

    def _client(self, seed: str) -> None:
        chance, number = random.Random(seed), 0
        client = self._cloud.client("conductor", timeout=_CALL_SECONDS)
        try:
            while not self._ended.is_set():
                number += 1
                self._live(_Server(self, client, ids.derived(seed, number)), chance)
        except Stuck as fault:
            self.find(f"stuck: {fault}")
        except Exception as fault:  # noqa: BLE001 - it is reported at the end of the drill
            self.find(f"{type(fault).__name__}: {fault}")

    def _live(self, server: "_Server", chance: random.Random) -> None:
        """Build a server, change it, and delete it."""
        instance = server.build()
        if instance.state == "active":
            hosts = [guest.host for guest in guests(self._cloud) if guest.instance_uuid == server.uuid]
            # An attempt that was given up may have left one elsewhere, which is being removed.
            if hosts.count(str(instance.host)) != 1:
                self.find(f"instance {server.uuid} is on host {instance.host} and has guests on {hosts}")
            if self._moves:
                chance.choice((server.migrate, server.resize, server.live_migrate, server.rebuild, server.shelve))()
        server.delete()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                overcommitted = judge(self._cloud.database, []).overcommitted
            except errors.Unavailable:
                continue  # the database is what the drill harms
            if overcommitted:
                self.find(f"{overcommitted} providers are over-committed")


class _Server:
    """An instance, and the orders about it; each waits until the order has ended."""

    def __init__(self, workload: Workload, client: Client, uuid: str) -> None:
        self.uuid = uuid
        self._workload = workload
        self._client = client
        self._orders = 0

    def build(self) -> Instance:
        """Have it built, and return how that has ended."""
        began = time.monotonic()
        self._order(BuildInstances(request_spec=SPEC, instance_uuids=(self.uuid,), request_id=self._request_id()))
        instance = self._becomes("active", "error", since=began)
        self._workload.count("builds" if instance.state == "active" else "failed builds")
        self._workload.count("further attempts", max(0, len(instance.attempts) - 1))
        return instance

    def migrate(self) -> None:
        """Have it moved to another host, and taken back."""
        order = MigrateInstance(request_id=self._request_id(), instance_uuid=self.uuid)
        self._move(order, RevertMigration(request_id=self._request_id(), instance_uuid=self.uuid), "reverted")

    def resize(self) -> None:
        """Have it resized, and confirm that."""
        order = ResizeInstance(request_id=self._request_id(), instance_uuid=self.uuid, flavor=_LARGER)
        self._move(order, ConfirmMigration(request_id=self._request_id(), instance_uuid=self.uuid), "confirmed")

    def live_migrate(self) -> None:
        """Have it moved while it runs."""
        began = time.monotonic()
        order = LiveMigrateInstance(request_id=self._request_id(), instance_uuid=self.uuid)
        self._count_move(self._comes_to(self._order(order).migration_uuid, {"confirmed", "failed"}, began))

    def rebuild(self) -> None:
        """Have it made anew from another image."""
        began = time.monotonic()
        self._order(RebuildInstance(request_id=self._request_id(), instance_uuid=self.uuid, image=Image(id="other")))
        self._becomes("active", "error", since=began)
        self._workload.count("rebuilds")

    def shelve(self) -> None:
        """Have it taken off its host, and placed again."""
        began = time.monotonic()
        self._order(ShelveInstance(request_id=self._request_id(), instance_uuid=self.uuid))
        self._becomes("shelved", since=began)
        began = time.monotonic()
        self._order(UnshelveInstance(request_id=self._request_id(), instance_uuid=self.uuid))
        self._becomes("active", "shelved", since=began)
        self._workload.count("unshelvings")

    def delete(self) -> None:
        """Have it deleted."""
        began = time.monotonic()
        self._order(DeleteInstance(request_id=self._request_id(), instance_uuid=self.uuid))
        self._becomes("deleted", since=began)

    def _request_id(self) -> str:
        self._orders += 1
        return ids.derived(self.uuid, "order", self._orders)

    def _move(self, order: Message[Ordered], end: ConfirmMigration | RevertMigration, wanted: str) -> None:
        began = time.monotonic()
        migration_uuid = self._order(order).migration_uuid
        state = self._comes_to(migration_uuid, {"moved", "failed"}, began)
        self._count_move(state)
        if state == "moved":
            began = time.monotonic()
            self._order(end)
            self._comes_to(migration_uuid, {wanted}, began)

    def _count_move(self, state: str) -> None:
        self._workload.count("failed moves" if state == "failed" else "moves")

    def _order(self, message: Message[R]) -> R:
        """Give an order, again and again the same one while nobody answers it or another one is under way.

        :raises Stuck: it was not taken in time.
        :raises MoorageError: it was refused.
        """
        end = time.monotonic() + _STUCK_SECONDS
        while True:
            try:
                return self._client.call(message)
            except (errors.Unavailable, errors.TryAgain) as fault:
                refusal: errors.MoorageError = fault
            except errors.InvalidState as fault:
                # The super conductor may not have heard yet of what has ended in the cell.
                if "under way" not in fault.reason and "being placed" not in fault.reason:
                    raise
                refusal = fault
            if time.monotonic() > end:
                raise Stuck(f"{message.method} of instance {self.uuid}: {refusal}") from refusal
            time.sleep(0.1)

    def _becomes(self, *states: str, since: float) -> Instance:
        """Wait until the instance is in one of these states by its cell's word, and return it."""
        seen: list[Instance] = []

        def reached() -> bool:
            seen[:] = [self._order(ShowInstance(instance_uuid=self.uuid))]
            # Of a cell that does not answer the super conductor tells only what it has handed over.
            is_known = bool(seen[0].attempts) or seen[0].state in ("error", "deleted")
            return is_known and seen[0].state in states

        self._wait(reached, f"to become {' or '.join(states)}", since)
        if seen[0].state == "error" and not seen[0].reason:
            self._workload.find(f"instance {self.uuid} is in error without a reason")
        return seen[0]

    def _comes_to(self, migration_uuid: str, states: Collection[str], since: float) -> str:
        """Wait until a migration is in one of these states, and return it."""
        seen: list[str] = []

        def reached() -> bool:
            migration = self._order(ShowMigration(uuid=migration_uuid))
            if migration.state == "failed" and not migration.reason:
                self._workload.find(f"migration {migration_uuid} has failed without a reason")
            seen[:] = [migration.state]
            return migration.state in states

        self._wait(reached, f"its migration to be {' or '.join(sorted(states))}", since)
        return seen[0]

    def _wait(self, reached: Callable[[], bool], what: str, since: float) -> None:
        try:
            wait_until(reached, what, _STUCK_SECONDS, interval=0.05, longest=0.4)
        except TimeoutError as fault:
            raise Stuck(f"instance {self.uuid}: {fault}") from fault
        self._workload.ended_in(time.monotonic() - since)
