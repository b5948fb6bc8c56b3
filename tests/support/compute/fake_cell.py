"""Fake peers of an agent: a placement role, and cell conductors that keep their contract, wait or fail."""

import math
import threading
from typing import Any

from moorage import context, errors
from moorage.bus.bus import serves
from moorage.messages import (
    AcceptInCell,
    AttemptsGone,
    BuildFailedInCell,
    BuildFinished,
    Done,
    HostsReported,
    ListEndedAttempts,
    ListProviderTreesInCell,
    ProvidersReported,
    ReportHostsInCell,
    ReportProviderTree,
    ReshapeProviderTree,
    ReturnHosts,
)
from moorage.messages.wire import Message, R
from moorage.model import Cell, EndedAttempt, ReshapePlan, ResourceProvider
from support.compute.fake_providers import FakeProviders
from support.placement_store.fake_cell_list import FakeCellList


class FakePlacement(FakeCellList):
    """Returns the cells."""

    def __init__(self, *cells: Cell) -> None:
        self.cells = list(cells)


class FakeCell:
    """A cell conductor for which every attempt is current unless it is in `superseded`; it records all messages.

    A test makes it fail by overriding :meth:`before_answer`, which runs after the message was processed.
    """

    def __init__(self) -> None:
        self.messages: list[Message[Any]] = []
        self.request_ids: list[str | None] = []
        self.superseded: set[str] = set()
        #: Ended attempts whose guests may still exist, and hosts that have not returned yet.
        self.ended: list[EndedAttempt] = []
        self.returning: set[str] = set()
        #: The number of times that each host has begun to return.
        self.lives: dict[str, int] = {}
        #: Hosts that belong to other agents, each with its agent.
        self.of_others: dict[str, str] = {}
        self.providers = FakeProviders()
        self.lock = threading.Lock()

    def before_answer(self, message: Message[Any]) -> None:
        """Do nothing."""

    def received(self, kind: type[R]) -> list[R]:
        with self.lock:
            return [message for message in self.messages if isinstance(message, kind)]

    def returned(self) -> list[str]:
        """Return the hosts that have returned, in the order of their returns."""
        return [host for message in self.received(ReturnHosts) for host in message.hosts]

    def build_methods(self) -> list[str]:
        """Return the methods of the messages about attempts, in order."""
        kinds = (AcceptInCell, BuildFinished, BuildFailedInCell)
        with self.lock:
            return [message.method for message in self.messages if isinstance(message, kinds)]

    @serves(AcceptInCell)
    def accept(self, message: AcceptInCell) -> Done:
        return self._gate(message)

    @serves(BuildFinished)
    def finished(self, message: BuildFinished) -> Done:
        return self._gate(message)

    @serves(BuildFailedInCell)
    def failed(self, message: BuildFailedInCell) -> Done:
        return self._take(message)

    @serves(ReportHostsInCell)
    def report_hosts(self, message: ReportHostsInCell) -> HostsReported:
        with self.lock:
            for host in message.started:
                self.lives[host] = self.lives.get(host, 0) + 1
            self.returning |= set(message.started)
        self._take(message)
        with self.lock:
            returning = sorted(self.returning & {*message.alive, *message.started})
            return HostsReported(
                returning=tuple(returning),
                lives={host: self.lives.setdefault(host, 1) for host in returning},
                of_others={host: agent for host, agent in self.of_others.items() if host in (message.intended or ())},
            )

    @serves(ListEndedAttempts)
    def list_ended(self, message: ListEndedAttempts) -> list[EndedAttempt]:
        self._take(message)
        with self.lock:
            return [attempt for attempt in self.ended if attempt.host in message.hosts]

    @serves(AttemptsGone)
    def attempts_gone(self, message: AttemptsGone) -> Done:
        self._take(message)
        with self.lock:
            gone = {(attempt.attempt_id, attempt.claim_id) for attempt in message.attempts}
            self.ended = [attempt for attempt in self.ended if (attempt.attempt_id, attempt.claim_id) not in gone]
        return Done()

    @serves(ReturnHosts)
    def return_hosts(self, message: ReturnHosts) -> Done:
        self._take(message)
        with self.lock:
            ended = {attempt.attempt_id for attempt in self.ended}
            kept = {guest.host for guest in message.guests if guest.attempt_id in ended}
            self.returning -= set(message.hosts) - kept
        return Done()

    @serves(ListProviderTreesInCell)
    def list_provider_trees(self, message: ListProviderTreesInCell) -> list[ResourceProvider]:
        self._take(message)
        return self.providers.trees(message)

    @serves(ReportProviderTree)
    def report_providers(self, message: ReportProviderTree) -> ProvidersReported:
        self._take(message)
        return self.providers.report(message)

    @serves(ReshapeProviderTree)
    def reshape(self, message: ReshapeProviderTree) -> ReshapePlan:
        self._take(message)
        return self.providers.move(message)

    def _gate(self, message: AcceptInCell | BuildFinished) -> Done:
        if message.attempt_id in self.superseded:
            self._take(message)
            raise errors.ClaimReleased(consumer_uuid=message.instance_uuid, claim_id=message.claim_id)
        return self._take(message)

    def _take(self, message: Message[Any]) -> Done:
        with self.lock:
            self.messages.append(message)
            self.request_ids.append(context.current().request_id)
        self.before_answer(message)
        return Done()


class HoldingCell(FakeCell):
    """Sets an event when a message of one kind arrives, and answers it when a test sets another one."""

    def __init__(self, kind: type[Message[Any]], seconds: float = 10.0) -> None:
        super().__init__()
        self.kind = kind
        self.seconds = seconds
        self.arrived = threading.Event()
        self.go_on = threading.Event()

    def before_answer(self, message: Message[Any]) -> None:
        if isinstance(message, self.kind):
            self.arrived.set()
            assert self.go_on.wait(self.seconds)


class FailingCell(FakeCell):
    """Answers messages of some kinds with an error; ``left`` is the number of errors that are left."""

    def __init__(self, fault: errors.MoorageError, *kinds: type[Message[Any]], left: float = math.inf) -> None:
        super().__init__()
        self.fault = fault
        self.kinds = kinds
        self.left = left

    def before_answer(self, message: Message[Any]) -> None:
        if isinstance(message, self.kinds) and self.left > 0:
            self.left -= 1
            raise self.fault


UNAVAILABLE = errors.StoreUnavailable(schema="cell", reason="it is away")
