"""Test the evaluations of requests with server groups, which share those of requests without."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler.builders import host_cache, host_row, select
from support.scheduler.evaluations import cloud, places, planned_view, plugins, sizes

from filters.server_group_affinity import ServerGroupAffinityFilter
from filters.server_group_anti_affinity import ServerGroupAntiAffinityFilter
from moorage.ids import derived
from moorage.model import ServerGroup
from placement_store.server_groups.rows import OccupiedRoot
from scheduler.decide.evaluation import EvaluationPool
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import DestinationPlan, Planner
from scheduler.decide.request_context import NO_CONTEXT, RequestContext
from scheduler.plugins.loading import Named, Weighted
from weighers.server_group_soft_affinity import ServerGroupSoftAffinityWeigher
from weighers.server_group_soft_anti_affinity import ServerGroupSoftAntiAffinityWeigher


def of_groups(multipliers: list[float]) -> Funnel:
    """Return the built-in plug-ins among these, with those for server groups."""
    of_claims = plugins(multipliers, one_by_one=False)
    return Funnel(
        [
            Named("affinity", ServerGroupAffinityFilter({})),
            *of_claims.filters,
            Named("anti_affinity", ServerGroupAntiAffinityFilter({})),
        ],
        [
            *of_claims.weighers,
            Weighted("soft_affinity", ServerGroupSoftAffinityWeigher({}), 1.0),
            Weighted("soft_anti_affinity", ServerGroupSoftAntiAffinityWeigher({}), 1.0),
        ],
    )


#: A request: the policy of its group and the most members on a host, its instances, the hosts with members, and VCPU.
grouped = st.tuples(
    st.sampled_from([None, "affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.dictionaries(st.integers(0, 11), st.integers(1, 2), max_size=4),
    st.integers(1, 2),
)


@settings(deadline=None)
@given(
    sizes,
    st.lists(grouped, min_size=2, max_size=8),
    st.lists(st.sampled_from([-1.0, 0.3, 1.0]), min_size=7, max_size=7),
)
def test_requests_of_groups_go_where_they_would_if_every_host_were_evaluated_for_each(
    sizes: list[tuple[int, int, bool]], asked: list[Any], multipliers: list[float]
) -> None:
    view = planned_view(cloud(sizes))
    kept, by = EvaluationPool(), of_groups(multipliers)
    for number, (policy, most, count, members, size) in enumerate(asked):
        group, context = None, NO_CONTEXT
        if policy is not None:
            group = ServerGroup(uuid=derived("tests", "group"), policy=policy, max_server_per_host=most)
            nodes = {view.hosts[row % len(view)].compute_node_uuid: some for row, some in members.items()}
            context = RequestContext({uuid: OccupiedRoot(some, forced_down=False) for uuid, some in nodes.items()})
        message = select(f"r{number}", vcpus=size, count=count, num_alternates=2, server_group=group)
        shared = Planner(by, 1, kept).plan(view, message, RefusedClaims(), context)
        anew = Planner(by, 1, EvaluationPool(0)).plan(view, message, RefusedClaims(), context)
        assert places(shared) == places(anew)
        if isinstance(shared, DestinationPlan):
            # As in a batch, the next request sees these claims.
            for choice in shared.chosen:
                view.claim(choice.row, choice.allocation_request)


def test_a_weigher_that_is_broken_for_another_host_does_not_fail_a_request_whose_group_is_on_one() -> None:
    hosts = [host_row(1), host_row(2), host_row(3, metadata={"ram_weight_multiplier": frozenset({"much"})})]
    group = ServerGroup(uuid=derived("tests", "group"), policy="affinity")
    context = RequestContext({hosts[1].compute_node_uuid: OccupiedRoot(1, forced_down=False)})

    plan = Planner(of_groups([1.0] * 7), 1, EvaluationPool()).plan(
        host_cache(hosts).snapshot(), select(server_group=group), RefusedClaims(), context
    )

    assert isinstance(plan, DestinationPlan)
    assert [choice.row for choice in plan.chosen] == [1]
