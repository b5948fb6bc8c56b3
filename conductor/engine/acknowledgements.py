"""Acknowledge stored answers of the placement role and the schedulers once the answers are recorded here.

An acknowledged answer need not be kept any longer: its request is not repeated.
"""

import threading
import time
from contextvars import ContextVar
from typing import TypeVar

from oslo_config import cfg

from conductor.engine.bulkheads import Bulkheads, CircuitOpen, worker_share
from conductor.engine.step_calls import Calling, StepCall, run_calls_here
from conductor.engine.steps import Backoff
from moorage import context, ids
from moorage.bus.bus import Client
from moorage.messages import MAX_INSTANCES, AcknowledgeRequests
from moorage.messages.wire import Message, Mutation
from moorage.service.process import is_stopping

R = TypeVar("R")

#: The most acknowledgements kept in memory while they cannot be sent. Arbitrary: the other answers expire by age.
_MOST = 100_000
#: Seconds to wait for the placement role. Arbitrary, and short: the next round repeats what was not answered, and a
#: service that stops waits for the round in progress.
_PATIENCE = 3.0

#: The ids of the answered requests of a step.
_ANSWERED: ContextVar[list[str]] = ContextVar("answered")


def service_bulkheads(conf: cfg.ConfigOpts, backoff: Backoff) -> Bulkheads:
    """Return the bulkheads of the services of the main bus, by topic, for the steps of one conductor.

    They have no breakers: a breaker would use up the tries of a step that has sent nothing. Steps that wait continue in
    their order, whether they are repeated or not.
    """
    return Bulkheads("service", worker_share(conf), backoff, (), conf.rpc.call_timeout, postpones=False)


class Acknowledgements:
    """The requests that were answered, and the requests whose answers are recorded too.

    A step runs in one context, from its first call to the transaction that records it. If this process dies, its
    acknowledgements are lost: the answers are kept longer, without other consequences.
    """

    def __init__(self, placement: Client) -> None:
        self._placement = placement
        self._lock = threading.Lock()
        self._recorded: list[str] = []

    def answered(self, request_id: str) -> None:
        """Note that a request of the step of this context has been answered."""
        _ANSWERED.get([]).append(request_id)

    def begin(self) -> None:
        """Begin a step in this context."""
        _ANSWERED.set([])

    def recorded(self) -> None:
        """Note that the answers that the step of this context has received are recorded."""
        with self._lock:
            self._recorded += _ANSWERED.get([])[: max(0, _MOST - len(self._recorded))]
        _ANSWERED.set([])

    def send(self) -> None:
        """Send the acknowledgements; those that are not answered are sent again the next time.

        If the periodic task that runs this is to stop, no further message is sent.

        :raises Unavailable: the placement role does not answer.
        """
        while not is_stopping():
            with self._lock:
                part = self._recorded[:MAX_INSTANCES]
            if not part:
                return
            with context.bound(request_id=None, deadline=time.monotonic() + _PATIENCE):
                self._placement.call(AcknowledgeRequests(request_id=ids.fresh(), request_ids=tuple(part)))
            with self._lock:
                del self._recorded[: len(part)]


class AcknowledgingClient:
    """A client for steps, for a topic that stores its answers until they are acknowledged.

    :param may_postpone: false if a step has called another destination before: it cannot restart.
    """

    def __init__(
        self, client: Client, acknowledgements: Acknowledgements, bulkheads: Bulkheads, *, may_postpone: bool = True
    ) -> None:
        self._client = client
        self._acknowledgements = acknowledgements
        self._bulkheads = bulkheads
        self._may_postpone = may_postpone

    def call(self, message: Message[R]) -> R:
        """Send a message and return its answer; see :meth:`moorage.bus.bus.Client.call`.

        :raises Overloaded: other calls have waited for the service for too long, and the message was not sent; raised
            only for a call that cannot be postponed.
        :raises Postponed: other steps wait for a service; raised only within a step.
        """
        return run_calls_here(self.calling(message))

    def calling(self, message: Message[R]) -> Calling[R]:
        """Leave the sending of a message to the worker, and return its answer; raises as :meth:`call`."""
        topic = message.topic
        try:
            with self._bulkheads.admit(topic, topic, self._client.ping, may_postpone=self._may_postpone):
                answer: R = yield StepCall(self._client, message)
        except CircuitOpen as away:
            raise away.refusal(message.method, topic) from away
        if isinstance(message, Mutation):
            self._acknowledgements.answered(message.request_id)
        return answer
