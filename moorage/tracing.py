"""Traces: one for each request, from the order to the guest, sent to an OpenTelemetry collector.

The trace id is the request id, which every message carries and every operation records. So a step that another
conductor carries out an hour later belongs to the same trace, and no table needs a column for traces. The current span
travels as W3C ``traceparent`` beside a message; within a process, :mod:`moorage.context` holds it.

Without ``[tracing] otlp_endpoint`` no library of OpenTelemetry is imported, and :func:`span` does nothing.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from oslo_config import cfg

from moorage import context, errors
from moorage.addresses import mask_url

if TYPE_CHECKING:
    from moorage.open_telemetry import Kind, Place, RequestTracer


class Span(Protocol):
    """A span in progress."""

    def set_attribute(self, key: str, value: str | int) -> None:
        """Add an attribute."""


class _NoSpan:
    """A span that records nothing."""

    def set_attribute(self, key: str, value: str | int) -> None:
        """Do nothing."""


_URL = re.compile(r"https?://[^/?#]", re.IGNORECASE)
_NO_SPAN: AbstractContextManager[Span] = nullcontext(_NoSpan())
#: The tracer of this process; None if nothing is traced.
_TRACER: "RequestTracer | None" = None


def configure(conf: cfg.ConfigOpts, service: str) -> None:
    """Send the spans of this process to the configured collector, if there is one; call this after a fork.

    :param service: the name of the service in log lines: its kind, a dot, and its name.
    :raises ConfigurationError: see :func:`require_library`.
    """
    if not conf.tracing.otlp_endpoint:
        return
    require_library(conf)
    from moorage.open_telemetry import RequestTracer, exporting

    use(RequestTracer(exporting(conf.tracing.otlp_endpoint), service, conf.tracing.sample_ratio))


def require_library(conf: cfg.ConfigOpts) -> None:
    """Check, if a collector is configured, its URL, and that OpenTelemetry is installed; this starts no thread.

    :raises ConfigurationError: the URL is none of HTTP, which would lose all spans; or OpenTelemetry is not installed.
    """
    url = conf.tracing.otlp_endpoint
    if not url:
        return
    if not _URL.match(url):
        raise errors.ConfigurationError(reason=f"[tracing] otlp_endpoint {mask_url(url)} is no URL with http or https")
    try:
        import moorage.open_telemetry  # noqa: F401 - here, because it is installed only if tracing is used
    except ImportError as missing:
        reason = f"[tracing] otlp_endpoint needs {missing.name}, which is not installed: pip install 'moorage[tracing]'"
        raise errors.ConfigurationError(reason=reason) from missing


def use(tracer: "RequestTracer | None") -> None:
    """Use a tracer for all spans of this process from now on; None stops tracing."""
    global _TRACER
    _TRACER = tracer


def stop() -> None:
    """Stop tracing, and send the remaining ended spans, for at most two seconds."""
    tracer = _TRACER
    use(None)
    if tracer is not None:
        tracer.close()


def span(
    name: str, *, kind: "Kind" = "internal", place: "Place" = "below span", about: object = None
) -> AbstractContextManager[Span]:
    """Return a context that lasts as long as a span; an exception that leaves it is the span's error.

    :param about: an object, for instance an instance, a host or an attempt; the span copies some of its attributes.
    """
    if _TRACER is None:
        return _NO_SPAN
    return _TRACER.span(name, kind, place, about)


def begin(name: str, *, kind: "Kind", place: "Place", about: object) -> object | None:
    """Begin a span that may end in another thread, and return it; None if nothing is traced.

    It is the current span of threads that adopt a context with it. See :func:`span` for the arguments.
    """
    return None if _TRACER is None else _TRACER.begin(name, kind, place, about)


def end(begun: object | None, fault: Exception | None = None) -> None:
    """End a span that :func:`begin` has begun.

    :param fault: the error of the span.
    """
    if _TRACER is not None and begun is not None:
        _TRACER.end(begun, fault)


@contextmanager
def shared_span(name: str, contexts: Iterable[context.Context]) -> Iterator[None]:
    """Add a child to the current span of each context, for work that is done for all of them at once."""
    if _TRACER is None:
        yield
        return
    with _TRACER.shared_span(name, [each.span for each in contexts]):
        yield


def traceparent() -> str | None:
    """Return the current span in the form that travels beside a message, or None."""
    return None if _TRACER is None else _TRACER.traceparent()


def caller_span(received: object) -> object | None:
    """Return the caller's span from the ``traceparent`` of a message; None if the value is not valid."""
    return _TRACER.remote_span(received) if _TRACER is not None and isinstance(received, str) else None
