"""Message handlers: find the handler of a message, bind its context, and encode its answer or error."""

import inspect
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

# isort: split
import oslo_messaging

from moorage import context, errors, failpoints, metrics, tracing
from moorage.bus.calling import SECONDS_LEFT, TRACEPARENT, plain_type, request_id_of
from moorage.messages.wire import Message, Mutation, R, decode_strictly, encode

LOG = logging.getLogger(__name__)

_SERVES = "_moorage_serves"

#: The key of the context beside a message that holds, within the server's process, the end of the seconds that it has
#: for it, by the monotonic clock.
DEADLINE = "deadline"
#: The topics from which something is ordered, and what services report there every few seconds.
_ORDERED_OF = ("conductor", "scheduler")
_REPORTS = ("report_hosts",)
#: Longer than any caller waits; a larger number is ignored, so that no sum overflows. Arbitrary.
_LONGEST_LEFT = 86_400.0

S = TypeVar("S")
M = TypeVar("M")


def serves(message_type: type[Message[R]]) -> Callable[[Callable[[S, M], R]], Callable[[S, M], R]]:
    """Mark a method, which takes a message and returns its answer, as the handler of ``message_type``."""

    def mark(handler: Callable[[S, M], R]) -> Callable[[S, M], R]:
        setattr(handler, _SERVES, message_type)
        return handler

    return mark


def handlers(services: Sequence[object]) -> Iterator[tuple[type[Message[Any]], Callable[[Any], Any]]]:
    """Yield each message type with its handler.

    :param services: objects with methods that are marked with :func:`serves`, or mappings of message types to handlers.
    """
    for service in services:
        if isinstance(service, Mapping):
            yield from service.items()
            continue
        for name in dir(type(service)):
            # Looked up on the class: looked up on the object, its properties would run.
            message_type = getattr(inspect.getattr_static(type(service), name), _SERVES, None)
            if message_type is not None:
                yield message_type, getattr(service, name)


class Endpoint:
    """An endpoint of oslo.messaging for one method: a target with the method's version, and the method."""

    def __init__(
        self, message_type: type[Message[Any]], handler: Callable[[Any], Any], service_name: str | None
    ) -> None:
        self.target = oslo_messaging.Target(version=message_type.newest_version())
        self._type = message_type
        self._handler = handler
        self._service_name = service_name
        self._span_name = f"{message_type.topic} {message_type.method}"
        self._may_begin_trace = _may_begin_trace(message_type)
        self._seconds = metrics.RPC_SECONDS.labels(message_type.topic, message_type.method)
        metrics.RPC_LATE.labels(message_type.topic, message_type.method)
        failpoints.declare("serve", message_type.topic, message_type.method)

        # The library finds the method by its name, and passes each field of the message by keyword.
        def exposed(ctxt: dict[str, Any], /, **arguments: Any) -> Any:
            return self._counted(ctxt, arguments)

        if hasattr(self, message_type.method):
            raise TypeError(f"{message_type.method!r} cannot be the name of a method on the bus")
        setattr(self, message_type.method, oslo_messaging.expose(exposed))

    def _counted(self, ctxt: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Answer the message, and count it by its result."""
        began, result = time.perf_counter(), metrics.FAULT
        try:
            answer = self._answer(ctxt, arguments)
            result = metrics.OK
        except oslo_messaging.ExpectedException as refusal:
            result = refusal.exc_info[0].code
            raise
        else:
            return answer
        finally:
            self._seconds.observe(time.perf_counter() - began)
            metrics.RPC_REQUESTS.labels(self._type.topic, self._type.method, result).inc()

    def _answer(self, ctxt: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Decode the message, and handle it under its sender's ids and deadline."""
        with context.bound(
            service=self._service_name,
            request_id=_short_text(ctxt.get("request_id")),
            attempt_id=_short_text(ctxt.get("attempt_id")),
            deadline=ctxt.get(DEADLINE),
            span=tracing.caller_span(ctxt.get(TRACEPARENT)),
        ):
            try:
                context.check_deadline("before it was begun")
                message = decode_strictly(self._type, arguments)
            except errors.DeadlineExceeded as refusal:
                LOG.warning("%s is refused: its caller waits no longer", self._type.method)
                metrics.RPC_LATE.labels(self._type.topic, self._type.method).inc()
                raise _expected(refusal) from None
            except errors.MoorageError as refusal:
                metrics.RPC_MALFORMED.labels(self._type.topic, self._type.method).inc()
                raise _expected(refusal) from None
            with context.bound(
                request_id=None if context.current().request_id else request_id_of(message),
                attempt_id=getattr(message, "attempt_id", None),
            ):
                return self._handle(message)

    def _place(self, message: Message[Any]) -> Literal["below span", "below request", "first of request"]:
        if not self._may_begin_trace:
            return "below span"
        # A step of another request has an id of its own: this is no beginning, even if its peer sends no span.
        return "first of request" if request_id_of(message) == context.current().request_id else "below request"

    def _handle(self, message: Message[Any]) -> Any:
        with failpoints.within("serve", message.topic, message.method):
            failpoints.reached("begin")
            try:
                return self._answered(message)
            finally:
                failpoints.reached("reply")

    def _answered(self, message: Message[Any]) -> Any:
        try:
            with tracing.span(
                self._span_name,
                kind="server",
                place=self._place(message),
                about=message,
            ):
                return _fitting(message, encode(self._handler(message)))
        except errors.MoorageError as refusal:
            LOG.debug("%s is answered with %s: %s", message.method, type(refusal).__name__, refusal)
            raise _expected(refusal) from None
        except Exception as fault:
            LOG.exception("%s has failed", message.method)
            raise _expected(errors.InternalError(kind=type(fault).__name__)) from None


# --- Size -----------------------------------------------------------------------------------------------------------

#: Bytes of an answer on the bus. RabbitMQ 4 takes messages of 16 MiB, and answers a larger one by closing the channel:
#: the caller gets no answer. A build is handed to a cell with the scheduler's answer and the requests in one message,
#: which is larger than the answer.
MAX_REPLY = 12 * 2**20
#: An encoded answer of at most so many bytes fits: the library encodes it twice, which makes at most 3.5 bytes of one.
_SURELY_FITS = MAX_REPLY // 4


def _fitting(message: Message[Any], answer: Any) -> Any:
    """Return the answer unchanged if it fits into one message.

    :raises ReplyTooLarge: it does not.
    """
    if len(msgspec.json.encode(answer)) <= _SURELY_FITS:
        return answer
    size = len(json.dumps(json.dumps(answer)))
    if size > MAX_REPLY:
        raise errors.ReplyTooLarge(method=message.method, size=size, limit=MAX_REPLY)
    return answer


# --- Errors ---------------------------------------------------------------------------------------------------------


def _expected(refusal: errors.MoorageError) -> oslo_messaging.ExpectedException:
    """Wrap an error as one that the library does not log as a crash.

    The error is built anew from the nearest class that every peer has, and so carries neither the traceback nor the
    causes that the library would otherwise send to the caller.
    """
    plain = plain_type(type(refusal))(**refusal.data)
    wrapped = oslo_messaging.ExpectedException()
    wrapped.exc_info = (type(plain), plain, None)
    return wrapped


# --- Ids ------------------------------------------------------------------------------------------------------------


def _may_begin_trace(message_type: type[Message[Any]]) -> bool:
    """Return whether a trace may begin with such a message: one by which somebody orders something from a cloud."""
    is_order = issubclass(message_type, Mutation) and message_type.topic in _ORDERED_OF
    return is_order and message_type.method not in _REPORTS


def _short_text(value: object) -> str | None:
    """Return a peer's text if it is fit for a log line, else None."""
    return value if isinstance(value, str) and len(value) <= 64 and value.isprintable() else None


def stamp(ctxt: dict[str, Any], taken: float, end: float | None = None) -> None:
    """Set the deadline of a message just taken in the context that came beside it.

    :param taken: the earliest time at which this process may have had the message, by the monotonic clock.
    :param end: the caller's deadline, where it is known exactly.
    """
    ctxt.pop(DEADLINE, None)  # a peer's clock is another
    left = ctxt.pop(SECONDS_LEFT, None)
    # A former release sends no such number, and other clients of the broker may send anything.
    if isinstance(left, int | float) and not isinstance(left, bool) and 0 <= left <= _LONGEST_LEFT:
        ctxt[DEADLINE] = taken + left if end is None else end
