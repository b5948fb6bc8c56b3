"""What the placement role and the schedulers need not keep any longer: answers that are on record here."""

import logging
import threading
from typing import TypeVar

from moorage import context, errors, ids
from moorage.bus.bus import Client
from moorage.messages import MAX_INSTANCES, AcknowledgeRequests
from moorage.messages.wire import Message, Mutation

LOG = logging.getLogger(__name__)

R = TypeVar("R")

#: The most that is kept in memory while nobody takes it; what is beyond that goes by its age. Arbitrary.
_MOST = 100_000


class Acknowledgements:
    """Requests that were answered, and those whose answers have been recorded since.

    A step is done in one thread, from its first call to the transaction that records it. What is lost with this
    process is kept longer there, and nothing else comes of it.
    """

    def __init__(self, placement: Client) -> None:
        self._placement = placement
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._recorded: list[str] = []

    def answered(self, request_id: str) -> None:
        """Note that the step of this thread has its answer."""
        self._here().append(request_id)

    def begin(self) -> None:
        """Note that this thread begins a step."""
        self._here().clear()

    def recorded(self) -> None:
        """Note that what the step of this thread has been answered is on record."""
        with self._lock:
            self._recorded += self._here()[: max(0, _MOST - len(self._recorded))]
        self._here().clear()

    def send(self) -> None:
        """Acknowledge what is on record; what is not taken is sent again the next time.

        :raises Unavailable: nobody has taken it.
        """
        while True:
            with self._lock:
                part = self._recorded[:MAX_INSTANCES]
            if not part:
                return
            with context.bound(request_id=None):
                self._placement.call(AcknowledgeRequests(request_id=ids.fresh(), request_ids=tuple(part)))
            with self._lock:
                del self._recorded[: len(part)]

    def _here(self) -> list[str]:
        if not hasattr(self._thread, "answered"):
            self._thread.answered = []
        answered: list[str] = self._thread.answered
        return answered


class AcknowledgingClient:
    """A topic that steps send to, and that keeps its answers until they are acknowledged."""

    def __init__(self, client: Client, acknowledgements: Acknowledgements) -> None:
        self._client = client
        self._acknowledgements = acknowledgements

    def call(self, message: Message[R]) -> R:
        """Send a message and return its answer; see :meth:`moorage.bus.bus.Client.call`."""
        answer = self._client.call(message)
        if isinstance(message, Mutation):
            self._acknowledgements.answered(message.request_id)
        return answer


def settle(acknowledgements: Acknowledgements) -> None:
    """Acknowledge for the last time, as far as that is possible."""
    try:
        acknowledgements.send()
    except errors.MoorageError as fault:
        LOG.info("Not acknowledged: %s", fault)
