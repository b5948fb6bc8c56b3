"""Evaluate the hosts for a request once, and single hosts again as claims change them.

A filter or weigher answers for each host from that host alone, so that a planned claim can only change the answers for
the hosts that its providers serve. The result is the same as if all hosts were filtered and weighed again.
"""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import BoolArray, Filter, Weigher
from moorage.plugin.host import added_in_order
from scheduler.decide.funnel import FilterResult, Funnel, is_for_single_hosts
from scheduler.decide.host_candidates import FoundCandidates
from scheduler.decide.one_more_claim import HostScores, OneMoreClaim
from scheduler.decide.plugin_failures import PLUGIN_EXCEPTIONS
from scheduler.decide.ranking import Ranking, SeededTies
from scheduler.plugins.loading import Named, multiplier_key
from scheduler.view.snapshot import ChangedHosts, Snapshot

#: The number of evaluations that are kept for later requests with an equal request spec. Arbitrary.
_KEPT = 8
#: The minimum number of hosts for which weighers run: a single host needs no weights.
_WEIGHED = 2
#: The cost of evaluating all hosts at once, as a number of hosts evaluated one by one: ``_FEW``, plus one for each
#: ``_HOSTS_AS_ONE`` hosts.
_FEW, _HOSTS_AS_ONE = 3, 3_000
#: Computing the answers with one more claim on each host costs one evaluation of all hosts, and halves the cost of each
#: claim that follows. It pays off if the number of claims is more than this factor times the cost of that evaluation in
#: single hosts: with 10,000 hosts, a batch of twenty claims gains nothing, a request for fifty instances a quarter.
_WORTHWHILE = 4


class Evaluation:
    """The hosts that pass the filters for a request, with their weights; for one thread.

    :param left_out: hosts that are known to be infeasible, among those that are ``entering``.
    :raises BrokenPlugin: a filter or weigher is broken.
    """

    def __init__(
        self, funnel: Funnel, view: Snapshot, request: RequestSpec, entering: BoolArray, left_out: Collection[int] = ()
    ) -> None:
        self.filtered: FilterResult = funnel.filter(view, request, without(entering, left_out))
        ranking = funnel.rank(view, request, self.filtered.left, seed=0)
        self.funnel, self._request = funnel, request
        self._rows, self._weights = ranking.rows, ranking.weights
        self._contributions = list(ranking.contributions)
        #: The weights by each weigher; null for a weigher that contributes nothing to any host.
        self._parts = [each.weights() for each in self._contributions]
        keys = view.host_attributes.metadata_keys
        #: Whether all hosts have the same multipliers; different ones are not computed for single hosts.
        self._is_uniform = not any(multiplier_key(weigher.name) in keys for weigher in funnel.weighers)
        self._ranking: Ranking | None = None
        self._entering, self._left_out = entering, frozenset(left_out)
        self._one_more: OneMoreClaim | None = None
        #: Whether a plug-in is written for single hosts. Then evaluating only the changed hosts is always cheaper.
        filters = [stage.plugin for stage in self.filtered.stages if stage.plugin is not None]
        asked: list[Filter | Weigher] = [*filters, *(each.plugin for each in self._contributions)]
        self._is_one_by_one = any(map(is_for_single_hosts, asked))
        self.candidates = FoundCandidates()
        self._planned: Sequence[ChangedHosts] = ()
        self._note(view)

    def ranking(self, ties: SeededTies, look_ahead: int = 1) -> Ranking:
        """Return the hosts as they are ranked now; valid until the next change."""
        ranking = self._ranking
        # Two requests never have the same `ties`: if it is the same object, this is the next instance of one request.
        if ranking is None or ranking.ties is not ties or ranking.look_ahead != look_ahead:
            ranking = self._ranking = Ranking(self._rows, self._weights, ties, self._contributions, look_ahead)
        return ranking

    def ranking_among(self, left: BoolArray, ties: SeededTies, look_ahead: int = 1) -> Ranking:
        """Return the hosts that are ``left`` as they would be ranked if the filters had removed the others."""
        kept = left[self._rows]
        if kept.all():
            return self.ranking(ties, look_ahead)
        rows, removed = self._rows[kept], np.flatnonzero(~kept)
        if len(rows) < _WEIGHED:
            return Ranking(rows, np.zeros(len(rows)), ties, look_ahead=look_ahead)
        narrowed = [each.without(removed, kept) for each in self._contributions]
        if not any(narrowed):
            return Ranking(rows, self._weights[kept], ties, look_ahead=look_ahead)
        weights = np.zeros(len(rows))
        # In the order of the weighers, so that the sums are the same to the last digit.
        for contribution, part in zip(narrowed, self._parts, strict=True):
            if contribution is not None:
                part = contribution.weights()
            elif part is not None:
                part = part[kept]
            if part is not None:
                weights += part
        return Ranking(rows, weights, ties, look_ahead=look_ahead)

    def is_for(self, funnel: Funnel, request: RequestSpec) -> bool:
        """Return whether it is the evaluation of an equal request by the same plug-ins."""
        return (
            self.funnel.filters is funnel.filters
            and self.funnel.weighers is funnel.weighers
            and not self.funnel.plugin_failures.skipped
            and not funnel.plugin_failures.skipped
            and (self._request is request or self._request == request)
        )

    def follow(self, view: Snapshot, left_out: Collection[int]) -> bool:
        """Evaluate again the hosts that have changed since the last view; return whether this was possible.

        If not, only its candidates may still be used: those of changed hosts are dropped.

        :raises Exception: what a plug-in raises for one of them; then, too, only its candidates may still be used.
        """
        out = frozenset(left_out)
        # If more hosts than this have changed, it is cheaper to evaluate all hosts.
        few = len(view) if self._is_one_by_one else _FEW + len(view) // _HOSTS_AS_ONE
        changed, planned = self._changed(view, few)
        if changed is None:
            self.candidates.valid.clear()
            return False
        for row in changed:
            self.candidates.valid.pop(row, None)
        rows = [row for row in changed.union(self._left_out) - out if self._entering[row]]
        if len(rows) > few:
            return False
        for row in out - self._left_out:
            if (place := self._place(row)) is not None:
                self._remove(place)
        known = self._one_more.answers(planned) if self._one_more is not None else {}
        self._left_out = out
        self._note(view)
        for row in rows:
            answer = known[row] if row in known else self._answer(view, row)
            if not self._update(row, answer):
                return False
        if self._one_more is None and view.expected_claims > _WORTHWHILE * few and self._are_own(planned):
            self._one_more = OneMoreClaim(self.funnel, view, self._request, self.filtered, self._contributions)
        return True

    def _note(self, view: Snapshot) -> None:
        if self._one_more is not None and view.planned_changes is not self._planned:
            self._one_more = None
        self._changes, self._position = view.changes, view.position
        self._planned, self._seen = view.planned_changes, len(view.planned_changes)

    def _changed(self, view: Snapshot, few: int) -> tuple[set[int] | None, Sequence[ChangedHosts]]:
        """Return the rows that have changed since the last view, and the claims that were planned in it since.

        There are no such claims if this is another view. The rows are null if they are not known, or if one claim has
        changed more than a few.
        """
        if view.changes is not self._changes:
            return None, ()
        if view.planned_changes is self._planned and view.position == self._position:
            planned = view.planned_changes[self._seen :]
            return _rows(planned, few), planned
        between = view.changes.between(self._position, view.position)
        before, now = _rows(self._planned, few), _rows(view.planned_changes, few)
        if between is None or before is None or now is None:
            return None, ()
        return between | before | now, ()

    def _are_own(self, planned: Sequence[ChangedHosts]) -> bool:
        """Return whether there are new claims, all of them like those of this request: then more may follow."""
        amounts = self._request.resource_request.totals()
        return bool(planned) and all(change.resources == amounts for change in planned)

    def _answer(self, view: Snapshot, row: int) -> HostScores:
        """Run the filters and weighers on one host."""
        host = view.host(row)
        if not self.funnel.passes(host, self._request, self.filtered.stages):
            return None
        return [self.funnel.score(host, self._request, each) for each in self._contributions]

    def _update(self, row: int, answer: HostScores) -> bool:
        """Apply the new answer for a host; return False if this is not possible."""
        place = self._place(row)
        if answer is None:
            if place is not None:
                self._remove(place)
        elif place is not None:
            self._weigh(place, answer)
        elif self._is_uniform and len(self._rows) >= _WEIGHED:
            self._insert(row, answer)
        else:
            # Not all filters and weighers were run, so that the host cannot be compared with the others.
            return False
        return True

    def _place(self, row: int) -> int | None:
        place = int(np.searchsorted(self._rows, row))
        return place if place < len(self._rows) and self._rows[place] == row else None

    def _weigh(self, place: int, scores: Sequence[float]) -> None:
        rescaled = False
        for number, (contribution, score) in enumerate(zip(self._contributions, scores, strict=True)):
            if contribution.put(place, score):
                self._parts[number], rescaled = contribution.weights(), True
            elif (part := self._parts[number]) is not None:
                part[place] = contribution.weight_at(place)
        self._sum(None if rescaled else place)

    def _insert(self, row: int, scores: Sequence[float]) -> None:
        place, rescaled = int(np.searchsorted(self._rows, row)), False
        self._rows = np.insert(self._rows, place, row)
        self._weights = np.insert(self._weights, place, 0.0)
        for number, (contribution, score) in enumerate(zip(self._contributions, scores, strict=True)):
            if contribution.insert(place, score):
                self._parts[number], rescaled = contribution.weights(), True
            elif (part := self._parts[number]) is not None:
                self._parts[number] = np.insert(part, place, contribution.weight_at(place))
        self._sum(None if rescaled else place)

    def _remove(self, place: int) -> None:
        rescaled = False
        for number, contribution in enumerate(self._contributions):
            if contribution.remove(place):
                self._parts[number], rescaled = contribution.weights(), True
            elif (part := self._parts[number]) is not None:
                self._parts[number] = np.delete(part, place)
        row = int(self._rows[place])
        self._rows, self._weights = np.delete(self._rows, place), np.delete(self._weights, place)
        if rescaled:
            self._sum()
        else:
            self._follow_ranking(row, None)

    def _sum(self, place: int | None = None) -> None:
        """Sum the weights of all hosts, or of the host at one place."""
        if place is not None:
            # As for all hosts, so that equal hosts have equal weights.
            weight = added_in_order(part.item(place) for part in self._parts if part is not None)
            self._weights[place] = weight
            self._follow_ranking(int(self._rows[place]), weight)
            return
        self._ranking = None
        self._weights = np.zeros(len(self._rows))
        for part in self._parts:
            if part is not None:
                self._weights += part

    def _follow_ranking(self, row: int, weight: float | None) -> None:
        if self._ranking is not None:
            self._ranking.rows, self._ranking.weights = self._rows, self._weights
            self._ranking.put(row, weight)


@dataclass(frozen=True, slots=True)
class AddedByGroup:
    """Hold the filters that concern a request only because of its server group, and the request without the group.

    Built-in plug-ins depend on a group only if they concern no request without one. So the requests of all groups and
    of none share an evaluation. The filters for the group are run by themselves, and its ranking is narrowed to the
    hosts that they leave.
    """

    filters: Sequence[Named[Filter]]
    without_group: RequestSpec

    def left(self, funnel: Funnel, view: Snapshot, request: RequestSpec, entering: BoolArray) -> BoolArray:
        """Return the hosts that pass these filters.

        :raises BrokenPlugin: one of them is broken.
        """
        return Funnel(self.filters, (), funnel.plugin_failures).filter(view, request, entering).left


class Evaluations:
    """The evaluations of one request, one for each of its instances. For one thread.

    :param former: an evaluation of an equal request, to be brought up to date.
    :param anew: whether to evaluate all hosts for each instance.
    :param group: null if the filters for the request's group are run with the others.
    """

    def __init__(
        self, former: Evaluation | None = None, *, anew: bool = False, group: AddedByGroup | None = None
    ) -> None:
        #: The last evaluation; null if there is none that can be used again.
        self.last = former
        self._anew = anew
        self._group = group

    def ranked(
        self,
        funnel: Funnel,
        view: Snapshot,
        request: RequestSpec,
        entering: BoolArray,
        left_out: Collection[int],
        ties: SeededTies,
        look_ahead: int = 1,
    ) -> tuple[Evaluation, Ranking]:
        """Return the evaluation of the request on a view as it is now, with its ranking; see :meth:`of`.

        :raises BrokenPlugin: a filter or weigher is broken.
        """
        if self._group is None:
            evaluation = self.of(funnel, view, request, entering, left_out)
            return evaluation, evaluation.ranking(ties, look_ahead)
        evaluation = self.of(funnel, view, self._group.without_group, entering, left_out)
        left = self._group.left(funnel, view, request, entering)
        return evaluation, evaluation.ranking_among(left, ties, look_ahead)

    def of(
        self, funnel: Funnel, view: Snapshot, request: RequestSpec, entering: BoolArray, left_out: Collection[int]
    ) -> Evaluation:
        """Return the evaluation of the request on a view as it is now; valid until the next one.

        :param entering: the hosts that enter the filters, the same for each evaluation of a request.
        :param left_out: hosts among them that are known to be infeasible.
        :raises BrokenPlugin: a filter or weigher is broken.
        """
        former, self.last = self.last, None
        # A plug-in that was skipped meanwhile may have refused hosts before.
        if former is not None and (self._anew or not former.is_for(funnel, request)):
            former = None
        if former is not None and _follows(former, funnel, view, left_out):
            evaluation = former
        else:
            evaluation = Evaluation(funnel, view, request, entering, left_out)
            if former is not None:
                evaluation.candidates = former.candidates
        self.last = evaluation
        return evaluation


class EvaluationPool:
    """Evaluations that are kept for later requests with an equal request spec. Safe to use from several threads.

    :param size: the maximum number of evaluations that are kept.
    """

    def __init__(self, size: int = _KEPT) -> None:
        #: Whether evaluations are kept at all.
        self.keeps_any = size > 0
        self._size = size
        self._lock = threading.Lock()
        self._kept: list[Evaluation] = []

    def take(self, funnel: Funnel, request: RequestSpec) -> Evaluation | None:
        """Remove and return the evaluation of an equal request, so that no other thread changes it; null if none."""
        with self._lock:
            for number, kept in enumerate(self._kept):
                if kept.is_for(funnel, request):
                    return self._kept.pop(number)
        return None

    def keep(self, evaluation: Evaluation) -> None:
        """Keep an evaluation; if there are too many, drop the least recently used one."""
        with self._lock:
            self._kept = [evaluation, *self._kept][: self._size]


def _rows(changes: Collection[ChangedHosts], few: int) -> set[int] | None:
    """Return the rows of all changes; null if one has more than a few: thousands of hosts may share a provider."""
    if any(len(change.rows) > few for change in changes):
        return None
    return {row for change in changes for row in change.rows}


def _follows(evaluation: Evaluation, funnel: Funnel, view: Snapshot, left_out: Collection[int]) -> bool:
    """Bring an evaluation up to date; return False if all hosts must be evaluated again."""
    # Attribute failures of plug-ins to the present request.
    evaluation.funnel = funnel
    try:
        return evaluation.follow(view, left_out)
    except PLUGIN_EXCEPTIONS:
        return False  # the evaluation of all hosts handles the exception


def without(rows: BoolArray, left_out: Collection[int]) -> BoolArray:
    """Return a mask of hosts with some rows left out."""
    if not left_out:
        return rows
    left = rows.copy()
    left[list(left_out)] = False
    return left
