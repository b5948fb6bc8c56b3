"""Test the funnel: filters run in order and are counted, weights are comparable, and ties are seeded."""

from typing import Any

import msgspec
import numpy as np
import pytest
from support.scheduler.builders import funnel, host_cache, host_row, provider, select, spec

from moorage import errors
from moorage.bus.message_size import SURELY_FITS
from moorage.model import RequestSpec, ResourceGroup
from moorage.plugin import BoolArray, Filter, FloatArray, Host, HostView, Weigher
from moorage.testing.builders import inventory
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import DestinationPlan, NoHost, Planner
from scheduler.plugins.loading import Named, Weighted
from scheduler.view.snapshot import Snapshot


def everyone(snapshot: Snapshot) -> BoolArray:
    return np.ones(len(snapshot), dtype=np.bool_)


class EvenHosts(Filter):
    """An operator's filter in its one-host form; records the hosts that it was asked about."""

    reason = "is odd"

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.asked: list[str] = []

    def passes(self, host: Host, request: RequestSpec) -> bool:
        self.asked.append(host.service_host)
        return int(host.service_host.removeprefix("host")) % 2 == 0


class ByNumber(Weigher):
    """An operator's weigher in its one-host form: the higher the number, the better."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        return float(host.service_host.removeprefix("host"))


def test_filters_run_in_order_on_the_remaining_hosts() -> None:
    hosts = [host_row(0, up=False), host_row(1, availability_zone="a"), host_row(2, availability_zone="a"), host_row(3)]
    snapshot = host_cache(hosts).snapshot()
    filtered = funnel().filter(snapshot, spec(availability_zone="a", ignore_hosts=("HOST1",)), everyone(snapshot))
    assert filtered.left.tolist() == [False, False, True, False]
    assert [(count.name, count.hosts, count.removed) for count in filtered.counts()] == [
        ("compute", 4, 1),
        ("availability_zone", 3, 1),
        ("destination", 2, 1),
        ("traits", 1, 0),
        ("aggregates", 1, 0),
        ("resources", 1, 0),
    ]


def test_no_filter_runs_once_no_host_remains() -> None:
    snapshot = host_cache([host_row(0, up=False)]).snapshot()
    filtered = funnel().filter(snapshot, spec(), everyone(snapshot))
    assert [count.name for count in filtered.counts()] == ["compute"]


def test_a_filter_for_single_hosts_is_asked_only_about_remaining_hosts() -> None:
    snapshot = host_cache([host_row(number) for number in range(4)]).snapshot()
    even = EvenHosts({})
    filtered = Funnel([Named("even", even)], []).filter(snapshot, spec(), np.array([True, True, True, False]))
    assert filtered.left.tolist() == [True, False, True, False]
    assert even.asked == ["host0", "host1", "host2"]


class OfZoneA(EvenHosts):
    """An operator's filter for requests of one zone alone."""

    def concerns(self, request: RequestSpec) -> bool:
        return request.availability_zone == "a"


class ByNumberInZoneA(ByNumber):
    def concerns(self, request: RequestSpec) -> bool:
        return request.availability_zone == "a"


def test_a_plugin_is_not_asked_about_a_request_that_does_not_concern_it() -> None:
    snapshot = host_cache([host_row(number) for number in range(3)]).snapshot()
    even = OfZoneA({})
    some = Funnel([Named("even", even)], [Weighted("number", ByNumberInZoneA({}), 1.0)])
    filtered = some.filter(snapshot, spec(), everyone(snapshot))
    assert (filtered.left.tolist(), filtered.counts(), even.asked) == ([True] * 3, (), [])
    assert some.rank(snapshot, spec(), filtered.left, 1).weights.tolist() == [0.0] * 3
    its_own = spec(availability_zone="a")
    assert some.filter(snapshot, its_own, everyone(snapshot)).left.tolist() == [True, False, True]
    assert some.rank(snapshot, its_own, everyone(snapshot), 1).weights.tolist() == [0.0, 0.5, 1.0]


def test_weights_are_normalised_over_the_feasible_hosts_and_multiplied() -> None:
    hosts = [host_row(number) for number in range(4)]
    providers = [
        provider(host, VCPU=inventory(16), MEMORY_MB=inventory(memory), DISK_GB=inventory(disk))
        for host, memory, disk in zip(hosts, (1000, 3000, 5000, 900_000), (50, 50, 100, 100), strict=True)
    ]
    snapshot = host_cache(hosts, providers).snapshot()
    feasible = np.array([True, True, True, False])
    ranking = funnel((2.0, 7.0, -1.0)).rank(snapshot, spec(), feasible, seed=0)
    # Memory: 0, 0.5, 1 times 2; virtual CPUs are all equal and count for nothing; disk: 0, 0, 1 times -1.
    assert ranking.rows.tolist() == [0, 1, 2]
    assert ranking.weights.tolist() == [0.0, 1.0, 1.0]


def test_a_weigher_for_single_hosts_ranks_like_any_other() -> None:
    snapshot = host_cache([host_row(number) for number in range(3)]).snapshot()
    ranking = Funnel([], [Weighted("number", ByNumber({}), 1.0)]).rank(snapshot, spec(), everyone(snapshot), seed=0)
    assert [row for row, _ in ranking.best(3)] == [2, 1, 0]


def plan(request_id: str, hosts: int = 8, subset: int = 1, **more: Any) -> list[int]:
    """Return the ids of the chosen hosts of a request, where all hosts are alike."""
    snapshot = host_cache([host_row(number) for number in range(hosts)]).snapshot()
    planned = Planner(funnel(), subset).plan(snapshot, select(request_id, **more), RefusedClaims())
    assert isinstance(planned, DestinationPlan)
    return [planned.view.hosts[choice.row].id for choice in planned.chosen]


def test_the_same_request_is_decided_alike_and_others_break_ties_differently() -> None:
    assert plan("r1") == plan("r1")
    assert len({plan(f"r{number}")[0] for number in range(100)}) == 8


def test_ties_do_not_depend_on_the_order_in_which_hosts_were_read() -> None:
    hosts = [host_row(number) for number in range(8)]
    chosen = set()
    for order in (hosts, hosts[::-1]):
        planned = Planner(funnel(), 1).plan(host_cache(order).snapshot(), select("r1"), RefusedClaims())
        assert isinstance(planned, DestinationPlan)
        chosen.add(planned.view.hosts[planned.chosen[0].row].id)
    assert len(chosen) == 1


def test_among_the_best_few_one_is_picked_by_the_seed() -> None:
    hosts = [host_row(number) for number in range(6)]
    snapshot = host_cache(
        hosts,
        [
            provider(host, VCPU=inventory(16), MEMORY_MB=inventory(4096 + host.id), DISK_GB=inventory(99))
            for host in hosts
        ],
    ).snapshot()

    def chosen(request_id: str, subset: int) -> int:
        planned = Planner(funnel(), subset).plan(snapshot, select(request_id), RefusedClaims())
        assert isinstance(planned, DestinationPlan)
        return planned.view.hosts[planned.chosen[0].row].id

    assert {chosen(f"r{number}", 1) for number in range(50)} == {5}
    assert {chosen(f"r{number}", 3) for number in range(50)} == {3, 4, 5}
    assert chosen("r7", 3) == chosen("r7", 3)


def test_several_instances_of_one_request_see_each_other() -> None:
    # 16 VCPU and room for two of these on each host.
    assert sorted(plan("r1", hosts=3, count=6, vcpus=8)) == [0, 0, 1, 1, 2, 2]


# --- Broken plug-ins: the array form is in test_broken_plugins.py -----------------------------------------------------


class RaisingFilter(Filter):
    """A filter in its one-host form that raises."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        raise KeyError(host.service_host)


def test_a_filter_that_raises_on_one_host_is_broken() -> None:
    snapshot = host_cache([host_row(1)]).snapshot()
    with pytest.raises(errors.BrokenPlugin, match="filter raising is broken: KeyError"):
        Funnel([Named("raising", RaisingFilter({}))], []).filter(snapshot, spec(), everyone(snapshot))


class AnsweringFilter(Filter):
    """A filter in its one-host form that gives the same answer for all hosts."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        answer: bool = self.settings["answer"]
        return answer


@pytest.mark.parametrize("answer", [None, "no", float("nan"), 1])
def test_a_filter_whose_answer_is_no_boolean_is_broken_and_decides_nothing(answer: object) -> None:
    snapshot = host_cache([host_row(1)]).snapshot()
    broken = Funnel([Named("answering", AnsweringFilter({"answer": answer}))], [])
    with pytest.raises(errors.BrokenPlugin, match="filter answering is broken: TypeError"):
        broken.filter(snapshot, spec(), everyone(snapshot))
    assert broken.reasons_against(snapshot.host(0), spec()) == [
        "has no answer of the filter answering, which is broken"
    ]


@pytest.mark.parametrize("answer", [True, np.True_])
def test_a_filter_may_answer_with_a_boolean_of_numpy(answer: bool) -> None:
    snapshot = host_cache([host_row(1)]).snapshot()
    filtered = Funnel([Named("answering", AnsweringFilter({"answer": answer}))], []).filter(
        snapshot, spec(), everyone(snapshot)
    )
    assert filtered.left.tolist() == [True]


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_filter_that_gives_a_blank_as_its_reason_has_the_reason_of_its_class_or_of_all_filters(blank: str) -> None:
    class Blank(AnsweringFilter):
        reason = "is in another rack"

        def why(self, host: Host, request: RequestSpec) -> str:
            return blank

    snapshot = host_cache([host_row(1)]).snapshot()
    funnel = Funnel([Named("blank", Blank({"answer": False}))], [])
    assert funnel.reasons_against(snapshot.host(0), spec()) == ["is in another rack"]
    Blank.reason = blank
    assert funnel.reasons_against(snapshot.host(0), spec()) == ["was refused"]
    assert funnel.filter(snapshot, spec(), everyone(snapshot)).counts()[0].reason == "was refused"


class BySpeed(Weigher):
    """A weigher that needs a numeric attribute."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        raise NotImplementedError

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        return view.number("speed")


def test_a_value_that_a_plugin_cannot_use_is_named() -> None:
    snapshot = host_cache([host_row(1, attributes={"speed": "fast"}), host_row(2)]).snapshot()
    with pytest.raises(
        errors.BadPluginValue, match=r"operators_own cannot use a value .*: speed is 'fast', which is no number"
    ):
        Funnel([], [Weighted("operators_own", BySpeed({}), 1.0)]).rank(snapshot, spec(), everyone(snapshot), seed=0)


def test_the_explanation_of_a_request_with_thousands_of_names_fits_into_a_message() -> None:
    traits = [tuple(f"CUSTOM_{group}_{number}_{'X' * 200}" for number in range(20)) for group in range(63)]
    groups = {f"{n}": ResourceGroup(resources={"VCPU": 1}, required=named) for n, named in enumerate(traits, 1)}
    forced = tuple(f"host{number}" for number in range(20))
    asked = select(memory_mb=1, root_gb=0, groups=groups, group_policy="none", force_hosts=forced)
    hosts = [host_row(number) for number in range(20)]
    view = host_cache(hosts, [provider(host, VCPU=inventory(99), MEMORY_MB=inventory(1)) for host in hosts]).snapshot()
    planner, claims = Planner(funnel(), 1), RefusedClaims()
    outcome = planner.plan(view, asked, claims)
    assert isinstance(outcome, NoHost)
    explanation = planner.why_not(outcome, asked, claims)
    assert explanation.named_hosts["host3"].startswith(f"has not {traits[0][0]}; has not ")
    assert (len(explanation.named_hosts), len(explanation.nearest_hosts)) == (20, 5)
    assert len(msgspec.json.encode(explanation)) < SURELY_FITS


def test_an_explanation_lists_the_first_hundred_of_thousands_of_nearest_misses() -> None:
    groups = {f"{n}": ResourceGroup(resources={f"CUSTOM_{m}": n for m in range(30)}) for n in range(1, 64)}
    asked = select(groups=groups, group_policy="none")
    planner, claims = Planner(funnel(), 1), RefusedClaims()
    outcome = planner.plan(host_cache([host_row(0), host_row(1)]).snapshot(), asked, claims)
    assert isinstance(outcome, NoHost)
    misses = planner.why_not(outcome, asked, claims).nearest_misses
    assert (len(misses), {miss.reason for miss in misses}) == (100, {"has none"})


# --- Invalid requests -------------------------------------------------------------------------------------------------


class PickyFilter(EvenHosts):
    """A filter that refuses each request with the given error."""

    def check(self, request: RequestSpec) -> None:
        raise self.settings["fault"]


def test_a_request_that_a_filter_finds_invalid_is_an_error_of_the_caller() -> None:
    fault = errors.InvalidRequest(path="$.scheduler_hints.colour", reason="it is no colour")
    with pytest.raises(errors.InvalidRequest) as caught:
        Funnel([Named("picky", PickyFilter({"fault": fault}))], []).check(spec())
    assert caught.value is fault
    Funnel([Named("even", EvenHosts({}))], []).check(spec())
