"""Calls to one topic over any bus library: deadlines, servers of former releases without guards, decoded answers.

This module imports no bus library, because commands call without one (:mod:`moorage.bus.rabbit.direct`).
"""

import abc
import itertools
import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from moorage import context, errors, failpoints, ids, tracing
from moorage.addresses import mask_url
from moorage.bus.message_size import check_request
from moorage.messages.wire import Message, Mutation, R, decode

LOG = logging.getLogger(__name__)

#: The fractions of a caller's time-out for the queue and for the server that has taken the message. The rest is for the
#: transport of the answer, and for the half second by which a server's time of arrival is uncertain.
_QUEUE_PART = 0.4
SERVER_PART = 0.5
#: The most seconds for the queue. RabbitMQ refuses a message that may wait for more than ten years. Arbitrary.
_LONGEST_IN_QUEUE = 1e8
#: The prefix of a reply queue that the broker deletes when its caller's connection ends: if such a queue is missing,
#: its caller is gone. Other reply queues may be missing until their callers have connected again.
REPLIES_OF_CONNECTION = "reply_direct_"
#: The key of the context beside a message for the seconds that the server has, from the time when it takes the message.
SECONDS_LEFT = "seconds_left"
#: The key of the context beside a message for the caller's span, in the format of W3C Trace Context.
TRACEPARENT = "traceparent"
#: The key of the context beside a message for its :class:`moorage.context.Sending`, as text.
SENDING = "sending"
#: The name space of the calls that every server answers; every release uses this name on the wire.
HOUSEKEEPING = "moorage.bus"
_LONGEST_REASON = 300
#: A uuid, a slash and a number of 18 digits. No client of Moorage sends a longer text.
_LONGEST_SENDING = 55

#: The progress of one call; see :meth:`Caller.exchange`.
Exchange = Generator[float, Any, R]


def seconds_for_queue(timeout: float) -> float:
    """Return the part of a caller's time-out that its message may spend in the broker's queue, in seconds."""
    return min(timeout * _QUEUE_PART, _LONGEST_IN_QUEUE)


class Wake(Message[None], frozen=True, kw_only=True):
    """An empty call that checks whether a server answers."""

    topic = "any"
    method = "wake"


class Caller(abc.ABC):
    """Sends calls to one topic, or to one server of it; each subclass uses one library to send them."""

    #: The exceptions of :meth:`ask` for a message that is too new for a server of a former release.
    too_new: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, topic: str, server: str | None, timeout: float) -> None:
        self._address = topic if server is None else f"{topic}.{server}"
        self._timeout = timeout

    def call(self, message: Message[R], timeout: float | None = None) -> R:
        """Send ``message`` and return its answer.

        The remaining seconds travel with the message. If the call is made while another call is handled, it has at most
        the remaining seconds of that call.

        :raises NoReply: no answer in time; whether the message was carried out is unknown.
        :raises BusUnavailable: the broker cannot be reached.
        :raises DeadlineExceeded: the server took the message too late, or the current context's deadline has passed.
        :raises RequestTooLarge: the request does not fit into one message, and was not sent.
        :raises MoorageError: the server raised this error.
        """
        exchange = self.exchange(message, timeout)
        seconds = next(exchange)
        return ended_exchange(exchange, lambda: self.ask(message, seconds))

    def exchange(self, message: Message[R], timeout: float | None = None) -> "Exchange[R]":
        """Return a generator that does everything for a call except sending the message.

        When the message is to be sent, it yields the seconds for it. It then receives the encoded answer
        (:func:`ended_exchange`), and returns the decoded one.
        """
        check_request(message)
        seconds = self.seconds(timeout)
        with (
            tracing.span(f"{message.topic} {message.method}", kind="client", about=message),
            self.faults(message, seconds),
            context.bound(deadline=time.monotonic() + seconds),
        ):
            self.reach()
            failpoints.reached("send", message.topic, message.method)
            # The check of the broker and a failpoint may have taken time. A message that is too late is not sent.
            context.check_deadline(f"before {message.method} was sent")
            try:
                data = yield seconds
            except self.too_new:
                # A server of a former release has refused the message because it does not support the guards.
                if (unguarded := message.unguarded()) == message:
                    raise
                data = self.ask(unguarded, seconds)
            failpoints.reached("answered", message.topic, message.method)
        self.note_reply()
        try:
            reply: R = decode(message.reply_type(), data)
        except errors.InvalidRequest as fault:
            # The server is at fault. The caller must not treat this as a refusal of its request.
            LOG.error("The answer to %s on %s is malformed: %s", message.method, self._address, fault)
            raise errors.InternalError(kind="MalformedReply") from fault
        return reply

    @abc.abstractmethod
    def ping(self, timeout: float | None = None) -> str | None:
        """Return the identity of the server of this topic that answers; None if it is of a former release.

        Every server answers, whatever methods it has.

        :raises NoReply: no server answered in time.
        :raises BusUnavailable: the broker cannot be reached.
        """

    @abc.abstractmethod
    def ask(self, message: Message[Any], seconds: float) -> Any:
        """Send a message, and return the encoded answer."""

    @abc.abstractmethod
    def faults(self, message: Message[Any], seconds: float) -> AbstractContextManager[None]:
        """Translate the library's exceptions into Moorage's errors."""

    def reach(self) -> None:  # noqa: B027 - connecting without the bus library fails within seconds
        """Check that the broker can be reached, if the library would otherwise wait for it without end."""

    def note_reply(self) -> None:  # noqa: B027
        """Note that an answer has come."""

    def seconds(self, timeout: float | None) -> float:
        """Return the time-out of a call: its own, or the time to the current context's deadline if that is shorter.

        :raises DeadlineExceeded: that deadline has passed.
        """
        seconds = self._timeout if timeout is None else timeout
        context.check_deadline(f"before {self._address} was called")
        left = context.seconds_left()
        return seconds if left is None else min(seconds, max(left, 0.001))

    def not_served(self, message: Message[Any]) -> errors.InvalidRequest:
        """Return the error for a method that no server of the topic supports at the message's version."""
        version = message.unguarded().lowest_version()
        return errors.InvalidRequest(
            path="$", reason=f"{message.method} is not served on {self._address} at version {version}"
        )


def ended_exchange(exchange: Exchange[R], get_answer: Callable[[], Any]) -> R:
    """End a call whose message has been sent, and return its answer.

    :param get_answer: returns the encoded answer, or raises the error of the bus or of the server.
    """
    try:
        try:
            data = get_answer()
        except BaseException as fault:  # noqa: BLE001 - the generator raises it again, or another one instead
            exchange.throw(fault)
        else:
            exchange.send(data)
    except StopIteration as end:
        reply: R = end.value
        return reply
    raise AssertionError("a call is sent once")


class _Sendings:
    """Numbers the requests that this process sends."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Restart the numbers under a new sender id: a forked process must not repeat its parent's sendings."""
        self._sender = ids.fresh()
        self._numbers = itertools.count(1)

    def next(self) -> context.Sending:
        """Return the next sending."""
        return context.Sending(self._sender, next(self._numbers))


SENDINGS = _Sendings()
os.register_at_fork(after_in_child=SENDINGS.restart)


def _sending(message: Message[Any]) -> str | None:
    """Return the sending of a request as text, or None for a message that changes nothing.

    Requests that are made while another request is handled have the sending of that request. The servers that carry
    them out can therefore detect a copy, too.
    """
    if not isinstance(message, Mutation):
        return None
    sender, number = context.current().sending or SENDINGS.next()
    return f"{sender}/{number}"


def read_sending(text: object) -> context.Sending | None:
    """Return the sending in the context beside a message; None if there is none, as in one of a former release."""
    if not isinstance(text, str) or len(text) > _LONGEST_SENDING:
        return None
    sender, _, number = text.rpartition("/")
    return context.Sending(sender, int(number)) if number.isascii() and number.isdecimal() else None


def outgoing(message: Message[Any], seconds: float | None = None) -> dict[str, str | float]:
    """Return the context that travels beside a message: the ids, sending and trace of its request, and its seconds.

    :param seconds: the caller's time-out; None for a cast, which has no deadline.
    """
    now = context.current()
    sent: dict[str, str | float | None] = {
        "request_id": now.request_id or request_id_of(message),
        "attempt_id": now.attempt_id,
        SECONDS_LEFT: None if seconds is None else seconds * SERVER_PART,
        TRACEPARENT: tracing.traceparent(),
        SENDING: _sending(message),
    }
    return {name: value for name, value in sent.items() if value is not None}


def request_id_of(message: Message[Any]) -> str | None:
    """Return the request id of a message, or None."""
    return message.request_id if isinstance(message, Mutation) else None


def plain_error(error: errors.MoorageError) -> errors.MoorageError:
    """Return a copy of an error in its nearest class from :mod:`moorage.errors`, which every peer knows."""
    kind = next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
    plain: errors.MoorageError = kind(**error.data)
    return plain


def reason(fault: BaseException) -> str:
    """Return the text of an exception, shortened for one of Moorage's errors."""
    return (str(fault) or type(fault).__name__)[:_LONGEST_REASON]


def unreadable(url: str) -> errors.ConfigurationError:
    """Return the error for a URL whose host or port cannot be parsed.

    It does not quote the library's text, which may contain part of a password: with reserved characters in the
    password, the library takes a part of it for the port.
    """
    return errors.ConfigurationError(
        reason=f"transport_url {mask_url(url)}: a host or a port cannot be read; in a user or a password, characters "
        "such as / # ? are written as %2F %23 %3F"
    )
