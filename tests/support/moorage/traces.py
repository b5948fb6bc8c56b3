"""The spans of this process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from moorage import tracing
from moorage.open_telemetry import RequestTracer


class Traces(InMemorySpanExporter):
    """The ended spans of this process."""

    def of(self, request_id: str) -> list[ReadableSpan]:
        """Return the spans of a request's trace."""
        return [span for span in self.get_finished_spans() if span.context.trace_id == UUID(request_id).int]


@contextmanager
def traced() -> Iterator[Traces]:
    """Keep all spans of this process until exit."""
    exported = Traces()
    tracing.use(RequestTracer(SimpleSpanProcessor(exported), "test.all"))
    try:
        yield exported
    finally:
        tracing.stop()


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    return [span.name for span in spans]


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    """Return the attributes of a span, which every recorded span has."""
    assert span.attributes is not None
    return span.attributes


def all_hang_together(spans: Sequence[ReadableSpan], request_id: str) -> bool:
    """Return whether there is one root span, all others are below it, and all have the request id."""
    known = {span.context.span_id for span in spans}
    above = [span.parent.span_id for span in spans if span.parent is not None]
    named = {attributes(span).get("moorage.request_id", request_id) for span in spans}
    return len(above) == len(spans) - 1 and known >= set(above) and named == {request_id}
