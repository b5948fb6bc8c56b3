"""Benchmark of planning alone: the decisions of a scheduler that never waits for a bus or a database."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness.bench.requests import Request
from harness.bench.store import Say, environment, fill_apart
from harness.bench.usage import memory_mb, seconds_of
from moorage import errors
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import SelectDestinations
from moorage.service.stored_requests import StoredRequests
from placement_store.schema import requests as request_table
from placement_store.server_groups.rows import OccupiedRoot
from scheduler.decide.claim_writer import ClaimWriter, PlannedRequest, WrittenClaims
from scheduler.decide.destinations import ClaimingDecision
from scheduler.decide.environment import DecisionEnvironment
from scheduler.decide.plugin_failures import FailureCounts
from scheduler.decide.request_context import NO_CONTEXT, RequestContext
from scheduler.decide.selections import Selections
from scheduler.policy import SchedulingPolicy
from scheduler.view.follower import Follower

#: The number of decisions that are not counted, because they fill the caches.
_WARM_UP = 5


@dataclass(frozen=True)
class DecideResult:
    """The result of a run; the field names are those of `moorage bench decide -f json`.

    Decision times are processor times, and the rate is derived from their median: a busy machine affects it least.
    """

    hosts: int
    per_request: int
    occupancy: float | None
    groups: float
    nested: bool
    #: Traits and devices of each host, and whether all hosts have their disks from one pool.
    traits: int
    devices: int
    pool: bool
    decisions: int
    p50_ms: float
    p99_ms: float
    decisions_per_s: float
    #: Wall-clock seconds until the view has all hosts, and the memory of this process with this view.
    load_s: float
    rss_mb: int


def measure(
    hosts: int, settings: Mapping[str, Any], occupancy: float | None, request: Request, repeat: int, say: Say
) -> DecideResult:
    """Fill a SQLite file with hosts, load them as a scheduler does, and measure decisions with the default plug-ins.

    Each decision sees the earlier claims, because the view counts them; they are not written to the store.

    :param settings: see :func:`harness.bench.store.host_settings`.
    :param occupancy: the percentage to which the hosts are filled; null for very large hosts, which stay nearly empty.
    :raises ConfigurationError: there are too few hosts.
    """
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        url = f"sqlite:///{folder}/main.sqlite"
        fill_apart(url, settings, hosts, occupancy, say)
        with closing(Database(url, "main")) as database:
            policy = SchedulingPolicy.load(options.new({}), FailureCounts()).decision_policy
            say(f"loading {hosts:,} hosts")
            began = time.monotonic()
            decided = environment(database, policy)
            loaded = time.monotonic() - began
            memory = memory_mb()
            say(f"measuring {repeat} decisions")
            seconds = np.array(list(_decisions(decided, request, repeat)))
    median = float(np.median(seconds))
    return DecideResult(
        hosts=hosts,
        per_request=request.per_request,
        occupancy=occupancy,
        groups=request.groups,
        nested=request.nested,
        traits=len(settings.get("traits", ())),
        devices=settings.get("gpus", 0),
        pool="shared_disk_aggregate" in settings,
        decisions=repeat,
        p50_ms=round(median * 1000, 3),
        p99_ms=round(float(np.percentile(seconds, 99)) * 1000, 3),
        decisions_per_s=round(1 / median, 1),
        load_s=round(loaded, 2),
        rss_mb=memory,
    )


def _decisions(decided: DecisionEnvironment, request: Request, repeat: int) -> Iterator[float]:
    """Yield the processor seconds of each decision.

    :raises ConfigurationError: the hosts are full.
    """
    # The store has not changed, so the follower never has to read it, no matter how much time has passed.
    decided.follower = _AtRest(decided.database, decided.names, decided.host_cache)
    writer = _Unwritten(StoredRequests(decided.database, request_table), decided.names)
    members: dict[str, Counter[str]] = {}
    messages = request.messages(0)
    for number in range(_WARM_UP + repeat):
        message = next(messages)
        try:
            seconds = seconds_of(partial(_Planning(decided, writer, message, members).run))
        except errors.NoValidHost as refusal:
            reason = f"after {number} decisions there is no host left ({refusal.summary}): give more --hosts"
            raise errors.ConfigurationError(reason=reason) from refusal
        if number >= _WARM_UP:
            yield seconds


class _AtRest(Follower):
    """The follower of a store that does not change."""

    def follow(self, begun_after: float) -> None:
        """Leave the view as it is."""

    def catch_up(self, begun_after: float) -> None:
        """Leave the view as it is."""


class _Unwritten(ClaimWriter):
    """A writer that accepts the claims of every plan, and writes nothing."""

    def write(self, planned: PlannedRequest) -> WrittenClaims:
        """Return the answer as if the claims were written."""
        return WrittenClaims(planned.answer, replayed=False, bumped_once=True)


class _Planning(ClaimingDecision):
    """Decide a request with the members of its server group given by group and compute node."""

    def __init__(
        self,
        decided: DecisionEnvironment,
        writer: ClaimWriter,
        message: SelectDestinations,
        members: dict[str, Counter[str]],
    ) -> None:
        super().__init__(decided, decided.policy, writer, message)
        group = message.request_spec.server_group
        self._members = None if group is None else members.setdefault(group.uuid, Counter())

    def run(self) -> Selections:
        """Decide the request and return its answer."""
        answer = super().run()
        if self._members is not None:
            self._members.update(claimed.compute_node_uuid for claimed, *_ in answer)
        return answer

    def read_context(self) -> RequestContext:
        """Return the members of the group, which a scheduler reads from the store."""
        if self._members is None:
            return NO_CONTEXT
        return RequestContext({uuid: OccupiedRoot(count, False) for uuid, count in self._members.items()})
