"""Call a service without a step: while the service does not answer, calls are refused at once and hold no thread."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from oslo_config import cfg

from conductor.engine.bulkheads import Bulkheads, CircuitOpen
from conductor.engine.steps import Backoff
from moorage import errors
from moorage.batches import BatchItem
from moorage.bus.bus import Client
from moorage.messages.wire import Message, R

#: The timeout of a probe, in seconds; no call waits for a probe.
_PROBE_SECONDS = 2.0
#: The errors of calls that the service has not answered.
_UNANSWERED = (errors.NoReply, errors.BusUnavailable, errors.DeadlineExceeded)


def endpoint_bulkheads(conf: cfg.ConfigOpts, backoff: Backoff, patience: float) -> Bulkheads:
    """Return the bulkheads of the services that endpoints call, which may hold a part of the threads of a server.

    :param patience: the seconds for which an endpoint waits for an answer.
    """
    share = max(1, conf.rpc.threads // 2)
    return Bulkheads("service", share, backoff, (errors.NoReply,), patience / 3, postpones=False)


class GuardedClient:
    """A client for calls that are never postponed: those of endpoints, and of steps that also call other services.

    :param name: the name of the service, for the log; clients with the same name share a bulkhead.
    """

    def __init__(self, client: Client, bulkheads: Bulkheads, name: str) -> None:
        self._client = client
        self._bulkheads = bulkheads
        self._name = name
        self._probe = partial(client.ping, _PROBE_SECONDS)

    def call(self, message: Message[R]) -> R:
        """Send a message and return its answer; see :meth:`moorage.bus.bus.Client.call`.

        :raises Overloaded: the service has not answered for a while, and the message was not sent.
        """
        try:
            return self.call_if_admitted(message)
        except CircuitOpen as away:
            raise away.refusal(message.method, self._name) from away

    def call_if_admitted(self, message: Message[R]) -> R:
        """Do as :meth:`call`, for a caller that has its own error for a message that was not sent.

        :raises CircuitOpen: the service has not answered for a while, and the message was not sent.
        """
        with self._admitted():
            return self._client.call(message)

    def call_many_if_admitted(
        self, items: Sequence[BatchItem[Message[Any], Any]]
    ) -> Iterator[Sequence[BatchItem[Message[Any], Any]]]:
        """Do as :meth:`call_if_admitted` for messages whose answers one thread waits for, and set their outcomes.

        The thread holds one place of the bulkhead.

        :return: yields the items that have an outcome; see :meth:`moorage.bus.bus.Client.call_many`.
        :raises CircuitOpen: the service has not answered for a while, and no message was sent.
        """
        with suppress(errors.MoorageError), self._admitted():
            yield from self._client.call_many(items)
            unanswered = [item.error for item in items if isinstance(item.error, _UNANSWERED)]
            # One answer proves that the service is alive.
            if len(unanswered) == len(items):
                raise unanswered[-1]

    def _admitted(self) -> AbstractContextManager[None]:
        return self._bulkheads.admit(self._name, self._name, self._probe, may_postpone=False)
