"""Breaks of promises 5, 8 and 9: the answers of the scheduler, and their explanations."""

from support.breaks.description import Break

_DESTINATIONS = "tests/contract/scheduler/decide/test_destinations.py::"
_MISSED_CHANGES = "tests/contract/scheduler/view/test_missed_changes.py::"
_NO_VALID_HOST = "tests/contract/scheduler/decide/test_no_valid_host.py::"

ALTERNATES = (
    Break(
        name="alternates_of_any_cell",
        promise=5,
        lost="An alternate is in a cell whose conductor cannot build on it.",
        module="scheduler.decide.choosing",
        line="            among = offered & (view.cell_codes == cell)",
        broken="            among = offered",
        tests=(_DESTINATIONS + "test_alternates_are_different_unclaimed_hosts_of_the_claimed_hosts_cell",),
    ),
    Break(
        name="claimed_host_as_its_own_alternate",
        promise=5,
        lost="The host that has failed is offered as its own alternate.",
        module="scheduler.decide.choosing",
        line=" if other.row != choice.row][:count]",
        broken="][:count]",
        tests=(_DESTINATIONS + "test_alternates_are_different_unclaimed_hosts_of_the_claimed_hosts_cell",),
    ),
    Break(
        name="refusing_hosts_are_alternates",
        promise=5,
        lost="A host that has just refused a claim of this request is offered as an alternate.",
        module="scheduler.decide.planner",
        line="_rows_of(view, refused_claims.lost))",
        broken="_rows_of(view, ()))",
        tests=(_DESTINATIONS + "test_a_host_that_refused_a_claim_is_no_alternate_after_the_view_has_caught_up",),
    ),
    Break(
        name="alternates_before_the_claims",
        promise=5,
        lost="An alternate suits a server only as long as the other servers of its request are not claimed.",
        module="scheduler.decide.planner",
        line="evaluation, ranking = evaluations.ranked(self.funnel, view, request, entering, infeasible, ties)",
        broken="_ = infeasible",
        tests=(
            "tests/contract/scheduler/decide/test_server_group_destinations.py::test_members_of_one_request_get_different_hosts",
        ),
    ),
)

TRUE_REFUSALS = (
    Break(
        name="refused_without_catching_up",
        promise=8,
        lost='"No valid host" is answered from a view that is behind the store.',
        module="scheduler.decide.decision",
        line="                if caught_up:",
        broken="                if caught_up or not caught_up:",
        tests=(_NO_VALID_HOST + "test_room_that_the_view_lacks_is_found_before_the_answer_is_that_no_host_is_valid",),
    ),
    Break(
        name="refused_hosts_stay_refused",
        promise=8,
        lost="A host that has refused once is left out of the last decision, though it has room again.",
        module="scheduler.decide.decision",
        line="                self.refused_claims.try_all_again()",
        broken="                _ = self.refused_claims",
        tests=(_DESTINATIONS + "test_a_host_that_refused_a_claim_is_tried_again_before_the_answer_is_no_valid_host",),
    ),
    Break(
        name="nothing_is_compared",
        promise=8,
        lost="A change that the feed has missed is found only by the next comparison, after the request is refused.",
        module="scheduler.view.follower",
        line="        return self._host_cache.sums() == sums",
        broken="        return bool(sums)",
        tests=(_NO_VALID_HOST + "test_a_change_that_the_feed_has_missed_is_found_by_a_comparison",),
    ),
    Break(
        name="any_comparison_will_do",
        promise=8,
        lost="A refusal is based on a comparison that was made before its request arrived.",
        module="scheduler.view.follower",
        line="        if last() >= begun_after:",
        broken="        if last() > float('-inf'):",
        tests=(_NO_VALID_HOST + "test_a_new_host_and_a_larger_host_that_the_view_lacks_are_found",),
    ),
    Break(
        name="commits_in_order",
        promise=8,
        lost="A change that commits after one with a later number is missing in the views until the next comparison.",
        module="placement_store.db.change_feed",
        line="            if self._began - first_read < SETTLED_AFTER:",
        broken="            if first_read < 0:",
        tests=(_MISSED_CHANGES + "test_a_change_that_is_committed_after_one_with_a_later_number_is_not_missed",),
    ),
)

EXPLAINED = (
    Break(
        name="uncounted_refusals",
        promise=9,
        lost="An explanation does not say how many hosts each filter has removed.",
        module="scheduler.decide.funnel",
        line="removed=entered - left, reason=stage.reason",
        broken="removed=entered - entered, reason=stage.reason",
        tests=(_NO_VALID_HOST + "test_a_refusal_counts_what_each_filter_removed_and_names_the_nearest_misses",),
    ),
    Break(
        name="explanations_are_thrown_away",
        promise=9,
        lost="The reason why a server could not be placed cannot be read afterwards.",
        module="conductor.super.records.instances",
        line='    values = {"state": "error", "reason": reason, "explanation": explanation,',
        broken='    values = {"state": "error", "reason": reason, "explanation": None,',
        tests=("tests/functional/conductor/cell/test_builds.py::test_a_refusal_is_kept_with_its_explanation",),
    ),
    Break(
        name="farthest_misses",
        promise=9,
        lost="The hosts that lack most are named as the nearest misses.",
        module="scheduler.decide.explain.nearest_misses",
        line="            order = chosen[np.lexsort((ties[chosen], share[chosen]))]",
        broken="            order = chosen[np.lexsort((ties[chosen], -share[chosen]))]",
        tests=(_NO_VALID_HOST + "test_a_refusal_counts_what_each_filter_removed_and_names_the_nearest_misses",),
    ),
)

IN_ANSWERS = (*ALTERNATES, *TRUE_REFUSALS, *EXPLAINED)
