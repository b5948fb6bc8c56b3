"""Breaks of promises 1 to 4, 6 and 7: the claims of the store, and their consumers."""

from support.breaks.description import Break

_ALLOCATIONS = "tests/contract/store/allocations/test_allocations.py::"
_CLAIMS = "tests/contract/store/claims/test_claims.py::"
_GROUPS = "tests/contract/store/server_groups/test_server_groups.py::"
_RECONCILER = "tests/contract/store/upkeep/test_reconciler.py::"
_RESIDUES = "tests/contract/store/claims/test_residues.py::"

NEVER_OVER_COMMIT = (
    Break(
        name="unguarded_claims",
        promise=1,
        lost="A claim does not check whether it fits: a decision on an outdated view over-commits.",
        module="placement_store.allocations.capacity",
        line='reserved) * allocation_ratio AND " if kind.growth > 0 else ""',
        broken='reserved) * allocation_ratio AND " if not kind else ""',
        tests=(_ALLOCATIONS + "test_a_put_that_does_not_fit_is_refused_with_each_full_inventory_and_its_free_amount",),
    ),
    Break(
        name="reserved_is_claimed",
        promise=1,
        lost="Amounts that are reserved for the host itself are claimed.",
        module="placement_store.allocations.capacity",
        line='fits = f"used + {kind.growth} <= (total - reserved) * allocation_ratio AND "',
        broken='fits = f"used + {kind.growth} <= total * allocation_ratio AND "',
        tests=(_ALLOCATIONS + "test_capacity_is_the_total_less_the_reserved_amount_times_the_ratio",),
    ),
    Break(
        name="uncounted_use",
        promise=1,
        lost="Claimed amounts are not counted, so the same room is claimed several times.",
        module="placement_store.allocations.capacity",
        line="""changed = f"used + CASE {' '.join(growth)} END\"""",
        broken="""changed = f"used + 0 * CASE {' '.join(growth)} END\"""",
        tests=(_ALLOCATIONS + "test_a_put_that_does_not_fit_is_refused_with_each_full_inventory_and_its_free_amount",),
    ),
    Break(
        name="taken_for_what_is_released",
        promise=1,
        lost="An amount of an over-committed host is claimed because another consumer releases more at the same time.",
        module="placement_store.claims.put",
        line="growths.get(pair, 0) * growth < 0",
        broken="growths.get(pair, 0) * growth > growth**4",
        tests=(
            (
                "tests/contract/store/allocations/test_puts_together.py::"
                "test_a_simultaneous_release_makes_no_room_on_an_over_committed_host"
            ),
        ),
    ),
)

ONE_PLACEMENT = (
    Break(
        name="swapped_and_kept",
        promise=2,
        lost="An instance that falls back to the next host keeps its allocations on the failed host.",
        module="placement_store.claims.swap",
        line="return _SwapResult(after=foreign - lost + Counter(claimed),",
        broken="return _SwapResult(after=Counter(holding.amounts) + Counter(claimed),",
        tests=(_CLAIMS + "test_a_swap_releases_one_host_and_claims_the_next",),
    ),
    Break(
        name="no_residues",
        promise=2,
        lost="A guest that may still run holds no amounts any more.",
        module="placement_store.claims.residues",
        line="    if not leaving:",
        broken="    if leaving or not leaving:",
        tests=(_RESIDUES + "test_the_swap_of_an_accepted_claim_leaves_a_residue_on_its_host",),
    ),
    Break(
        name="accepted_claims_are_replaced",
        promise=2,
        lost="An instance whose host has already accepted it is claimed a second time elsewhere.",
        module="placement_store.claims.claim",
        line="    if holding is not None and holding.accepted_by is not None:",
        broken="    if holding is None and new.consumer_generation is not None:",
        tests=(_CLAIMS + "test_an_accepted_claim_is_not_replaced_by_a_new_one",),
    ),
    Break(
        name="moved_twice",
        promise=2,
        lost="A second move of an instance begins before the first has ended: three hosts are held.",
        module="placement_store.claims.begin_move",
        line="    if (pending := connection.scalar(query)) is not None:",
        broken="    if (pending := connection.scalar(query)) is not None and generation is None:",
        tests=(
            (
                "tests/contract/store/moves/test_moves.py::"
                "test_an_existing_migration_and_a_second_move_before_the_first_has_ended_are_refused"
            ),
        ),
    ),
)

NO_LEAKS = (
    Break(
        name="never_reconciled",
        promise=3,
        lost="A claim that its owner does not want is kept for ever.",
        module="placement_store.upkeep.reconciler",
        line="        if reply.owned:",
        broken="        if reply.owned or not reply.owned:",
        tests=(_RECONCILER + "test_a_claim_is_released_only_if_its_owner_does_not_want_it",),
    ),
    Break(
        name="released_by_the_clock",
        promise=3,
        lost="A claim whose owner is silent is released, though the owner may be about to use it.",
        module="placement_store.upkeep.reconciler",
        line="            self._note(claim, UNKNOWN, str(fault))",
        broken="            self._release(claim)",
        tests=(_RECONCILER + "test_without_an_answer_all_claims_are_kept_and_a_round_stops_after_three_questions",),
    ),
    Break(
        name="released_claims_are_accepted",
        promise=3,
        lost="A host may use a claim that has been released or has passed to another host.",
        module="placement_store.claims.claim",
        line='        _accepted.claim_id == bindparam("claim"),',
        broken='        func.coalesce(bindparam("claim"), "") == bindparam("claim"),',
        tests=(_CLAIMS + "test_a_released_claim_is_not_accepted",),
    ),
    Break(
        name="accepted_claims_are_reconciled",
        promise=3,
        lost="A claim that a host accepts while its owner is asked is released under the host's guest.",
        module="placement_store.upkeep.reconciler",
        line="            unaccepted=True,",
        broken="            unaccepted=False,",
        tests=(_RECONCILER + "test_a_claim_accepted_while_its_owner_is_asked_is_left_alone",),
    ),
)

SAME_ANSWER = (
    Break(
        name="repeated_requests_are_new",
        promise=4,
        lost="A repeated message is carried out a second time.",
        module="moorage.service.stored_requests",
        line='return {"request_id": message.request_id, "method"',
        broken='return {"request_id": ids.fresh(), "method"',
        tests=(_CLAIMS + "test_a_repeated_request_is_carried_out_once_and_gets_its_stored_answer",),
    ),
    Break(
        name="content_is_not_compared",
        promise=4,
        lost="A request with the id of another one is answered with that one's result.",
        module="moorage.service.stored_requests",
        line="        if row.digest != message.digest():",
        broken="        if row.digest == b'':",
        tests=(_CLAIMS + "test_a_request_id_with_other_content_is_refused",),
    ),
    Break(
        name="no_tombstones",
        promise=4,
        lost="A late claim revives an instance that was deleted for good.",
        module="placement_store.allocations.tombstones",
        line="    _write_tombstone(connection, uuid)",
        broken="    _ = uuid",
        tests=(_CLAIMS + "test_a_consumer_deleted_for_good_is_gone_and_cannot_be_claimed_for_again",),
    ),
    Break(
        name="tombstones_are_not_looked_for",
        promise=4,
        lost="A claim for an instance that has just been deleted creates it again.",
        module="placement_store.allocations.consumers",
        line="            if tombstone is not None and _is_known_over_rpc(rows[uuid]):",
        broken="            if tombstone is not None and uuid not in rows:",
        tests=(_CLAIMS + "test_one_deleted_consumer_refuses_a_whole_request",),
    ),
)

GROUP_RULES = (
    Break(
        name="hoped_for_groups",
        promise=6,
        lost="The rules of server groups hold in the view alone.",
        module="placement_store.allocations.write",
        line="        rules.verify(script, before, after, {change.uuid for change in others}, groups)",
        broken="        _ = others, groups",
        tests=(_GROUPS + "test_a_host_takes_at_most_the_configured_number_of_members_of_an_anti_affinity_group",),
    ),
    Break(
        name="unlocked_groups",
        promise=6,
        lost="Two members that are claimed at the same moment do not see each other.",
        module="placement_store.server_groups.rules",
        line="    hard = [id_ for id_ in group_ids if id_ in groups and groups[id_].policy in _HARD]",
        broken="    hard = [id_ for id_ in group_ids if id_ in groups and groups[id_].policy not in _HARD]",
        tests=(
            (
                "tests/external/races/test_group_rule_races.py::"
                "test_of_two_hundred_claims_by_eight_writers_each_host_takes_as_many_as_the_rule_says"
            ),
        ),
        needs_servers=True,
    ),
    Break(
        name="moving_members_do_not_count",
        promise=6,
        lost="While a member moves, another one takes its place, and there is no way back.",
        module="placement_store.claims.begin_move",
        line='        "consumer_group_id": instance.consumer_group_id,',
        broken='        "consumer_group_id": None,',
        tests=(_GROUPS + "test_a_moving_member_of_an_anti_affinity_group_counts_on_both_hosts",),
    ),
)

STALE_WRITERS = (
    Break(
        name="ignored_generations",
        promise=7,
        lost="A caller that names an older generation than the present one is not refused.",
        module="placement_store.claims.put",
        line="    if found != wanted.generation:",
        broken="    if found is wanted.generation is Ellipsis:",
        tests=(_ALLOCATIONS + "test_a_wrong_consumer_generation_is_a_conflict_that_names_the_current_one",),
    ),
    Break(
        name="generations_stand_still",
        promise=7,
        lost="A write does not bump the generation, so that no client notices the write.",
        module="placement_store.allocations.consumers",
        line='    values = {**columns, "generation": holding.generation + 1, "updated_at": now()}',
        broken='    values = {**columns, "generation": holding.generation, "updated_at": now()}',
        tests=(_CLAIMS + "test_a_swap_releases_one_host_and_claims_the_next",),
    ),
    Break(
        name="no_compare_and_swap",
        promise=7,
        lost="Of two writers that have read the same generation both succeed.",
        module="placement_store.allocations.consumers",
        line="statement.where(consumers.c.id == holding.id, consumers.c.generation == holding.generation)",
        broken="statement.where(consumers.c.id == holding.id)",
        tests=(_CLAIMS + "test_the_conflict_names_the_consumer_that_has_changed_since_it_was_read",),
        needs_servers=True,
    ),
    Break(
        name="claims_on_stale_consumers",
        promise=7,
        lost="A decision that was made for an older state of its consumer is claimed all the same.",
        module="placement_store.claims.claim",
        line="    if found != new.consumer_generation:",
        broken="    if found is new.consumer_generation is Ellipsis:",
        tests=(_CLAIMS + "test_a_claim_with_a_stale_consumer_generation_is_a_conflict",),
    ),
)

IN_THE_STORE = (*NEVER_OVER_COMMIT, *ONE_PLACEMENT, *NO_LEAKS, *SAME_ANSWER, *GROUP_RULES, *STALE_WRITERS)
