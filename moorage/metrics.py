"""All metrics of all services, named by Prometheus's rules: declared here, and counted where the events happen.

Labels have few values: kinds, methods, plug-ins, error codes; never a host, an instance or a cell. If the first
increase of a counter must raise an alert, the counter is created with its labels at the start, with the value 0: if a
counter appears with its first value, Prometheus detects no increase. Counters and histograms belong to the process. The
running service reads a :class:`SampledGauge` at each scrape, and returns its values as :class:`GaugeSample`.

Every metric of the HTTP API has labels. Its processes share their values in files (:func:`share_between_processes`),
and a metric without labels would need these files when it is declared.
"""

import os
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, values
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

REGISTRY: Final = CollectorRegistry()
PlatformCollector(registry=REGISTRY)
ProcessCollector(registry=REGISTRY)

#: The result label of a success. The result label of a failure is the code of its error.
OK: Final = "ok"
#: The result label of a failure by an exception that is not one of Moorage's errors.
FAULT: Final = "fault"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"


def _counter(name: str, documentation: str, *labels: str) -> Counter:
    return Counter(name, documentation, labels, registry=REGISTRY)


def _histogram(name: str, documentation: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
    return Histogram(name, documentation, labels, registry=REGISTRY, buckets=buckets)


def _gauge(name: str, documentation: str, *labels: str) -> Gauge:
    return Gauge(name, documentation, labels, registry=REGISTRY, multiprocess_mode="livesum")


# --- Messages -------------------------------------------------------------------------------------------------------

RPC_REQUESTS = _counter(
    "moorage_rpc_requests_total", "Answered messages, by error code or ok.", "topic", "method", "result"
)
RPC_SECONDS = _histogram(
    "moorage_rpc_seconds", "Time to answer a message, without its time in the queue.", "topic", "method"
)
RPC_LATE = _counter(
    "moorage_rpc_late_total", "Messages refused unread because their caller had timed out.", "topic", "method"
)
RPC_MALFORMED = _counter(
    "moorage_rpc_malformed_total", "Messages refused because they could not be decoded.", "topic", "method"
)
RPC_BUSY = _gauge("moorage_rpc_messages_in_progress", "Messages being handled.", "topic")
RPC_THREADS = _gauge("moorage_rpc_threads", "Threads that handle messages; further messages wait.", "topic")
BATCH_SIZE = _histogram(
    "moorage_batch_size",
    "Size of a batch: requests of a decision, values of a shared transaction, calls or answers of a message.",
    "kind",
    buckets=_SIZES,
)

# --- The database ---------------------------------------------------------------------------------------------------

DATABASE_CONNECTIONS = _gauge("moorage_database_connections_in_use", "Connections with an open transaction.", "schema")
DATABASE_POOL = _gauge("moorage_database_pool_size", "Maximum number of connections of the pools.", "schema")
DATABASE_RETRIES = _counter(
    "moorage_database_retries_total", "Transactions repeated after a collision or a lost connection.", "schema", "why"
)
DATABASE_FAILURES = _counter(
    "moorage_database_failures_total", "Transactions that failed because of the database, by error code.",
    "schema", "result",
)  # fmt: skip

# --- Decisions and claims -------------------------------------------------------------------------------------------

DECISIONS = _counter("moorage_decisions_total", "Requests for destinations, by error code or ok.", "result")
DECISION_SECONDS = _histogram("moorage_decision_seconds", "Time from a request for destinations to its answer.")
DECISION_STAGE_SECONDS = _histogram(
    "moorage_decision_stage_seconds",
    "Time of a stage of a decision: follow, context, plan, catch_up, claim. Requests decided together count once.",
    "stage",
)
PLUGIN_SECONDS = Summary(
    "moorage_plugin_seconds", "Time of a filter or weigher for all hosts of a decision.", ["kind", "plugin"],
    registry=REGISTRY,
)  # fmt: skip
PLUGIN_FAILURES = _counter("moorage_plugin_failures_total", "Failed calls of a plug-in.", "kind", "plugin")
CLAIMS = _counter("moorage_claims_total", "Instances claimed by decisions.")
CLAIM_CONFLICTS = _counter(
    "moorage_claim_conflicts_total", "Planned claims that the store refused, by error code.", "why"
)
CLAIM_TRIES = _counter(
    "moorage_claim_tries_total", "Transactions that claim the plan of one request, or of several together."
)
VIEW_DRIFT = _counter("moorage_view_drift_total", "Rows that the comparison found and the change feed had missed.")
RECONCILER_ACTIONS = _counter(
    "moorage_reconciler_actions_total",
    "Unaccepted claims that the reconciler checked: released, settled, kept, unknown.",
    "outcome",
)
CLAIMS_UNACCEPTED = _gauge(
    "moorage_claims_unaccepted", "Unaccepted claims older than [placement] reconcile_after, at most 1,000."
)

# --- Operations -----------------------------------------------------------------------------------------------------

OPERATION_STEPS = _counter(
    "moorage_operation_steps_total",
    "Steps by outcome: next, wait, retry, done, failed, postponed, superseded, unrecorded.",
    "kind", "step", "outcome",
)  # fmt: skip
OPERATION_STEP_SECONDS = _histogram(
    "moorage_operation_step_seconds", "Time of a step, including its calls and its record.", "kind", "step"
)
ALTERNATES = _counter(
    "moorage_alternates_total", "Alternates of failed builds and moves: claimed, or skipped without a try.", "result"
)

# --- HTTP -----------------------------------------------------------------------------------------------------------

HTTP_REQUESTS = _counter(
    "moorage_http_requests_total", "Requests of the placement API.", "method", "path", "status"
)  # fmt: skip
HTTP_SECONDS = _histogram("moorage_http_seconds", "Time to answer a request of the placement API.", "method", "path")


# --- Sampled gauges -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampledGauge:
    """A gauge without a stored value: the service reads it at each scrape."""

    name: str
    documentation: str
    labels: tuple[str, ...] = ()

    def sample(self, value: float, *labels: str) -> "GaugeSample":
        """Return a value with its labels."""
        return GaugeSample(self, labels, value)


@dataclass(frozen=True)
class GaugeSample:
    """A value of a sampled gauge, with the values of its labels."""

    gauge: SampledGauge
    labels: tuple[str, ...]
    value: float


READY = SampledGauge("moorage_ready", "1 if the check of /readyz passes, else 0.", ("check",))
VIEW_AGE = SampledGauge("moorage_view_age_seconds", "Time since the host view last followed the store.")
VIEW_HOSTS = SampledGauge(
    "moorage_view_hosts",
    "Hosts in the host view, by state: up, down, disabled, forced_down. Disabled hosts may also be up.",
    ("state",),
)
RELOAD_REFUSED = SampledGauge(
    "moorage_reload_refused", "1 if the last reload of the configuration was refused, else 0."
)
DECISIONS_IN_PROGRESS = SampledGauge("moorage_decisions_in_progress", "Requests for destinations in progress.")
OPERATIONS = SampledGauge(
    "moorage_operations_pending", "Operations in progress, of all conductors of the kind.", ("kind", "step")
)
OPERATIONS_FAILING = SampledGauge(
    "moorage_operations_retried", "Operations in progress whose step has failed and is being retried.", ("kind", "step")
)
OPERATION_AGE = SampledGauge(
    "moorage_operation_age_seconds", "Age of the oldest operation in progress.", ("kind", "step")
)
SAMPLED: Final = tuple(each for each in list(globals().values()) if isinstance(each, SampledGauge))


# --- Several processes ----------------------------------------------------------------------------------------------


def share_between_processes(folder: str) -> None:
    """Keep values in files of this folder from now on, which processes that are forked later share.

    Call this before the first value is counted: values that were counted before are not shared.
    """
    os.environ[_MULTIPROCESS_DIR] = folder
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]


def is_shared() -> bool:
    """Return whether several processes share their values; an operator can also request this by the environment."""
    return _MULTIPROCESS_DIR in os.environ
