"""Benchmark of explanations, compared with the decisions that they explain; both alternate in one process."""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from statistics import median

from msgspec import structs

from harness.bench.store import DescribedHost, create, environment, fill
from harness.bench.usage import seconds_of
from moorage import errors, ids
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import SelectDestinations
from moorage.model import DISK_GB, MEMORY_MB, VCPU, Flavor, HostReport, Inventory, ProviderReport, RequestSpec
from moorage.service.stored_requests import StoredRequests
from placement_store.schema import requests as request_table
from scheduler.decide import destinations
from scheduler.decide.claim_writer import ClaimWriter
from scheduler.decide.environment import DecisionPolicy
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import DestinationPlan, NoHost, Planner
from scheduler.decide.selections import Selections
from scheduler.plugins.lists import enabled
from scheduler.plugins.loading import load_filters, load_weighers

#: More memory than any host has.
_TOO_LARGE = 2**30
_ZONES = ("a", "b")


@dataclass(frozen=True)
class ExplainResult:
    """The result of one kind of request; the field names are those of `moorage bench explain -f json`.

    All times are medians of processor time, which a busy machine affects least; a decision also waits for its database.
    """

    request: str
    hosts: int
    filters: int
    weighers: int
    #: The time from the request to the stored answer, without the explanation.
    decision_ms: float
    #: The part of it that finds the hosts on the view.
    planning_ms: float
    explanation_ms: float
    #: The time of the explanation divided by that of the decision, and by that of the planning alone.
    of_decision: float
    of_planning: float


class Bench:
    """Runs decisions and explanations on the hosts of a store, with every installed filter and weigher."""

    def __init__(self, database: Database, repeat: int) -> None:
        conf = options.new({})
        filters = load_filters(conf, _all("moorage.filters", enabled(conf, "enabled_filters")))
        weighers = load_weighers(conf, _all("moorage.weighers", enabled(conf, "enabled_weighers")))
        self._repeat = repeat
        self._counts = len(filters), len(weighers)
        self._planner = Planner(Funnel(filters, weighers), 1)
        self._environment = environment(database, DecisionPolicy(filters, weighers))
        self._host_cache = self._environment.host_cache
        self._writer = ClaimWriter(StoredRequests(database, request_table), self._environment.names)

    def placed(self, what: str, spec: RequestSpec) -> ExplainResult:
        """Measure a request that finds a host: its decision with a claim, and planning with and without explanation.

        :raises NoValidHost: the request finds no host.
        """
        decisions, without, more = [], [], []
        for _ in range(self._repeat):
            message = _message(spec)
            decisions.append(seconds_of(partial(self._select, message)))
            plain, explained = _message(spec), structs.replace(_message(spec), explain=True)
            # They alternate, so that other work on the machine affects both.
            without.append(seconds_of(partial(self._plan, plain)))
            more.append(seconds_of(partial(self._plan, explained)) - without[-1])
        return self._figures(what, decisions, without, more)

    def refused(self, what: str, spec: RequestSpec) -> ExplainResult:
        """Measure a request that finds no host: its decision, with a retry after catching up, and its explanation.

        :raises InvalidState: the request finds a host.
        """
        decisions, plans, explanations = [], [], []
        for _ in range(self._repeat):
            message = _message(spec)
            plans.append(2 * seconds_of(partial(self._plan, message)))
            no_host = self._plan(message)
            if not isinstance(no_host, NoHost):
                raise errors.InvalidState(reason=f"the request that is to be refused ({what}) finds a host")
            explanations.append(seconds_of(partial(self._why_not, no_host, message)))
            decisions.append(seconds_of(partial(self._refusal, message)) - explanations[-1])
        return self._figures(what, decisions, plans, explanations)

    def _select(self, message: SelectDestinations) -> Selections:
        return destinations.select(self._environment, self._writer, message)

    def _plan(self, message: SelectDestinations) -> DestinationPlan | NoHost:
        # A new view, as after any claim, so that it has no cached results of the previous plan.
        return self._planner.plan(replace(self._host_cache.snapshot()), message, RefusedClaims())

    def _why_not(self, no_host: NoHost, message: SelectDestinations) -> str:
        return self._planner.why_not(no_host, message, RefusedClaims()).summary()

    def _refusal(self, message: SelectDestinations) -> None:
        try:
            self._select(message)
        except errors.NoValidHost:
            return
        raise errors.InvalidState(reason="a request that is to be refused has found a host")

    def _figures(
        self, what: str, decisions: Sequence[float], plans: Sequence[float], explanations: Sequence[float]
    ) -> ExplainResult:
        decision, planning, explanation = median(decisions), median(plans), median(explanations)
        filters, weighers = self._counts
        return ExplainResult(
            request=what,
            hosts=len(self._host_cache.snapshot()),
            filters=filters,
            weighers=weighers,
            decision_ms=round(decision * 1000, 3),
            planning_ms=round(planning * 1000, 3),
            explanation_ms=round(explanation * 1000, 3),
            of_decision=round(explanation / decision, 3),
            of_planning=round(explanation / planning, 3),
        )


def measure(hosts: int, repeat: int) -> list[ExplainResult]:
    """Return results for requests that find a host and for requests that do not, on flat hosts in a SQLite file.

    :raises ConfigurationError: there are too few hosts.
    """
    small = RequestSpec(
        project_id="bench",
        user_id="bench",
        flavor=Flavor(vcpus=2, memory_mb=4096, root_gb=20),
        availability_zone=_ZONES[0],
    )
    with (
        tempfile.TemporaryDirectory(prefix="moorage-") as folder,
        closing(Database(f"sqlite:///{folder}/main.sqlite", "main")) as database,
    ):
        create(database)
        fill(database, range(hosts), _described)
        bench = Bench(database, repeat)
        try:
            placed = bench.placed("finds a host", small)
        except errors.NoValidHost as refusal:
            reason = f"there is no host left ({refusal.summary}): give more --hosts"
            raise errors.ConfigurationError(reason=reason) from refusal
        return [
            placed,
            bench.refused("finds no room", structs.replace(small, flavor=Flavor(vcpus=2, memory_mb=_TOO_LARGE))),
            bench.refused("finds nothing in its zone", structs.replace(small, availability_zone="nowhere")),
        ]


def _described(number: int) -> DescribedHost:
    """Describe a host in one of two zones and of one of several sizes; some have too little memory for any request."""
    name, node = f"host{number}", ids.derived("bench", "node", number)
    host = HostReport(
        service_host=name,
        nodename=name,
        compute_node_uuid=node,
        agent="bench",
        availability_zone=_ZONES[number % 5 == 0],
    )
    held = {
        VCPU: Inventory(total=64 + 32 * (number % 3), allocation_ratio=4.0),
        MEMORY_MB: Inventory(total=2048 if number % 10 == 1 else 131_072 * (1 + number % 4)),
        DISK_GB: Inventory(total=10_000),
    }
    return host, [ProviderReport(uuid=node, name=name, inventories=held)]


def _all(group: str, enabled: Sequence[str]) -> list[str]:
    """Return the names of all plug-ins of a kind: first the enabled ones in their order, then the others."""
    return list(dict.fromkeys([*enabled, *sorted(metadata.entry_points(group=group).names)]))


def _message(spec: RequestSpec) -> SelectDestinations:
    return SelectDestinations(
        request_id=ids.fresh(), request_spec=spec, instance_uuids=(ids.fresh(),), num_alternates=2
    )
