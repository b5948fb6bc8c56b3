"""Calls of one topic, whatever library carries them: deadlines, guards of former releases, and decoded answers.

It imports no bus library: a command that only calls needs none (:mod:`moorage.bus.direct`).
"""

import abc
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from moorage import context, errors, failpoints, ids, tracing
from moorage.bus.message_size import check_request
from moorage.messages.wire import Message, Mutation, R, decode

LOG = logging.getLogger(__name__)

#: Parts of a caller's time-out: for the queue, and for the server that has taken the message. The rest covers the
#: answer's way back, and the half second by which a server's time of arrival is uncertain.
QUEUE_PART = 0.4
SERVER_PART = 0.5
#: The key of the context beside a message that holds the seconds which the server has for it, once it has taken it.
SECONDS_LEFT = "seconds_left"
#: The key of the context beside a message that holds the caller's span, as W3C Trace Context writes it.
TRACEPARENT = "traceparent"
#: The key of the context beside a message that holds its :class:`moorage.context.Sending`, as text.
SENDING = "sending"
#: The name space of the calls that every server answers; on the wire, every release names it so.
HOUSEKEEPING = "moorage.bus"
_LONGEST_REASON = 300
#: A uuid and a number of 18 digits. Others are of no client of ours.
_LONGEST_SENDING = 55

#: The course of one call; see :meth:`Caller.exchange`.
Exchange = Generator[float, Any, R]


class Wake(Message[None], frozen=True, kw_only=True):
    """An empty call that checks whether a server answers."""

    topic = "any"
    method = "wake"


class Caller(abc.ABC):
    """Sends calls to one topic, or to one server of it; a subclass has the library that carries them."""

    #: The exceptions of :meth:`ask` by which a server of a former release refuses a message that is too new.
    too_new: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, topic: str, server: str | None, timeout: float) -> None:
        self._address = topic if server is None else f"{topic}.{server}"
        self._timeout = timeout

    def call(self, message: Message[R], timeout: float | None = None) -> R:
        """Send ``message`` and return its answer.

        The remaining seconds travel with the message; those of a call made within the handling of another call are at
        most the remaining seconds of that call.

        :raises NoReply: no answer in time; whether the message was carried out is unknown.
        :raises BusUnavailable: the broker cannot be reached.
        :raises DeadlineExceeded: the server took the message too late, or the current context's deadline has passed.
        :raises RequestTooLarge: it is more than fits into one message, and was not sent.
        :raises MoorageError: the server raised this error.
        """
        exchange = self.exchange(message, timeout)
        seconds = next(exchange)
        return ended_exchange(exchange, lambda: self.ask(message, seconds))

    def exchange(self, message: Message[R], timeout: float | None = None) -> "Exchange[R]":
        """Return a generator that does all of a call but the sending: it yields when the message is to be sent.

        It yields the seconds for it, and is sent the encoded answer (:func:`ended_exchange`); it returns the answer.
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
            # The check of the broker and a failpoint may have taken time: a message that is too late is not sent.
            context.check_deadline(f"before {message.method} was sent")
            try:
                data = yield seconds
            except self.too_new:
                # A server of a former release has refused the message; it does not support the guards.
                if (unguarded := message.unguarded()) == message:
                    raise
                data = self.ask(unguarded, seconds)
            failpoints.reached("answered", message.topic, message.method)
        self.has_replied()
        try:
            reply: R = decode(message.reply_type(), data)
        except errors.InvalidRequest as fault:
            # The fault is the server's: the caller must not take it for a refusal of the request.
            LOG.error("The answer to %s on %s is malformed: %s", message.method, self._address, fault)
            raise errors.InternalError(kind="MalformedReply") from fault
        return reply

    @abc.abstractmethod
    def ping(self, timeout: float | None = None) -> str | None:
        """Return which server of this topic has answered, null for one of a former release; its methods do not matter.

        :raises NoReply: no server answered in time.
        :raises BusUnavailable: the broker cannot be reached.
        """

    @abc.abstractmethod
    def ask(self, message: Message[Any], seconds: float) -> Any:
        """Send a message, and return the encoded answer."""

    @abc.abstractmethod
    def faults(self, message: Message[Any], seconds: float) -> AbstractContextManager[None]:
        """Translate the library's exceptions into errors of ours."""

    @abc.abstractmethod
    def reach(self) -> None:
        """Check that the broker can be reached, where the library would wait for it without end."""

    @abc.abstractmethod
    def has_replied(self) -> None:
        """Note that an answer has come."""

    def seconds(self, timeout: float | None) -> float:
        """Return the time-out of a call: its own, or the shorter time to the deadline of the current context.

        :raises DeadlineExceeded: that deadline has passed.
        """
        seconds = self._timeout if timeout is None else timeout
        context.check_deadline(f"before {self._address} was called")
        left = context.seconds_left()
        return seconds if left is None else min(seconds, max(left, 0.001))

    def not_served(self, message: Message[Any]) -> errors.InvalidRequest:
        """Return the error of a method that no server of the topic has at the message's version."""
        version = message.unguarded().lowest_version()
        return errors.InvalidRequest(
            path="$", reason=f"{message.method} is not served on {self._address} at version {version}"
        )


def ended_exchange(exchange: Exchange[R], asked: Callable[[], Any]) -> R:
    """End a call whose message has been sent, and return its answer.

    :param asked: returns the encoded answer, or raises the error of the sending or of the server.
    """
    try:
        try:
            data = asked()
        except BaseException as fault:  # noqa: BLE001 - it is raised again there, or another in its place
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
        """Begin anew under another name."""
        self._sender = ids.fresh()
        self._numbers = itertools.count(1)

    def next(self) -> context.Sending:
        """Return the next sending."""
        return context.Sending(self._sender, next(self._numbers))


SENDINGS = _Sendings()
os.register_at_fork(after_in_child=SENDINGS.restart)


def _sending(message: Message[Any]) -> str | None:
    """Return the sending of a request as text, or None for a message that changes nothing.

    What is asked for within the handling of a request is of the same sending, so that those who carry out its parts
    can tell a copy too.
    """
    if not isinstance(message, Mutation):
        return None
    sender, number = context.current().sending or SENDINGS.next()
    return f"{sender}/{number}"


def read_sending(text: object) -> context.Sending | None:
    """Return the sending that stands beside a message; None if none does, as where a former release has sent it."""
    if not isinstance(text, str) or len(text) > _LONGEST_SENDING:
        return None
    sender, _, number = text.rpartition("/")
    return context.Sending(sender, int(number)) if number.isascii() and number.isdecimal() else None


def outgoing(message: Message[Any], seconds: float | None = None) -> dict[str, str | float]:
    """Return the context that travels beside a message: its request's ids, sending and trace, and its seconds.

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
    """Return an error anew, of the nearest class that every peer has: of those in :mod:`moorage.errors`."""
    kind = next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
    plain: errors.MoorageError = kind(**error.data)
    return plain


def reason(fault: BaseException) -> str:
    """Return the text of an exception, shortened for an error of ours."""
    return (str(fault) or type(fault).__name__)[:_LONGEST_REASON]


_HOST = r"(?:[^:@/,?]*(?::[^:@/,?]*)?@)?[^@/,?]*"
_REGULAR = re.compile(rf"{_HOST}(?:,{_HOST})*(?:[/?][^@]*)?")


def mask_url(url: str) -> str:
    """Return ``url`` with every password hidden, for logs and errors.

    Where a password has reserved characters, its end is ambiguous: then everything between the first user and the last
    host is hidden.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        # Mistyped; it is shown with the error that says so.
        scheme, rest = "", url
    if "@" not in rest:
        return url
    if _REGULAR.fullmatch(rest):
        return scheme + mark + re.sub(r"((?:^|,)[^:@/,?]*):[^:@/,?]*@", r"\1:***@", rest)
    hidden, _, host = rest.rpartition("@")
    return f"{scheme}{mark}{hidden.partition(':')[0]}:***@{host}"


def unreadable(url: str) -> errors.ConfigurationError:
    """Return the error for a URL of which a host or a port cannot be read.

    It does not have the library's text: of a password with reserved characters, a part is taken for the port there.
    """
    return errors.ConfigurationError(
        reason=f"transport_url {mask_url(url)}: a host or a port cannot be read; in a user or a password, characters "
        "such as / # ? are written as %2F %23 %3F"
    )
