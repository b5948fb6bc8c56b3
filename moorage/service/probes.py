"""Metrics and health checks of a process, as a WSGI application: ``/metrics``, ``/healthz`` and ``/readyz``."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import falcon
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from moorage import metrics
from moorage.metrics import GaugeSample, SampledGauge
from moorage.service import liveness
from moorage.service.readiness import Readiness

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

METRICS: Final = "/metrics"
HEALTH: Final = "/healthz"
READINESS: Final = "/readyz"
PATHS: Final = frozenset({METRICS, HEALTH, READINESS})

#: A version in an Accept header that the library cannot compare with the ones that it has, although the header may be
#: right: it raises an exception for a version in quotation marks. Its oldest format has no version.
_STRANGE_VERSION = re.compile(r"version=(?!([0-9]{1,9}(\.[0-9]{1,9})*)?\s*([;,]|$))")


class _AliveResource:
    """Report whether the essential threads of the process are running; if not, it should be restarted."""

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        _answer(response, dict.fromkeys(liveness.dead(), "this thread has died"))

    # Many probers send HEAD; falcon leaves out the body of the answer.
    on_head = on_get


class _ReadyResource:
    """Report whether the process can do its work now, and if not, why.

    :param with_reasons: False if anybody may send requests: then the answer only names the failing checks, because the
        reasons contain addresses.
    """

    def __init__(self, readiness: Readiness, *, with_reasons: bool) -> None:
        self._readiness = readiness
        self._with_reasons = with_reasons

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        reasons = self._readiness.reasons()
        _answer(response, reasons if self._with_reasons else dict.fromkeys(reasons, "failed"))

    on_head = on_get


def _answer(response: falcon.Response, reasons: dict[str, str]) -> None:
    response.status = 503 if reasons else 200
    response.set_header("Cache-Control", "no-store")
    response.media = {"status": "unavailable" if reasons else "ok", "reasons": reasons}


class _AllMetrics(Collector):
    """The metrics of the process, or of all processes that share values with it, and gauges sampled at each scrape."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._counted: Collector = metrics.REGISTRY
        if metrics.is_shared():
            self._counted = MultiProcessCollector(None)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        yield from self._counted.collect()
        yield from _families(self._readiness.samples())


def _families(samples: Iterable[GaugeSample]) -> Iterator[Metric]:
    by_gauge: dict[SampledGauge, GaugeMetricFamily] = {}
    for sample in samples:
        gauge = sample.gauge
        if gauge not in by_gauge:
            by_gauge[gauge] = GaugeMetricFamily(gauge.name, gauge.documentation, labels=gauge.labels)
        by_gauge[gauge].add_metric(sample.labels, sample.value)
    yield from by_gauge.values()


def application(readiness: Readiness, *, with_metrics: bool = True, with_reasons: bool = True) -> "WSGIApplication":
    """Return the application, with or without ``/metrics``, and with or without the reasons in ``/readyz``."""
    probes = falcon.App()
    probes.add_route(HEALTH, _AliveResource())
    probes.add_route(READINESS, _ReadyResource(readiness, with_reasons=with_reasons))
    if not with_metrics:
        return probes
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(_AllMetrics(readiness))
    exposition = make_wsgi_app(registry)

    def scrape(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if _STRANGE_VERSION.search(environ.get("HTTP_ACCEPT", "")):
            environ = {**environ, "HTTP_ACCEPT": ""}
        answer: Iterable[bytes] = exposition(environ, start_response)
        return answer

    return route(lambda path: path == METRICS, scrape, probes)


def route(is_theirs: Callable[[str], bool], theirs: "WSGIApplication", others: "WSGIApplication") -> "WSGIApplication":
    """Return an application that serves some paths by one application and all others by another one."""

    def routed(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        return (theirs if is_theirs(environ.get("PATH_INFO", "")) else others)(environ, start_response)

    return routed
