"""An agent's calls to its cell conductor, repeated with the same ids until they are answered."""

import logging
import threading

import tenacity

from moorage import errors
from moorage.bus.bus import Client
from moorage.messages.wire import Message, R

LOG = logging.getLogger(__name__)

# Between two tries, in seconds: from an eye's blink, for a conductor that is being restarted, to a few seconds, so that
# thousands of waiting attempts do not bury one that has just come back. Arbitrary.
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0


class Interrupted(Exception):
    """What was to be repeated until it was answered is no longer wanted."""


class CellClient:
    """Calls one cell conductor, whichever of them takes it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def once(self, message: Message[R], timeout: float | None = None) -> R:
        """Call once.

        :raises MoorageError: what the conductor has raised, or that it did not answer.
        """
        return self._client.call(message, timeout=timeout)

    def until_answered(self, message: Message[R], interrupt: threading.Event, timeout: float | None = None) -> R:
        """Call at least once, and again with the same ids for as long as nobody answers.

        :param timeout: seconds to wait for one answer.
        :raises Interrupted: ``interrupt`` was set and the last call had not been answered.
        :raises MoorageError: the answer is an error.
        """

        def nap(seconds: float) -> None:
            if interrupt.wait(seconds):
                raise Interrupted

        def tell(state: tenacity.RetryCallState) -> None:
            fault = state.outcome.exception() if state.outcome else None
            LOG.warning("%s is repeated: %s", message.method, fault)

        answer: R = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((errors.Unavailable, errors.TryAgain)),
            wait=tenacity.wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
            sleep=nap,
            before_sleep=tell,
        )(self._client.call, message, timeout=timeout)
        return answer
