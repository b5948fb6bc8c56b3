"""A client of an agent for its cell conductors; it repeats a message with the same id until it is answered."""

import logging
import threading

import tenacity

from moorage import errors
from moorage.bus.bus import Client
from moorage.messages.wire import Message, R

LOG = logging.getLogger(__name__)

# Seconds between two tries: short at first, for a conductor that is being restarted, then a few seconds, so that
# thousands of waiting attempts do not overload one that has just returned. Arbitrary.
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0


#: The errors that the content of a report causes, perhaps only that of one host: the conductor refuses the report or
#: fails unexpectedly on it, or it cannot be encoded.
AT_FAULT = (errors.CallerError, errors.PlacementRefused, errors.StaleView, errors.InternalError, TypeError, ValueError)


class Interrupted(Exception):
    """A repeated message was interrupted: its answer is no longer wanted."""


class CellClient:
    """A client of the cell conductors' topic; any one of them takes a message."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def once(self, message: Message[R], timeout: float | None = None) -> R:
        """Call without a retry.

        :raises MoorageError: the conductor's error, or no answer came.
        """
        return self._client.call(message, timeout=timeout)

    def unless_ended(self, message: Message[R], ended: threading.Event, timeout: float | None = None) -> R:
        """Call as :meth:`until_answered` does, but not at all once ``ended`` is set.

        A round of many messages then ends with the one in progress.
        """
        if ended.is_set():
            raise Interrupted
        return self.until_answered(message, ended, timeout)

    def until_answered(self, message: Message[R], interrupt: threading.Event, timeout: float | None = None) -> R:
        """Call until a conductor answers, each time with the same ids.

        :param timeout: seconds to wait for one answer.
        :raises Interrupted: ``interrupt`` was set before an answer came.
        :raises MoorageError: the answer is an error.
        """

        def nap(seconds: float) -> None:
            if interrupt.wait(seconds):
                raise Interrupted

        def log_retry(state: tenacity.RetryCallState) -> None:
            fault = state.outcome.exception() if state.outcome else None
            LOG.warning("%s is repeated: %s", message.method, fault)

        answer: R = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((errors.Unavailable, errors.TryAgain)),
            wait=tenacity.wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
            sleep=nap,
            before_sleep=log_retry,
        )(self._client.call, message, timeout=timeout)
        return answer
