"""Run the filters and weighers: filters remove hosts from all hosts of a view, weighers rank the rest.

A filter that refuses a host and a filter that breaks are different: whatever a plug-in raises becomes
:class:`~moorage.errors.BrokenPlugin`, and never "no valid host".
"""

import functools
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moorage import errors, metrics
from moorage.model import AllocationRequest, FilterCount, RequestSpec
from moorage.model.summary import shortened
from moorage.plugin import BadValue, BoolArray, Filter, FloatArray, Host, HostView, RequestRefused, Weigher
from scheduler.decide.plugin_failures import PLUGIN_EXCEPTIONS, PluginFailures, require_texts
from scheduler.decide.ranking import Contribution, Ranking, RowArray, SeededTies
from scheduler.plugins.loading import Named, Weighted, multiplier_key
from scheduler.view.snapshot import Snapshot

LOG = logging.getLogger(__name__)

#: The types of a filter's answer, and of a weigher's.
_BOOLEANS = (bool, np.bool_)
_NUMBERS = (int, float, np.bool_, np.integer, np.floating)
#: The most characters of a filter's reason for refusing one host. Arbitrary. A reason may name each of the thousands of
#: names in a request: for the hosts of one explanation, these are too many for a message.
_LONGEST_REASON = 2_000


@dataclass(frozen=True, slots=True)
class Stage:
    """Hold the hosts that are left after one filter, and its reason for removing the others."""

    name: str
    reason: str
    left: BoolArray
    #: The filter; None if the stage is not a filter.
    plugin: Filter | None = None


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Hold the result of filtering: one stage for each filter that was run, until no host was left."""

    entered: BoolArray
    stages: Sequence[Stage]

    @property
    def left(self) -> BoolArray:
        """Return the feasible hosts."""
        return self.stages[-1].left if self.stages else self.entered

    def counts(self) -> tuple[FilterCount, ...]:
        """Return how many hosts entered each filter, and how many it removed."""
        counts = []
        entered = int(np.count_nonzero(self.entered))
        for stage in self.stages:
            left = int(np.count_nonzero(stage.left))
            counts.append(FilterCount(name=stage.name, hosts=entered, removed=entered - left, reason=stage.reason))
            entered = left
        return tuple(counts)


class Funnel:
    """Run the configured filters and weighers.

    :param plugin_failures: handles plug-ins that break; without it, the request fails.
    """

    def __init__(
        self,
        filters: Sequence[Named[Filter]],
        weighers: Sequence[Weighted],
        plugin_failures: PluginFailures | None = None,
    ) -> None:
        self.filters = filters
        self.weighers = weighers
        self._of_candidates = [
            each for each in filters if type(each[1]).passes_candidate is not Filter.passes_candidate
        ]
        self.plugin_failures = plugin_failures or PluginFailures()

    def check(self, request: RequestSpec) -> None:
        """Refuse a request that a filter finds malformed, regardless of the hosts.

        :raises InvalidRequest: a filter cannot parse a hint or extra spec of the request.
        :raises BrokenPlugin: a filter has raised anything else.
        """
        for name, plugin in self.filters:
            if type(plugin).check is Filter.check:
                continue
            try:
                with self.plugin_failures.timed("filter", name):
                    _check(plugin, request)
            except errors.InvalidRequest:
                raise
            except PLUGIN_EXCEPTIONS as fault:
                self.plugin_failures.handle("filter", name, fault)

    def filter(self, view: HostView, request: RequestSpec, entering: BoolArray) -> FilterResult:
        """Run the filters on the hosts that are ``entering``, and stop when none is left.

        :raises BrokenPlugin: a filter has raised, or has returned something other than a mask.
        """
        stages: list[Stage] = []
        left = entering
        for name, plugin in self.filters:
            if self.plugin_failures.is_skipped("filter", name):
                continue
            try:
                with self.plugin_failures.timed("filter", name):
                    if not _concerns(Filter, plugin, request):
                        continue
                    if not left.any():
                        break
                    began = time.perf_counter()
                    # A filter that breaks removes no host.
                    stage = Stage(name, reason_of(plugin), left & self._mask(plugin, view, request, left), plugin)
                    _seconds_metric("filter", name).observe(time.perf_counter() - began)
            except PLUGIN_EXCEPTIONS as fault:
                self.plugin_failures.handle("filter", name, fault)
            else:
                stages.append(stage)
                left = stage.left
        return FilterResult(entering, stages)

    def added_by_group(self, request: RequestSpec, without_group: RequestSpec) -> Sequence[Named[Filter]] | None:
        """Return the filters that concern a request only because of its server group; null if a weigher does, too."""

        def is_added(kind: type[Filter | Weigher], plugin: Filter | Weigher) -> bool:
            return _concerns(kind, plugin, request) and not _concerns(kind, plugin, without_group)

        if any(is_added(Weigher, each.plugin) for each in self.weighers):
            return None
        return [each for each in self.filters if is_added(Filter, each.plugin)]

    def candidate_filters(self, request: RequestSpec) -> Sequence[Named[Filter]]:
        """Return the filters that may leave out allocation candidates of a host for a request; usually none.

        :raises BrokenPlugin: a filter has raised.
        """
        concerned = []
        for each in self._of_candidates:
            if self.plugin_failures.is_skipped("filter", each.name):
                continue
            try:
                with self.plugin_failures.timed("filter", each.name):
                    if _concerns(Filter, each.plugin, request):
                        concerned.append(each)
            except PLUGIN_EXCEPTIONS as fault:
                self.plugin_failures.handle("filter", each.name, fault)
        return concerned

    def refuses_candidate(
        self, each: Named[Filter], host: Host, candidate: AllocationRequest, request: RequestSpec
    ) -> bool:
        """Return whether a filter leaves out an allocation candidate of a host; False once the filter is skipped.

        :raises BrokenPlugin: the filter has raised, or has returned no boolean.
        """
        name, plugin = each
        if self.plugin_failures.is_skipped("filter", name):
            return False
        try:
            with self.plugin_failures.timed("filter", name):
                passes = plugin.passes_candidate(host, candidate, request)
            if not isinstance(passes, _BOOLEANS):
                raise TypeError(f"it says {passes!r:.60} of an allocation candidate, which is no boolean")
        except PLUGIN_EXCEPTIONS as fault:
            self.plugin_failures.handle("filter", name, fault)
            return False
        return not passes

    def reasons_against(self, host: Host, request: RequestSpec) -> list[str]:
        """Return the reason of each filter that refuses one host, specific to this host if the filter gives one.

        Explanations must not fail because a plug-in fails: a filter that raises is named instead.
        """
        reasons = []
        for name, plugin in self.filters:
            if self.plugin_failures.is_skipped("filter", name):
                continue
            try:
                with self.plugin_failures.timed("filter", name):
                    passes = not _concerns(Filter, plugin, request) or _passes(plugin, host, request)
                if not passes:
                    reasons.append(self.why(name, plugin, host, request))
            except PLUGIN_EXCEPTIONS:
                LOG.warning("The filter %s has no answer for host %s", name, host.service_host, exc_info=True)
                reasons.append(f"has no answer of the filter {name}, which is broken")
        return reasons

    def why(self, name: str, plugin: Filter, host: Host, request: RequestSpec) -> str:
        """Return a filter's reason for refusing a host, as a phrase after its name; its failures are only logged."""
        try:
            with self.plugin_failures.timed("filter", name):
                reason = plugin.why(host, request)
        except PLUGIN_EXCEPTIONS:
            LOG.warning("The filter %s gives no reason for refusing host %s", name, host.service_host, exc_info=True)
            return reason_of(plugin)
        return shortened(reason, _LONGEST_REASON) if isinstance(reason, str) and reason.strip() else reason_of(plugin)

    def rank(self, view: Snapshot, request: RequestSpec, feasible: BoolArray, seed: int) -> Ranking:
        """Return the feasible hosts with their weights: the sums of what the weighers contribute.

        Each weigher's scores are normalised to 0..1 over the feasible hosts (0 if all are equal) and multiplied.

        :param seed: orders hosts of equal weight.
        :raises BrokenPlugin: a weigher has raised, or has returned something other than a number for each host.
        :raises BadPluginValue: an aggregate of one of the hosts gives a weigher a multiplier that is no number.
        """
        rows = np.flatnonzero(feasible)
        weights = np.zeros(len(rows))
        # Keep them for an explanation: the decision computes them anyway.
        contributions: list[Contribution] = []
        # A single host needs no weights.
        if len(rows) > 1:
            for weigher in self.weighers:
                if self.plugin_failures.is_skipped("weigher", weigher.name):
                    continue
                try:
                    with self.plugin_failures.timed("weigher", weigher.name):
                        began = time.perf_counter()
                        contribution = self._contribution(view, weigher, request, rows)
                        contributed = None if contribution is None else contribution.weights()
                        _seconds_metric("weigher", weigher.name).observe(time.perf_counter() - began)
                except PLUGIN_EXCEPTIONS as fault:
                    self.plugin_failures.handle("weigher", weigher.name, fault)
                    continue
                if contribution is None:
                    continue
                contributions.append(contribution)
                if contributed is not None:
                    weights += contributed
        return Ranking(rows, weights, SeededTies(view.ties, seed), contributions)

    def passes(self, host: Host, request: RequestSpec, stages: Sequence[Stage]) -> bool:
        """Return whether the filters of these stages pass one host, as they would with all hosts.

        :raises Exception: what a filter raises.
        """
        for stage in stages:
            if stage.plugin is not None:
                with self.plugin_failures.timed("filter", stage.name):
                    if not _passes(stage.plugin, host, request):
                        return False
        return True

    def all_passing(self, view: HostView, request: RequestSpec, stages: Sequence[Stage]) -> BoolArray:
        """Return which hosts the filters of these stages pass.

        :raises Exception: what a filter raises.
        """
        left = np.ones(len(view), dtype=np.bool_)
        for stage in stages:
            if stage.plugin is not None:
                with self.plugin_failures.timed("filter", stage.name):
                    left = left & self._mask(stage.plugin, view, request, left)
        return left

    def score(self, host: Host, request: RequestSpec, contribution: Contribution) -> float:
        """Return the score of one host by a weigher that contributes to the weights, as it would with all hosts.

        :raises Exception: what the weigher raises, or for a score that is no number.
        """
        with self.plugin_failures.timed("weigher", contribution.name):
            score = float(contribution.plugin.weigh(host, request))
        if not math.isfinite(score):
            raise BadValue(f"its score of host {host.service_host} is {score}, which is no number to compare with")
        return score

    def scores(self, view: HostView, request: RequestSpec, rows: RowArray, contribution: Contribution) -> FloatArray:
        """Return the scores of some hosts by a weigher that contributes to the weights.

        :raises Exception: what the weigher raises, or for a score that is no number.
        """
        with self.plugin_failures.timed("weigher", contribution.name):
            return self._scores(contribution.plugin, view, request, rows)

    def _mask(self, plugin: Filter, view: HostView, request: RequestSpec, left: BoolArray) -> BoolArray:
        if is_for_single_hosts(plugin):
            # Call it only for the hosts that are left.
            mask = np.zeros(len(view), dtype=np.bool_)
            for row in np.flatnonzero(left).tolist():
                mask[row] = _passes(plugin, view.host(row), request)
            return mask
        mask = plugin.mask(view, request)
        # A masked array hides the answers for some hosts: these would be neither passed nor refused.
        if isinstance(mask, np.ma.MaskedArray) or mask.shape != (len(view),) or mask.dtype != np.bool_:
            raise TypeError(f"its mask is {type(mask).__name__} {mask.dtype}{mask.shape} and not bool({len(view)},)")
        return mask

    def _contribution(
        self, view: Snapshot, weigher: Weighted, request: RequestSpec, rows: RowArray
    ) -> Contribution | None:
        """Return a weigher's contribution over the feasible hosts; None if it contributes nothing to this request."""
        name, plugin, _ = weigher
        multiplier = self._multiplier(view, weigher, rows)
        if multiplier is None or not _concerns(Weigher, plugin, request):
            return None
        scores = self._scores(plugin, view, request, rows)
        # Python floats: computing with single numpy floats takes several times as long.
        return Contribution(name, plugin, scores, scores.min().item(), scores.max().item(), multiplier)

    def _multiplier(self, view: Snapshot, weigher: Weighted, rows: RowArray) -> float | FloatArray | None:
        """Return a weigher's multiplier: one number, or one for each host if the aggregates of any host override it.

        None if it is 0 for all of these hosts: then the weigher need not run.
        """
        key = multiplier_key(weigher.name)
        if key not in view.host_attributes.metadata_keys:
            return weigher.multiplier or None
        multipliers = view.metadata_number(key, weigher.multiplier)[rows]
        return multipliers if multipliers.any() else None

    def _scores(self, plugin: Weigher, view: HostView, request: RequestSpec, rows: RowArray) -> FloatArray:
        if is_for_single_hosts(plugin):
            answers = [plugin.weigh(view.host(row), request) for row in rows.tolist()]
            scores = np.array(answers)
            # NumPy would take None as NaN and read a text, if it were given the type of the array.
            if scores.dtype.kind not in "fiub" or scores.ndim != 1:
                for row, answer in zip(rows.tolist(), answers, strict=True):
                    if not isinstance(answer, _NUMBERS):
                        raise TypeError(f"its score of host {view.host(row).service_host} is {answer!r:.60}")
            scores = scores.astype(np.float64, copy=False)
        else:
            every = plugin.scores(view, request)
            is_masked = isinstance(every, np.ma.MaskedArray)
            if is_masked or every.shape != (len(view),) or every.dtype.kind not in "fiub":
                found = f"{type(every).__name__} {every.dtype}{every.shape}"
                raise TypeError(f"its scores are {found} and not float64({len(view)},)")
            scores = every[rows].astype(np.float64, copy=False)
        if not (finite := np.isfinite(scores)).all():
            place = int(np.flatnonzero(~finite)[0])
            host = view.host(int(rows[place])).service_host
            raise BadValue(f"its score of host {host} is {scores[place]}, which is no number to compare with")
        return scores


@functools.cache
def _seconds_metric(kind: str, name: str) -> Any:
    """Return the metric of a plug-in's seconds; the library takes a lock each time to find it."""
    return metrics.PLUGIN_SECONDS.labels(kind, name)


def reason_of(refuser: Filter | RequestRefused) -> str:
    """Return a filter's own reason for refusing hosts, or a refusal's reason; without one, the default of filters."""
    reason = getattr(refuser, "reason", None)
    return reason if isinstance(reason, str) and reason.strip() else Filter.reason


def is_for_single_hosts(plugin: Filter | Weigher) -> bool:
    """Return whether a plug-in is written for single hosts, and is called for one host after another."""
    if isinstance(plugin, Filter):
        return type(plugin).mask is Filter.mask
    return type(plugin).scores is Weigher.scores


def _check(plugin: Filter, request: RequestSpec) -> None:
    """Let a filter refuse a malformed request.

    :raises TypeError: its error has no path or no reason.
    """
    try:
        plugin.check(request)
    except errors.InvalidRequest as fault:
        require_texts(fault)
        raise


def _concerns(kind: type[Filter | Weigher], plugin: Filter | Weigher, request: RequestSpec) -> bool:
    """Tell whether a plug-in concerns a request; one that does not define this concerns every request.

    :raises TypeError: its answer is no boolean: None would switch it off.
    """
    answer = type(plugin).concerns is kind.concerns or plugin.concerns(request)
    if not isinstance(answer, _BOOLEANS):
        raise TypeError(f"it says {answer!r:.60} of whether it concerns a request, which is no boolean")
    return bool(answer)


def _passes(plugin: Filter, host: Host, request: RequestSpec) -> bool:
    """Return whether a filter passes one host.

    :raises TypeError: its answer is no boolean: None, for example, is a missing `return` and not a refusal.
    """
    answer = plugin.passes(host, request)
    if not isinstance(answer, _BOOLEANS):
        raise TypeError(f"it says {answer!r:.60} of host {host.service_host}, which is no boolean")
    return bool(answer)
