"""Breaks of promises 10 to 12: lost, late, repeated and slow messages, and failing parts; and breaks of moves."""

from support.breaks.description import Break

_MOVES = "tests/functional/conductor/cell/moves/test_cell_moves.py::"
_LATE_ORDERS = "tests/functional/conductor/cell/test_late_orders.py::"
_DEADLINES = "tests/contract/bus/test_deadlines.py::"
_RECORDS = "tests/contract/conductor/test_conductor_records.py::"

MOVED_GUESTS = (
    Break(
        name="moved_while_it_runs",
        promise=2,
        lost="A server is started on the destination of its move while it still runs on the source.",
        module="conductor.cell.steps.start",
        line="            why = self._cell.agents.order(operation, source, message)",
        broken="            why = None",
        tests=(_MOVES + "test_a_source_that_cannot_be_stopped_keeps_its_guest",),
    ),
    Break(
        name="former_image_stays_recorded",
        promise=4,
        lost="A rebuilt server starts from its former image when it moves.",
        module="conductor.cell.steps.rebuild",
        line="        spec = msgspec.structs.replace(instance.spec, image=payload.image)",
        broken="        spec = instance.spec",
        tests=(
            "tests/functional/conductor/cell/test_cell_shelving.py::test_a_rebuilt_instance_keeps_its_attempt_and_its_claim",
        ),
    ),
    Break(
        name="left_stopped",
        promise=10,
        lost="A server that returns to the source of its move stays stopped there.",
        module="conductor.cell.steps.return_to_source",
        line="        if migration.kind in STOPPING and payload.stopped:",
        broken="        if payload is None:",
        tests=(_MOVES + "test_a_reverted_instance_runs_on_its_source_under_its_old_attempt_and_claim",),
    ),
    Break(
        name="late_stops_are_obeyed",
        promise=11,
        lost="A late order to stop a guest for a move stops it after the move has failed.",
        module="conductor.cell.steps.return_to_source",
        line="            order_numbers.next_guest_order(self._cell.records, connection, instance)",
        broken="            _ = order_numbers",
        tests=(_LATE_ORDERS + "test_each_order_to_a_guest_has_a_greater_number_and_keeps_it_when_it_is_repeated",),
    ),
)

COSTS_TIME = (
    Break(
        name="leases_for_ever",
        promise=10,
        lost="The work of a dead conductor is never continued.",
        module="conductor.engine.leases",
        line="or_(lease.lease_owner.is_(None), lease.lease_until < now())",
        broken="or_(lease.lease_owner.is_(None))",
        tests=(_RECORDS + "test_an_operation_is_taken_over_only_after_its_lease_has_expired",),
    ),
    Break(
        name="no_fencing_token",
        promise=10,
        lost="A conductor that counted as dead continues work that another one has taken over.",
        module="conductor.engine.leases",
        line="            table.lease_number == operation.lease_number,",
        broken="            table.lease_number == table.lease_number,",
        tests=(_RECORDS + "test_a_conductor_that_was_suspended_takes_its_operation_again_if_no_other_has_taken_it",),
    ),
    Break(
        name="taken_over_with_the_same_token",
        promise=10,
        lost="A conductor that counted as dead records a step of work that another one has taken over.",
        module="conductor.engine.leases",
        line="operation_of(row, row.lease_number + 1, resumed=resumed)",
        broken="operation_of(row, row.lease_number, resumed=resumed)",
        tests=(_RECORDS + "test_an_operation_is_taken_over_only_after_its_lease_has_expired",),
    ),
    Break(
        name="lost_commits_are_failures",
        promise=10,
        lost="A write whose COMMIT was carried out and not answered is reported as one that is still running.",
        module="moorage.service.stored_requests",
        line="                if stored := self._database.read(lambda connection: self.find(connection, message)):",
        broken="                if stored := None:",
        tests=(
            "tests/contract/store/claims/test_claims.py::test_a_repeated_request_is_carried_out_once_and_gets_its_stored_answer",
        ),
    ),
    Break(
        name="one_lost_connection_is_an_outage",
        promise=10,
        lost="A request that meets a connection from before the database's restart fails.",
        module="moorage.db.database",
        line="            retry=tenacity.retry_if_exception(faults.is_away),",
        broken="            retry=tenacity.retry_if_exception(faults.is_collision),",
        tests=(
            "tests/external/faults/test_lost_commits.py::test_a_write_whose_commit_was_lost_is_done_once_and_answered",
        ),
        needs_servers=True,
    ),
    Break(
        name="silence_is_waited_for",
        promise=10,
        lost="A caller waits for ever for a database that is silent.",
        module="moorage.db.engine",
        line='            "read_timeout": limits.answer,',
        broken='            "read_timeout": 3600,',
        tests=(
            (
                "tests/external/faults/test_silent_database.py::"
                "test_one_silent_connection_costs_one_time_out_and_the_others_of_the_pool_nothing"
            ),
        ),
        needs_servers=True,
    ),
)

LATE_MESSAGES = (
    Break(
        name="late_orders_are_obeyed",
        promise=11,
        lost="An order that was overtaken by a later one is carried out when it arrives.",
        module="conductor.cell.records.order_numbers",
        line="    if number < instance.order_number:",
        broken="    if number < 0:",
        tests=(_LATE_ORDERS + "test_an_order_that_comes_after_a_later_one_is_refused_and_changes_nothing",),
    ),
    Break(
        name="refused_orders_come_again",
        promise=11,
        lost="A second copy of an order that was refused is carried out later.",
        module="conductor.cell.records.order_numbers",
        line="    if instance.order_number < number <= instance.refused_order_number:",
        broken="    if number < 0:",
        tests=(_LATE_ORDERS + "test_an_order_that_was_refused_is_not_carried_out_when_a_copy_of_it_comes_later",),
    ),
    Break(
        name="refusals_leave_nothing",
        promise=11,
        lost="A copy of an order that was refused is carried out if its message comes when the order is possible.",
        module="moorage.service.stored_requests",
        line="            self._refusals.check(connection, message)",
        broken="            _ = message",
        tests=(
            (
                "tests/contract/conductor/test_refused_sendings.py::"
                "test_a_copy_of_a_refused_sending_is_refused_although_the_order_is_possible_now"
            ),
        ),
    ),
    Break(
        name="expired_calls_are_begun",
        promise=11,
        lost="A call that has waited for longer than its caller is carried out.",
        module="moorage.bus.handlers",
        line='                context.check_deadline("before it was begun")',
        broken="                _ = context",
        tests=(_DEADLINES + "test_a_call_that_waits_in_a_busy_server_beyond_its_deadline_is_not_begun",),
    ),
    Break(
        name="expired_writes_are_committed",
        promise=11,
        lost="A write is committed after its caller has stopped waiting.",
        module="moorage.db.database",
        line='                    context.check_deadline("before COMMIT")',
        broken="                    _ = context",
        tests=(_DEADLINES + "test_a_call_that_is_late_at_commit_writes_nothing",),
    ),
    Break(
        name="old_lists_of_guests",
        promise=11,
        lost="A list of guests from an earlier life of a host is taken as proof that a younger guest is gone.",
        module="conductor.cell.records.lives",
        line=" and lives.get(host, found[host].number) == found[host].number",
        broken="",
        tests=(
            (
                "tests/functional/conductor/cell/hosts/test_lives_of_hosts.py::"
                "test_a_list_of_guests_that_arrives_late_or_twice_is_no_proof_that_a_younger_guest_is_gone"
            ),
        ),
    ),
    Break(
        name="old_attempts_pass_the_gates",
        promise=11,
        lost="The guest of an attempt that has failed counts as the instance's.",
        module="conductor.cell.gates",
        line='    is_current = instance.attempt_number == attempt.number and attempt.state in (*_UNDER_WAY, "active")',
        broken="    is_current = attempt.claim_id is not None",
        tests=(
            (
                "tests/functional/conductor/cell/test_falling_back.py::"
                "test_an_old_attempt_passes_neither_gate_and_its_failure_has_no_effect"
            ),
        ),
    ),
    Break(
        name="destroyed_attempts_are_started",
        promise=11,
        lost="An order to build that comes after the order to destroy is carried out.",
        module="compute.attempts",
        line="            if attempt.building or attempt.destroyed:",
        broken="            if attempt.building:",
        tests=("tests/unit/compute/test_attempts.py::test_a_destroyed_attempt_is_never_taken_up",),
    ),
)

STAYS_ALONE = (
    Break(
        name="no_bulkheads",
        promise=12,
        lost="One cell that does not answer takes all workers of a conductor.",
        module="conductor.engine.bulkheads",
        line="        return group in groups or len(groups) + self.kept < share",
        broken="        return group in groups or len(groups) + self.kept < share + 1_000_000",
        tests=(
            "tests/unit/conductor/test_bulkheads.py::test_a_step_beyond_the_share_is_postponed_until_a_call_is_over",
        ),
    ),
    Break(
        name="breakers_never_open",
        promise=12,
        lost="Each call to a cell that is dead waits for its whole time-out.",
        module="conductor.engine.bulkheads",
        line="                if begun > bulkhead.answered_at and bulkhead.open_since is None:",
        broken="                if begun < 0:",
        tests=(
            (
                "tests/unit/conductor/test_bulkheads.py::"
                "test_after_timeouts_no_call_is_made_to_a_destination_until_it_answers"
            ),
        ),
    ),
    Break(
        name="boundless_memory",
        promise=12,
        lost="The search for one request remembers an unlimited number of positions.",
        module="placement_store.candidates.search_budget",
        line="        return self._cells <= CELLS",
        broken="        return self._cells >= 0",
        tests=(
            "tests/unit/placement_store/test_search_budget.py::test_a_request_remembers_a_bounded_number_of_positions",
        ),
    ),
    Break(
        name="answers_of_any_size",
        promise=12,
        lost="A request for more selections than fit into an answer is worked on.",
        module="scheduler.decide.destinations",
        line="    if count * (1 + message.num_alternates) > MAX_SELECTIONS:",
        broken="    if count < 0:",
        tests=(
            (
                "tests/contract/scheduler/decide/test_destinations.py::"
                "test_a_request_whose_answer_would_be_too_large_to_store_is_refused"
            ),
        ),
    ),
)

IN_FAILURES = (*MOVED_GUESTS, *COSTS_TIME, *LATE_MESSAGES, *STAYS_ALONE)
