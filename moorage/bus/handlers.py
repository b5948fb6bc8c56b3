"""Message handlers: find the handler of a message, bind its context, and encode its answer or error."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from moorage import context, errors, failpoints, metrics, tracing
from moorage.batches import BatchItem
from moorage.bus.calling import SECONDS_LEFT, SENDING, TRACEPARENT, plain_error, read_sending, request_id_of
from moorage.bus.message_size import fitting
from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend
from moorage.messages.wire import Message, Mutation, R, decode_strictly, encode

import oslo_messaging

LOG = logging.getLogger(__name__)

_SERVES = "_moorage_serves"
_SERVES_MANY = "_moorage_serves_many"

#: The key of the context beside a message for its deadline by the monotonic clock; used only within the server.
DEADLINE = "deadline"
#: The topics that take orders; and the methods there by which services report every few seconds, which are no orders.
_ORDERED_OF = ("conductor", "scheduler")
_REPORTS = ("report_hosts",)
#: The most seconds left that a message may carry; a larger number is ignored, so that no sum overflows. Arbitrary:
#: longer than any caller waits.
_LONGEST_LEFT = 86_400.0

S = TypeVar("S")
M = TypeVar("M")


@dataclass(frozen=True, slots=True, eq=False)
class LaterCalls:
    """Several calls of one message whose handling may take long: one separate thread ends them together.

    :param end: sets the outcome of each call; yields those that have one at the same time, as soon as they have it,
        each with None; or with a function, if the call must be ended alone after all.
    """

    end: Callable[[], Iterator[Mapping[BatchItem[Any, Any], Callable[[], Any] | None]]]


#: Sets the answer or the error of each of several messages of one method, within bounded time. For each message it
#: returns None, or, if the message must be handled alone, a function that handles it; or, for all messages that one
#: thread must handle together, the same :class:`LaterCalls`.
ManyHandler = Callable[[Sequence[BatchItem[Any, Any]]], Sequence[Callable[[], Any] | LaterCalls | None]]


def serves(message_type: type[Message[R]]) -> Callable[[Callable[[S, M], R]], Callable[[S, M], R]]:
    """Mark a method as the handler of ``message_type``: it takes a message and returns its answer."""

    def mark(handler: Callable[[S, M], R]) -> Callable[[S, M], R]:
        setattr(handler, _SERVES, message_type)
        return handler

    return mark


def serves_many(message_type: type[Message[Any]]) -> Callable[[M], M]:
    """Mark a method as the :data:`ManyHandler` of ``message_type``, for the calls that arrive in one message."""

    def mark(handler: M) -> M:
        setattr(handler, _SERVES_MANY, message_type)
        return handler

    return mark


def handlers(services: Sequence[object]) -> Iterator[tuple[type[Message[Any]], Callable[[Any], Any]]]:
    """Yield each message type with its handler.

    :param services: objects with methods that are marked with :func:`serves`, or mappings of message types to handlers.
    """
    for service in services:
        if isinstance(service, Mapping):
            yield from service.items()
        else:
            yield from _marked(service, _SERVES)


def many_handlers(services: Sequence[object]) -> dict[type[Message[Any]], ManyHandler]:
    """Return the handlers that are marked with :func:`serves_many`, by message type."""
    return {kind: handler for service in services for kind, handler in _marked(service, _SERVES_MANY)}


def _marked(service: object, mark: str) -> Iterator[tuple[type[Message[Any]], Callable[[Any], Any]]]:
    # Look at the classes: a look-up on the object would run its properties.
    attributes = {name: each for kind in reversed(type(service).__mro__) for name, each in vars(kind).items()}
    for name, attribute in attributes.items():
        message_type = getattr(attribute, mark, None)
        if message_type is not None:
            yield message_type, getattr(service, name)


# --- Endpoints ------------------------------------------------------------------------------------------------------


class ReceivedCall(NamedTuple):
    """A call as received: the context beside the message, and the message's fields."""

    ctxt: Mapping[str, Any]
    arguments: Mapping[str, Any]


#: An error as the library sends it: its class, the error, and None instead of a traceback.
Failure = tuple[type[BaseException], BaseException, None]


class Answer(NamedTuple):
    """The outcome of a call: the encoded answer, or an error."""

    result: Any = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """A call that is being handled, alone or together with others."""

    item: BatchItem[Any, Any]
    span: object | None
    #: The time when handling began, by the performance counter.
    since: float


class LaterAnswers:
    """The answers to several calls of one message, which a separate thread handles together."""

    def __init__(
        self,
        calls: LaterCalls,
        end: Callable[[_Begun], Answer],
        end_alone: Callable[[_Begun, Callable[[], Any]], Answer],
    ) -> None:
        self._calls = calls
        self._end = end
        self._end_alone = end_alone
        self._begun: dict[BatchItem[Any, Any], tuple[int, _Begun]] = {}

    def add(self, position: int, begun: _Begun) -> None:
        """Add a call at a position in its message."""
        self._begun[begun.item] = position, begun

    def portions(self) -> Iterator[list[tuple[int, Answer | Callable[[], Answer]]]]:
        """Handle the calls; yield, with the position of each, its answer or a function that handles it alone."""
        try:
            for ended in self._calls.end():
                yield [self._answer(item, handle) for item, handle in ended.items()]
        except Exception as fault:  # noqa: BLE001 - it is the answer to the calls that have none
            for item in self._begun:
                if not item.is_done:
                    item.fail(fault)
        if self._begun:
            yield [self._answer(item, None) for item in list(self._begun)]

    def _answer(
        self, item: BatchItem[Any, Any], handle: Callable[[], Any] | None
    ) -> tuple[int, Answer | Callable[[], Answer]]:
        position, begun = self._begun.pop(item)
        return position, self._end(begun) if handle is None else partial(self._end_alone, begun, handle)


class Endpoint:
    """An endpoint of oslo.messaging for one method: a target with the method's version, and the method."""

    def __init__(
        self,
        message_type: type[Message[Any]],
        handler: Callable[[Any], Any],
        service_name: str | None,
        many: ManyHandler | None = None,
    ) -> None:
        self.target = oslo_messaging.Target(version=message_type.newest_version())
        self.method = message_type.method
        self._type = message_type
        self._handler = handler
        self._many = many
        self._service_name = service_name
        self._span_name = f"{message_type.topic} {message_type.method}"
        # A trace may begin only with an order, and not with a report.
        is_order = issubclass(message_type, Mutation) and message_type.topic in _ORDERED_OF
        self._may_begin_trace = is_order and message_type.method not in _REPORTS
        self._seconds = metrics.RPC_SECONDS.labels(message_type.topic, message_type.method)
        metrics.RPC_LATE.labels(message_type.topic, message_type.method)
        failpoints.declare("serve", message_type.topic, message_type.method)

        # The library finds the method by its name, and passes each field of the message by keyword.
        def exposed(ctxt: dict[str, Any], /, **arguments: Any) -> Any:
            answer = self._answer(ReceivedCall(ctxt, arguments))
            if answer.failure is None:
                return answer.result
            refusal = oslo_messaging.ExpectedException()  # the library does not log this class as a crash
            refusal.exc_info = answer.failure
            raise refusal

        if hasattr(self, message_type.method):
            raise TypeError(f"{message_type.method!r} cannot be the name of a method on the bus")
        setattr(self, message_type.method, oslo_messaging.expose(exposed))

    def _answer(self, call: ReceivedCall) -> Answer:
        """Handle one call in this thread, and return its answer."""
        begun = self._begin(call)
        if isinstance(begun, Answer):
            return begun
        with context.adopted(begun.item.context), failpoints.within("serve", self._type.topic, self.method):
            failpoints.reached("begin")
            try:
                begun.item.do(self._handler)
                return self._end(begun)
            finally:
                failpoints.reached("reply")

    @property
    def takes_many(self) -> bool:
        """True if :meth:`answer_many` handles the calls of one message together."""
        # The failpoints of a drill act on single calls.
        return self._many is not None and not failpoints.are_armed()

    def answer_many(self, calls: Sequence[ReceivedCall]) -> list[Answer | Callable[[], Answer] | LaterAnswers]:
        """Handle several calls in this thread; return for each its answer, or what handles it.

        That is a function for this call, or an object for several calls. Either may take long, so it must run in a
        separate thread.
        """
        begun = [self._begin(call) for call in calls]
        unanswered = iter(_handled(self._many, [each.item for each in begun if isinstance(each, _Begun)]))
        answers: list[Answer | Callable[[], Answer] | LaterAnswers] = []
        later: dict[LaterCalls, LaterAnswers] = {}
        for position, each in enumerate(begun):
            if isinstance(each, Answer):
                answers.append(each)
            elif (handle := next(unanswered)) is None:
                answers.append(self._end(each))
            elif isinstance(handle, LaterCalls):
                together = later.setdefault(handle, LaterAnswers(handle, self._end, self._alone))
                together.add(position, each)
                answers.append(together)
            else:
                answers.append(partial(self._alone, each, handle))
        return answers

    def _begin(self, call: ReceivedCall) -> _Begun | Answer:
        """Decode a message and begin its span; if the message is late or malformed, return the answer to it."""
        since = time.perf_counter()
        try:
            of_sender, message = self._received(*call)
        except Exception as fault:  # noqa: BLE001 - it is the answer; other calls of the message have their own
            return self._counted(Answer(failure=self._failure_of(fault)), since)
        with context.adopted(of_sender):
            span = tracing.begin(self._span_name, kind="server", place=self._place(message), about=message)
        own = of_sender if span is None else replace(of_sender, span=span)
        return _Begun(BatchItem(message, own), span, since)

    def _alone(self, begun: _Begun, handle: Callable[[], Any]) -> Answer:
        begun.item.do(lambda _message: handle())
        return self._end(begun)

    def _end(self, begun: _Begun) -> Answer:
        """Return the answer to a call whose outcome is known, and count it."""
        message, fault = begun.item.value, None
        with context.adopted(begun.item.context):
            try:
                answer = Answer(fitting(message, encode(begun.item.outcome())))
            except Exception as error:  # noqa: BLE001 - it is the answer
                fault = error
                answer = Answer(failure=self._failure_of(error))
                # An unexpected exception is rare, and other calls of its batch log the same one with its traceback.
                if isinstance(error, errors.MoorageError):
                    _forget_tracebacks(error)
        tracing.end(begun.span, fault)
        return self._counted(answer, begun.since)

    def _counted(self, answer: Answer, since: float) -> Answer:
        result = metrics.OK if answer.failure is None else getattr(answer.failure[1], "code", metrics.FAULT)
        self._seconds.observe(time.perf_counter() - since)
        metrics.RPC_REQUESTS.labels(self._type.topic, self.method, result).inc()
        return answer

    def _received(self, ctxt: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[context.Context, Message[Any]]:
        """Return the context for the handling of a message, with its sender's ids and deadline, and the message.

        :raises MoorageError: the message is late or malformed.
        """
        of_sender = context.Context(
            service=self._service_name,
            request_id=_short_text(ctxt.get("request_id")),
            attempt_id=_short_text(ctxt.get("attempt_id")),
            deadline=ctxt.get(DEADLINE),
            span=tracing.caller_span(ctxt.get(TRACEPARENT)),
            sending=read_sending(ctxt.get(SENDING)),
        )
        with context.adopted(of_sender):
            try:
                context.check_deadline("before it was begun")
                message = decode_strictly(self._type, arguments)
            except errors.DeadlineExceeded:
                LOG.warning("%s is refused: its caller has timed out", self.method)
                metrics.RPC_LATE.labels(self._type.topic, self.method).inc()
                raise
            except errors.MoorageError:
                metrics.RPC_MALFORMED.labels(self._type.topic, self.method).inc()
                raise
        request_id = of_sender.request_id or request_id_of(message)
        attempt_id = getattr(message, "attempt_id", None) or of_sender.attempt_id
        return replace(of_sender, request_id=request_id, attempt_id=attempt_id), message

    def _place(self, message: Message[Any]) -> Literal["below span", "below request", "first of request"]:
        if not self._may_begin_trace:
            return "below span"
        # A step of another request has its own request id. No trace begins with it, even if the sender sends no span.
        return "first of request" if request_id_of(message) == context.current().request_id else "below request"

    def _failure_of(self, fault: Exception) -> Failure:
        """Return an exception as an error that the library sends: a copy without the traceback and the causes."""
        if isinstance(fault, errors.MoorageError):
            LOG.debug("%s is answered with %s: %s", self.method, type(fault).__name__, fault)
        else:
            LOG.error("%s has failed", self.method, exc_info=fault)
            fault = errors.InternalError(kind=type(fault).__name__)
        plain = plain_error(fault)
        return type(plain), plain, None


def _handled(
    many: ManyHandler | None, items: Sequence[BatchItem[Any, Any]]
) -> Sequence[Callable[[], Any] | LaterCalls | None]:
    """Set the outcome of each message; return for each None, or what handles it."""
    try:
        if many is not None and items:
            return many(items)
    except Exception as fault:  # noqa: BLE001 - it is the answer to each of them
        for item in items:
            if not item.is_done:
                item.fail(fault)
    return [None] * len(items)


# --- Errors ---------------------------------------------------------------------------------------------------------


def _forget_tracebacks(error: BaseException) -> None:
    """Remove the tracebacks of an exception and of its causes.

    Their frames refer to the call and to all objects of its handler. Otherwise only the garbage collector would free
    them, and it runs seldom.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            pending += (one.__cause__, one.__context__)


# --- Ids ------------------------------------------------------------------------------------------------------------


def _short_text(value: object) -> str | None:
    """Return a peer's text if it is short and printable, so that it can be logged; else None."""
    return value if isinstance(value, str) and len(value) <= 64 and value.isprintable() else None


def stamp(ctxt: dict[str, Any], taken: float, end: float | None = None) -> None:
    """Set the deadline of a message that was just taken, in the context beside it.

    :param taken: the earliest time at which this process may have received the message, by the monotonic clock.
    :param end: the caller's deadline, if it is known exactly.
    """
    ctxt.pop(DEADLINE, None)  # a value from a peer would be by another clock
    left = ctxt.pop(SECONDS_LEFT, None)
    # A former release sends no number, and other clients of the broker may send anything.
    if isinstance(left, int | float) and not isinstance(left, bool) and 0 <= left <= _LONGEST_LEFT:
        ctxt[DEADLINE] = taken + left if end is None else end
