"""A cloud that records each call, so that each can be delivered once more, late, or for the first time."""

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from compute.fake.guest_file import GuestFile
from moorage.bus.bus import Client
from moorage.messages import REPORTS_TOPIC
from moorage.messages.wire import Message, Mutation, R
from support.bus.deliveries import Delivery
from support.bus.message_samples import every_message
from support.databases.database_dump import Dump, dump
from support.operations.cloud import TroublesomeCloud
from support.operations.random_aftermath import settle
from support.operations.room import until_answered

MESSAGES = {(kind.topic, kind.method): kind for kind in every_message()}
#: Messages that are sent repeatedly with other content: in each step, this number is kept; of each read, one.
_PERIODIC = {"report_hosts": 6, "report_provider_tree": 6, "report_providers": 6, "report_service": 3}
#: Messages whose answers are not stored, because they must be true when they are given.
UNSTORED = {
    *("accept_claim", "build_finished", "build_failed", "attempts_gone", "return_hosts", "owns_claim"),
    *("report_hosts", "report_provider_tree", "report_providers", "report_service", "acknowledge_requests"),
    *("build_instance", "destroy_instance", "stop_instance", "start_instance", "rebuild_instance"),
    # If the claim no longer stands, the stored answer is returned with a note of that.
    "select_destinations",
}
#: Columns that change without a message, and the note that a copy was refused.
_SIGNS_OF_LIFE = ("updated_at", "last_seen", "alive_at", "alive", "described", "providers", "refused_order_number")


def kind_of(delivery: Delivery) -> type[Message[Any]] | None:
    """Return the class of the message of a call, or nothing."""
    if delivery.topic == REPORTS_TOPIC:
        topic = "scheduler"
    elif delivery.topic.startswith(("conductor.", f"{REPORTS_TOPIC}.")):
        topic = "conductor.cell"
    else:
        topic = delivery.topic.partition(".")[0]
    return MESSAGES.get((topic, delivery.method))


class RepeatingClient(Client):
    """A client that repeats a call until it is answered, as services do."""

    def call(self, message: Message[R], timeout: float | None = None) -> R:
        return until_answered(lambda: super(RepeatingClient, self).call(message, timeout))


class PatientCloud(TroublesomeCloud):
    """A cloud whose operators and users repeat calls that are not answered."""

    def client(self, topic: str, timeout: float | None = None, server: str | None = None) -> Client:
        return RepeatingClient(self._bus, topic, server, 60.0 if timeout is None else timeout)

    def impatient(self, topic: str) -> Client:
        """Return a client that does not repeat calls."""
        return super().client(topic)


@dataclass
class Recorder:
    """Records all calls in their order; the calls that it must lose are delivered to nobody."""

    deliveries: list[Delivery] = field(default_factory=list)
    lost: list[Delivery] = field(default_factory=list)
    loses: Callable[[Delivery], bool] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[str, int] = field(default_factory=dict)

    def __call__(self, delivery: Delivery) -> bool:
        kind = kind_of(delivery)
        if kind is None:
            return False
        with self._lock:
            if self.loses is not None and self.loses(delivery):
                self.lost.append(delivery)
                return True
            most = 1_000_000 if issubclass(kind, Mutation) else 1
            left = self._kept.setdefault(delivery.method, _PERIODIC.get(delivery.method, most))
            if left > 0:
                self._kept[delivery.method] = left - 1
                self.deliveries.append(delivery)
            return False

    def take(self) -> list[Delivery]:
        """Return the calls that were recorded since the last time."""
        with self._lock:
            taken, self.deliveries = self.deliveries, []
            self._kept.clear()
            return taken

    @contextmanager
    def losing(self, loses: Callable[[Delivery], bool]) -> Iterator[list[Delivery]]:
        """Lose the calls for which ``loses`` returns true; yield the list of lost calls."""
        self.lost, self.loses = [], loses
        try:
            yield self.lost
        finally:
            self.loses = None


def once_each() -> Callable[[Delivery], bool]:
    """Return a function that loses the first copy of each mutation; of a periodic message, only the first of all."""
    seen: set[str] = set()

    def loses(delivery: Delivery) -> bool:
        kind = kind_of(delivery)
        if kind is None or not issubclass(kind, Mutation):
            return False
        content = {} if delivery.method in _PERIODIC else delivery.arguments
        key = json.dumps([delivery.topic, delivery.method, content], sort_keys=True)
        if key in seen:
            return False
        seen.add(key)
        return True

    return loses


@dataclass(frozen=True)
class Snapshot:
    """All records in the databases of a cloud, and all guests."""

    records: Dump
    guests: Mapping[str, tuple[Any, ...]]

    def differs(self, other: "Snapshot") -> list[str]:
        """Return the rows that only one of the two snapshots has."""
        found = [f"guests: {self.guests} -> {other.guests}"] if self.guests != other.guests else []
        for table, rows in self.records.items():
            found += [f"{table}: gone: {row}" for row in rows - other.records[table]]
            found += [f"{table}: new: {row}" for row in other.records[table] - rows]
        return found


def snapshot(cloud: TroublesomeCloud) -> Snapshot:
    guests: dict[str, tuple[Any, ...]] = {}
    for cell in cloud.cell_names:
        with closing(GuestFile(cloud.folder / f"agent-{cell}.sqlite")) as file:
            file.open()
            for guest in file.guests():
                host = guest.host
                state = (guest.attempt_id in file.stopped(host), file.rebuilt(host).get(guest.attempt_id))
                guests[guest.attempt_id] = (guest.instance_uuid, host, guest.claim_id, *state)
    # A claim without an owner is recorded as such each time when the owner is asked.
    records = {name: rows for name, rows in dump(cloud.database, _SIGNS_OF_LIFE).items() if "disowned" not in name}
    return Snapshot(records, guests)


def taken_too_late(deliveries: list[Delivery]) -> list[str]:
    """Deliver messages after their deadlines; return those that are not refused for that reason."""
    answers = {delivery.method: delivery.deliver(30.0, seconds_left=0.0) for delivery in deliveries}
    return [
        f"{method} is answered after its deadline: {answer}"
        for method, answer in answers.items()
        if '"DeadlineExceeded"' not in (answer["failure"] or "")
    ]


@dataclass
class Replays:
    """Delivers recorded messages once more, and finds the changes that this causes."""

    cloud: TroublesomeCloud
    #: The first answer to each request, by its kind and id.
    answers: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    delivered: set[type[Message[Any]]] = field(default_factory=set)

    def of(self, deliveries: list[Delivery], when: str) -> list[str]:
        """Deliver messages; return the changes that they cause, and the answers that differ from the first ones."""
        settle(self.cloud)
        before = snapshot(self.cloud)
        wrong = [fault for delivery in deliveries if (fault := self._again(delivery))]
        settle(self.cloud)
        changed = before.differs(snapshot(self.cloud))
        if changed:
            wrong += self._culprits(deliveries) or changed
        return [f"{when}: {fault}" for fault in wrong]

    def _again(self, delivery: Delivery) -> str | None:
        kind = kind_of(delivery)
        assert kind is not None
        self.delivered.add(kind)
        try:
            answer = delivery.deliver(30.0)
        except queue.Empty:
            return f"{kind.__name__} is not answered"
        if answer["failure"] and '"InternalError"' in answer["failure"]:
            return f"{kind.__name__} is answered by a fault of ours"
        if delivery.method in UNSTORED or answer["failure"] or not issubclass(kind, Mutation):
            return None
        first = self.answers.setdefault((kind.__name__, delivery.arguments["request_id"]), answer)
        return None if first == answer else f"{kind.__name__} is answered otherwise than before: {answer}"

    def _culprits(self, deliveries: list[Delivery]) -> list[str]:
        """Deliver messages one by one, to find those that change something; earlier changes are not undone."""
        found = []
        for delivery in deliveries:
            before = snapshot(self.cloud)
            self._again(delivery)
            settle(self.cloud)
            if changed := before.differs(snapshot(self.cloud)):
                found.append(f"{delivery.topic} {delivery.method} {delivery.arguments}:\n  " + "\n  ".join(changed))
        return found
