"""Test evaluations: only hosts that claims have changed are evaluated again, with the same result as for all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.scheduler.builders import host_row, select, spec
from support.scheduler.evaluations import (
    claim_on,
    cloud,
    places,
    planned_view,
    plugins,
    pool,
    provider_of,
    sizes,
)

from filters.resources import ResourcesFilter
from moorage import errors
from moorage.model import RequestSpec
from moorage.plugin import BoolArray, Filter, Host, HostView, Weigher
from scheduler.decide.evaluation import Evaluation, EvaluationPool, Evaluations
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import Planner
from scheduler.decide.ranking import SeededTies
from scheduler.plugins.loading import Named, Weighted
from scheduler.view.host_cache import HostCache
from scheduler.view.provisional import AddedClaims
from scheduler.view.snapshot import Snapshot
from weighers.ram import RamWeigher

steps = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 1), st.booleans()), max_size=14)


@settings(deadline=None)
@given(sizes, steps, st.lists(st.sampled_from([-1.0, 0.0, 0.3, 1.0]), min_size=7, max_size=7), st.booleans())
def test_hosts_that_claims_have_changed_are_ranked_as_if_all_were_evaluated_again(
    sizes: list[tuple[int, int, bool]], steps: list[tuple[int, int, bool]], multipliers: list[float], one_by_one: bool
) -> None:
    # Without plug-ins for single hosts, the changes by this number of claims are computed beforehand.
    view, by = planned_view(cloud(sizes), expected_claims=100), plugins(multipliers, one_by_one)
    kept = [Evaluations(), Evaluations()]
    asked = [spec(vcpus=1, memory_mb=512, root_gb=10), spec(vcpus=2, memory_mb=1024, root_gb=30)]
    everyone = np.ones(len(view), dtype=np.bool_)
    left_out: list[set[int]] = [set(), set()]
    ties = SeededTies(view.ties, 7)
    for place, which, is_left_out in steps:
        row = place % len(view)
        if is_left_out:
            left_out[which].add(row)
        elif (request := claim_on(view, row, asked[which])) is not None:
            view.claim(row, request)
        entering = everyone.copy()
        entering[list(left_out[which])] = False
        again = Evaluation(by, view, asked[which], entering).ranking(ties)
        # More hosts are sorted than requested: they stay in order while single hosts change.
        ranking = kept[which].of(by, view, asked[which], everyone, left_out[which]).ranking(ties, 5)
        assert ranking.rows.tolist() == again.rows.tolist()
        assert ranking.weights.tolist() == again.weights.tolist()
        assert ranking.best(1) == again.best(1)
        assert ranking.best(3) == again.best(3)
        # The evaluation of all hosts leaves out weighers whose multiplier is 0 for the remaining hosts.
        scores = {each.name: each.at(0) for each in again.contributions if len(again.rows)}
        kept_scores = {each.name: each.at(0) for each in ranking.contributions if each.name in scores}
        assert kept_scores == scores


class Breaking(Weigher):
    """An operator's weigher that breaks on a host that has an instance."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        if host.instances:
            raise ValueError("no score")
        return 1.0


def test_a_plug_in_that_breaks_on_a_changed_host_is_named() -> None:
    view, kept = planned_view(cloud([(4, 0, False), (4, 0, False)])), Evaluations()
    by, asked, everyone = Funnel([], [Weighted("breaking", Breaking({}), 1.0)]), spec(1, 1, 1), np.ones(2, np.bool_)
    kept.of(by, view, asked, everyone, ())
    request = claim_on(view, 0, asked)
    assert request is not None
    view.claim(0, request)
    with pytest.raises(errors.BrokenPlugin) as broken:
        kept.of(by, view, asked, everyone, ())
    assert broken.value.name == "breaking"


class Extreme(Weigher):
    """Has a valid score for each host; those of used and unused hosts are too far apart to be compared."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        return 1.7e308 if host.instances else -1.7e308


def test_scores_that_a_claim_drives_too_far_apart_are_refused_as_if_all_hosts_were_evaluated_again() -> None:
    view, kept = planned_view(cloud([(4, 0, False)] * 3)), Evaluations()
    by, asked, everyone = Funnel([], [Weighted("extreme", Extreme({}), 1.0)]), spec(1, 1, 1), np.ones(3, np.bool_)
    kept.of(by, view, asked, everyone, ())
    request = claim_on(view, 0, asked)
    assert request is not None
    view.claim(0, request)
    # A service has no exception for an overflow.
    with np.errstate(all="ignore"):
        for evaluations in (kept, Evaluations()):
            with pytest.raises(errors.BadPluginValue, match="too far apart"):
                evaluations.of(by, view, asked, everyone, ())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([2, 4, 8]), st.integers(0, 6), st.booleans()), min_size=6, max_size=12))
# Its weights differ in the last digit if the `sum` of Python 3.12 and later adds them up.
@example([(2, 0, False)] * 3 + [(4, 3, False), (8, 0, False), (8, 1, False), (8, 1, False)])
def test_a_large_request_goes_where_it_would_if_every_host_were_evaluated_again_for_each_instance(
    sizes: list[tuple[int, int, bool]],
) -> None:
    view, by = cloud(sizes).snapshot(), plugins([1.0, 0.3, 0.3, 1.0, 0.0, 0.0, 0.0], one_by_one=False)
    message = select("r1", vcpus=1, count=14, num_alternates=2)
    # The number of instances is high enough for looking ahead. The second planner keeps no evaluations.
    ahead = Planner(by, 1).plan(view, message, RefusedClaims())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluations, "of", lambda _self, *asked: Evaluation(*asked))
        again = Planner(by, 1).plan(view, message, RefusedClaims())

    assert places(ahead) == places(again)


class CountingFilter(ResourcesFilter):
    """A filter that counts how often it is asked about one host, and about all."""

    def __init__(self) -> None:
        super().__init__({})
        self.single = self.every = 0

    def passes(self, host: Host, request: RequestSpec) -> bool:
        self.single += 1
        return super().passes(host, request)

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        self.every += 1
        return super().mask(view, request)


def counted(expected_claims: int, rows: list[int]) -> CountingFilter:
    """Return the filter after these hosts have been claimed in a view of twelve."""
    view, kept, asked = planned_view(cloud([(8, 0, False)] * 12), expected_claims), Evaluations(), spec(1, 1, 1)
    counting, everyone = CountingFilter(), np.ones(12, np.bool_)
    by = Funnel([Named("resources", counting)], [Weighted("ram", RamWeigher({}), 1.0)])
    kept.of(by, view, asked, everyone, ())
    for row in rows:
        request = claim_on(view, row, asked)
        assert request is not None
        view.claim(row, request)
        kept.of(by, view, asked, everyone, ())
    return counting


def test_a_large_request_evaluates_its_next_claims_for_all_hosts_at_once() -> None:
    few, many = counted(2, [0, 1, 2, 3]), counted(100, [0, 1, 2, 3])
    assert (few.single, few.every) == (4, 1)
    # For all hosts after the first claim; a host that is claimed twice is evaluated again.
    assert (many.single, many.every) == (1, 2)
    assert counted(100, [0, 1, 1, 0, 0]).single == 1 + 1 + 1


def asking() -> tuple[Funnel, list[str]]:
    """Return an operator's filter for single hosts, and the hosts that it was asked about."""
    rows: list[str] = []

    class Asked(Filter):
        """A filter that records the hosts that it was asked about."""

        def passes(self, host: Host, request: RequestSpec) -> bool:
            rows.append(host.service_host)
            return True

    return Funnel([Named("asked", Asked({}))], []), rows


def test_an_operators_filter_for_single_hosts_is_asked_about_those_that_have_changed_however_many() -> None:
    cache, kept = cloud([(4, 0, False)] * 30), Evaluations()
    (by, rows), everyone = asking(), np.ones(30, np.bool_)
    kept.of(by, cache.snapshot(), spec(1, 1, 1), everyone, ())
    for number in range(20):
        change(cache, "claim", number, 1)
    kept.of(by, cache.snapshot(), spec(1, 1, 1), everyone, ())
    assert sorted(rows[30:]) == sorted(f"host{number}" for number in range(20))


def test_only_the_hosts_that_a_claim_has_changed_are_asked_again() -> None:
    view, pool = planned_view(cloud([(4, 0, False)] * 5)), EvaluationPool()
    (by, rows), asked, everyone = asking(), spec(1, 1, 1), np.ones(5, np.bool_)
    pool.keep(Evaluations().of(by, view, asked, everyone, ()))
    assert len(rows) == 5
    request = claim_on(view, 3, asked)
    assert request is not None
    view.claim(3, request)
    # An equal request of another user is served by the same evaluation.
    Evaluations(pool.take(by, spec(1, 1, 1))).of(by, view, spec(1, 1, 1), everyone, ())
    assert rows[5:] == ["host3"]


def change(cache: HostCache, what: str, number: int, amount: int) -> None:
    """Change something of the host of a number, as a read of the store or a claim does."""
    host = host_row(number, io_ops=amount)
    if what == "claim":
        node = host.compute_node_uuid
        cache.apply_claims([AddedClaims([(node, {"VCPU": amount})], cache.versions([node]), {node: 1})])
    elif what == "size":
        cache.update(providers=[provider_of(host, 8, amount, bool(number % 2))])
    elif what == "instances":
        cache.update(instances={number: amount})
    elif what == "load":
        cache.update(hosts=[host])
    elif what == "metadata":
        cache.update(hosts=[replace(host, metadata={"cpu_weight_multiplier": frozenset({str(amount)})})])
    elif what == "gone":
        cache.update(gone_hosts=[number], gone_providers=[number])
    else:
        cache.update(providers=[pool(65 * amount)])


CHANGES = ("claim", "size", "instances", "load", "metadata", "gone", "pool", "plan")
changes = st.lists(
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 13), st.integers(0, 6), st.booleans()), max_size=14
)


@settings(deadline=None)
@given(sizes, changes, st.lists(st.sampled_from([-1.0, 0.0, 0.3, 1.0]), min_size=7, max_size=7))
def test_hosts_that_have_changed_between_snapshots_are_ranked_as_if_all_were_evaluated_again(
    sizes: list[tuple[int, int, bool]], changes: list[tuple[str, int, int, bool]], multipliers: list[float]
) -> None:
    cache, by, pool = cloud(sizes), plugins(multipliers), EvaluationPool()
    asked = [spec(vcpus=1, memory_mb=512, root_gb=10), spec(vcpus=2, memory_mb=1024, root_gb=30)]

    def compare(view: Snapshot, which: int, left_out: set[int]) -> None:
        everyone, ties = np.ones(len(view), dtype=np.bool_), SeededTies(view.ties, 7)
        again = Evaluation(by, view, asked[which], everyone, left_out).ranking(ties)
        kept = Evaluations(pool.take(by, asked[which])).of(by, view, asked[which], everyone, left_out)
        ranking = kept.ranking(ties, 3)
        assert ranking.rows.tolist() == again.rows.tolist()
        assert ranking.weights.tolist() == again.weights.tolist()
        assert ranking.best(3) == again.best(3)
        pool.keep(kept)

    before = cache.snapshot()
    for what, number, amount, is_second in changes:
        if what != "plan":
            change(cache, what, number, amount)
        elif len(view := planned_view(cache)):
            # A plan that the store refuses: nothing of it is in the next snapshot.
            row = number % len(view)
            compare(view, is_second, set())
            if (request := claim_on(view, row, asked[is_second])) is not None:
                view.claim(row, request)
            compare(view, is_second, {row} if amount > 3 else set())
        compare(cache.snapshot(), is_second, set())
        if amount == 0:
            # A decision that took its snapshot earlier, and plans on it later.
            compare(before, is_second, set())
        before = cache.snapshot()


def test_only_the_hosts_that_have_changed_since_the_last_snapshot_are_asked_again() -> None:
    cache, kept = cloud([(4, 0, False)] * 5), Evaluations()
    (by, rows), everyone = asking(), np.ones(5, np.bool_)
    kept.of(by, cache.snapshot(), spec(1, 1, 1), everyone, ())
    change(cache, "claim", 3, 1)
    kept.of(by, cache.snapshot(), spec(1, 1, 1), everyone, ())
    assert rows[5:] == ["host3"]
