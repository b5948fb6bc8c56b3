"""Spans by OpenTelemetry's SDK; imported only if tracing is on."""

import hashlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from opentelemetry.context import Context as ParentOnly
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import DEFAULT_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from moorage import context, errors

Kind = Literal["internal", "client", "server"]
#: The place of a span. "below span": a child of the current span; without a current span there is no span. "below
#: request": the same, but without a current span it is a child of the first span of the thread's request. "first of
#: request": it is that first span, unless the current span belongs to the same request.
Place = Literal["below span", "below request", "first of request"]

#: Seconds for which an export waits for the collector, and for which a stop waits for the last export.
_EXPORT_SECONDS = 2.0
#: Attributes that a span copies from messages, operations and guests; from a request it copies its first instances.
_NAMED = ("instance_uuid", "attempt_id", "host", "cell_uuid", "migration_uuid", "subject", "tries")
_MOST_INSTANCES = 16
#: The prefix that the middleware of the HTTP API adds to the uuid of a request's id.
_HTTP_PREFIX = "req-"


class _Ids(RandomIdGenerator):
    """Generates random ids, except for the first span of a request."""

    def __init__(self) -> None:
        self._next = threading.local()

    @contextmanager
    def given(self, first: SpanContext) -> Iterator[None]:
        """Use the ids of a request's first span for the span that this thread begins within the context."""
        self._next.first = first
        try:
            yield
        finally:
            self._next.first = None

    def generate_span_id(self) -> int:
        """Return the id of a span."""
        first: SpanContext | None = getattr(self._next, "first", None)
        return super().generate_span_id() if first is None else first.span_id

    def generate_trace_id(self) -> int:
        """Return the id of a trace."""
        first: SpanContext | None = getattr(self._next, "first", None)
        return super().generate_trace_id() if first is None else first.trace_id


class RequestTracer:
    """Begins and ends spans in the traces of requests.

    :param processor: processes each span that has ended.
    :param service: the name of the service in log lines: its kind, a dot, and its name.
    :param sample_ratio: the fraction of requests that are traced, chosen by a hash of the request id, so that all
        services choose the same requests.
    """

    def __init__(self, processor: SpanProcessor, service: str, sample_ratio: float = 1.0) -> None:
        kind, _, name = service.partition(".")
        resource = Resource.create({"service.name": f"moorage-{kind}", "service.instance.id": name or kind})
        self._ids = _Ids()
        self._provider = TracerProvider(
            # Ignore OTEL_TRACES_SAMPLER, because all services must choose the same requests.
            sampler=DEFAULT_ON,
            resource=resource,
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("moorage")
        self._travelling = TraceContextTextMapPropagator()
        self._sample_ratio = sample_ratio

    def close(self) -> None:
        """Send the remaining spans; wait at most two seconds for a collector that does not answer."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(_EXPORT_SECONDS)

    @contextmanager
    def span(self, name: str, kind: Kind, place: Place, about: object) -> Iterator[Span]:
        """Begin a span, and end it at exit; see :func:`moorage.tracing.span`."""
        begun = self.begin(name, kind, place, about)
        if begun is None:
            yield NonRecordingSpan(_NOWHERE)
            return
        with context.bound(span=begun):
            try:
                yield begun
            except Exception as fault:
                _fail(begun, fault)
                raise
            finally:
                begun.end()

    def begin(self, name: str, kind: Kind, place: Place, about: object) -> Span | None:
        """Begin a span that :meth:`end` ends, in any thread; return None if it would have no trace."""
        begun = self._begin(name, kind, place)
        if begun is not None and begun.is_recording():
            begun.set_attributes(_attributes(about))
        return begun

    def end(self, begun: object, fault: Exception | None) -> None:
        """End a span; ``fault`` is its error, if any."""
        if isinstance(begun, Span):
            if fault is not None:
                _fail(begun, fault)
            begun.end()

    @contextmanager
    def shared_span(self, name: str, parents: Sequence[object | None]) -> Iterator[None]:
        """Add a child to each of several spans, for work that is done for all of them at once."""
        began = time.time_ns()
        try:
            yield
        finally:
            for parent in parents:
                if isinstance(parent, Span) and parent.is_recording():
                    child = self._tracer.start_span(name, set_span_in_context(parent, ParentOnly()), start_time=began)
                    child.set_attribute("moorage.batch_size", len(parents))
                    child.end()

    def traceparent(self) -> str | None:
        """Return the current span in the format of W3C Trace Context, or None."""
        if not isinstance(under_way := context.current().span, Span):
            return None
        carrier: dict[str, str] = {}
        self._travelling.inject(carrier, set_span_in_context(under_way, ParentOnly()))
        return carrier.get("traceparent")

    def remote_span(self, traceparent: str) -> Span | None:
        """Return the span of another process; None if the text is not in the format of W3C Trace Context."""
        read = get_current_span(self._travelling.extract({"traceparent": traceparent}, ParentOnly()))
        return read if read.get_span_context().is_valid else None

    def _begin(self, name: str, kind: Kind, place: Place) -> Span | None:
        under_way = context.current().span
        parent = under_way if isinstance(under_way, Span) else None
        request_id = context.current().request_id
        first = None if place == "below span" or request_id is None else self._first(request_id)
        if parent is None and first is None:
            return None
        if place == "first of request" and first is not None:
            # The caller's span may belong to a different trace. Then the request gets its own trace, with a link to it.
            of_caller = None if parent is None else parent.get_span_context()
            if of_caller is None or of_caller.trace_id != first.trace_id:
                if not first.trace_flags.sampled:
                    return NonRecordingSpan(first)
                links = None if of_caller is None else [Link(of_caller)]
                with self._ids.given(first):
                    return self._tracer.start_span(name, ParentOnly(), SpanKind[kind.upper()], links=links)
        above = parent or NonRecordingSpan(first or _NOWHERE)
        return self._tracer.start_span(name, set_span_in_context(above, ParentOnly()), SpanKind[kind.upper()])

    def _first(self, request_id: str) -> SpanContext:
        """Return the first span of a request, with ids derived from the request id; any process may begin this span.

        If the request id is not a uuid, the id of the trace is derived from its hash.
        """
        digest = hashlib.blake2b(request_id.encode(), digest_size=24).digest()
        try:
            trace_id = uuid.UUID(request_id.removeprefix(_HTTP_PREFIX)).int
        except ValueError:
            trace_id = int.from_bytes(digest[8:])
        span_id = int.from_bytes(digest[:8])
        sampled = span_id < self._sample_ratio * 2**64
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(trace_id or 1, span_id or 1, is_remote=True, trace_flags=flags)


_NOWHERE: Final = SpanContext(0, 0, is_remote=False)


def exporting(endpoint: str) -> SpanProcessor:
    """Return a processor that sends spans in batches from a separate thread, and drops spans if thousands are waiting.

    :param endpoint: the URL of a collector that accepts OTLP over HTTP.
    """
    return BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_EXPORT_SECONDS))


def _attributes(about: object) -> dict[str, str | int | list[str]]:
    now = context.current()
    found: dict[str, str | int | list[str]] = {
        f"moorage.{name}": value for name in _NAMED if isinstance(value := getattr(about, name, None), str | int)
    }
    if instances := getattr(about, "instance_uuids", None):
        found["moorage.instance_uuids"] = list(instances[:_MOST_INSTANCES])
    for name, value in (("request_id", now.request_id), ("attempt_id", now.attempt_id), ("service", now.service)):
        if value is not None:
            found.setdefault(f"moorage.{name}", value)
    return found


def _fail(failed: Span, fault: Exception) -> None:
    failed.set_attribute("error.type", fault.code if isinstance(fault, errors.MoorageError) else type(fault).__name__)
    failed.set_status(Status(StatusCode.ERROR, str(fault)[:500]))
