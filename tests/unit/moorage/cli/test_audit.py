"""Test which states an audit reports as findings, and which it accepts."""

from functools import partial
from typing import Any

import pytest

from moorage.cli.audit.command import examine
from moorage.cli.audit.findings import CloudState, Finding, judge, settled, unanswered, unexplained_residues
from moorage.ids import derived
from moorage.model import (
    Attempt,
    Flavor,
    Guest,
    HostState,
    Instance,
    InstanceHolds,
    ProviderAmounts,
    RecordedHold,
    ServerGroup,
)
from moorage.model.inspection import Holder, InventoryFinding, StoreAudit, UnknownGuest, ViewDrift

CELL = derived("audit", "cell")
NODE, OTHER, POOL = (derived("audit", "node", number) for number in range(3))
ONE, TWO, CLAIM = (derived("audit", "one"), derived("audit", "two"), derived("audit", "claim"))
ATTEMPT = derived("audit", "attempt", "one")
AMOUNTS = {NODE: {"VCPU": 16, "MEMORY_MB": 1024}}
HOLDS = Holder(
    uuid=ONE,
    consumer_type="INSTANCE",
    claim_id=CLAIM,
    accepted_by=ATTEMPT,
    placed_on=NODE,
    allocations=2,
    held=AMOUNTS,
    root_provider_uuids=(NODE,),
)


def instance(state: str = "active", **fields: Any) -> Instance:
    known: dict[str, Any] = {
        "uuid": ONE,
        "project_id": "p",
        "user_id": "u",
        "flavor": Flavor(vcpus=1, memory_mb=1),
        "cell_uuid": CELL,
        "cell": "cell1",
        "host": "host1",
    }
    return Instance(state=state, **known | fields)


def host(number: int, node: str) -> HostState:
    return HostState(
        service_host=f"host{number}",
        nodename=f"host{number}",
        compute_node_uuid=node,
        cell_uuid=CELL,
        agent="agent",
        availability_zone="nova",
        up=True,
        heartbeat_age=0.0,
    )


def attempt(name: str, state: str = "active", on: str = "host1") -> Attempt:
    return Attempt(attempt_id=derived("audit", "attempt", name), number=1, host=on, state=state)


def residue(name: str) -> Holder:
    attempt_id = derived("audit", "attempt", name)
    return Holder(uuid=attempt_id, consumer_type="RESIDUE", accepted_by=attempt_id, allocations=1)


def hold(amounts: Any = None, **fields: Any) -> RecordedHold:
    known: dict[str, Any] = {
        "consumer_uuid": ONE,
        "consumer_type": "INSTANCE",
        "claim_id": CLAIM,
        "root_provider_uuid": NODE,
        "accepted_by": ATTEMPT,
        "accepted_host": "host1",
        "allocations": {uuid: ProviderAmounts(resources=part) for uuid, part in (amounts or AMOUNTS).items()},
        "project_id": "p",
        "user_id": "u",
    }
    return RecordedHold(**known | fields)


def recorded(*holds: RecordedHold, **fields: Any) -> dict[str, list[InstanceHolds]]:
    known: dict[str, Any] = {"instance_uuid": ONE, "state": "active", "settled": True, "attempts": (ATTEMPT,)}
    return {CELL: [InstanceHolds(holds=holds, **known | fields)]}


def seen(*holders: Holder, instances: Any = (), **parts: Any) -> CloudState:
    hosts = [host(1, NODE), host(2, OTHER)]
    known: dict[str, Any] = {"store": StoreAudit(holders=holders), "hosts": hosts, "all_recorded": True}
    return CloudState(**known | parts, instances=list(instances))


def kinds(state: CloudState) -> list[tuple[str, str]]:
    return [(finding.kind, finding.subject) for finding in judge(state)]


def test_an_active_instance_that_holds_its_host_has_no_finding() -> None:
    assert kinds(seen(HOLDS, instances=[instance()])) == []


def test_an_instance_that_is_being_built_or_deleted_has_no_finding() -> None:
    for state in ("building", "deleting"):
        assert kinds(seen(HOLDS, instances=[instance(state)])) == []


def test_a_claim_of_an_instance_that_is_in_error_deleted_or_unknown_is_leaked() -> None:
    assert kinds(seen(HOLDS, instances=[instance("error")])) == [("leaked", ONE)]
    assert kinds(seen(HOLDS, instances=[instance("deleted")])) == [("leaked", ONE)]
    assert kinds(seen(HOLDS)) == [("leaked", ONE)]


def test_a_migration_holds_the_source_only_during_the_move() -> None:
    migration = Holder(uuid=TWO, consumer_type="MIGRATION", claim_id=CLAIM, migration_of=ONE, allocations=1)

    for state in ("moving", "moved"):
        assert kinds(seen(HOLDS, migration, instances=[instance(state, migration_uuid=TWO)])) == []
    for known in ([instance()], [instance("moved", migration_uuid=OTHER)], [instance("deleted", migration_uuid=TWO)]):
        assert ("leaked", TWO) in kinds(seen(HOLDS, migration, instances=known))
    assert ("leaked", TWO) in kinds(seen(migration))


def test_foreign_allocations_that_their_writer_has_called_a_residue_are_no_leak() -> None:
    foreign = Holder(uuid=TWO, consumer_type="RESIDUE", allocations=1)
    assert kinds(seen(HOLDS, foreign, instances=[instance()])) == []


def test_a_residue_of_a_migration_belongs_to_the_attempt_that_accepted_it() -> None:
    left = Holder(
        uuid=TWO, consumer_type="RESIDUE", accepted_by=attempt("one").attempt_id, migration_of=ONE, allocations=1
    )

    assert kinds(seen(HOLDS, left, instances=[instance(attempts=(attempt("one"),))])) == []
    assert kinds(seen(HOLDS, left, instances=[instance(attempts=(attempt("two"),))])) == [("leaked", TWO)]


def test_allocations_of_a_shelved_instance_are_leaked_and_those_of_one_in_error_with_a_guest_are_not() -> None:
    assert ("leaked", ONE) in kinds(seen(HOLDS, instances=[instance("shelved")]))
    assert kinds(seen(HOLDS, instances=[instance("error", attempts=(attempt("one"),))])) == []


def test_allocations_whose_consumer_is_gone_are_leaked() -> None:
    assert kinds(seen(Holder(allocations=3))) == [("leaked", "(no consumer)")]


def test_allocations_without_a_claim_are_no_finding() -> None:
    assert kinds(seen(Holder(uuid=TWO, consumer_type="INSTANCE", allocations=1))) == []


def test_allocations_of_a_shelved_instance_without_a_claim_are_no_finding() -> None:
    written = Holder(uuid=ONE, consumer_type="INSTANCE", allocations=1)
    assert kinds(seen(written, instances=[instance("shelved")])) == []


def test_foreign_allocations_of_a_deleted_server_are_found_with_their_amounts() -> None:
    left = Holder(uuid=ONE, consumer_type="INSTANCE", allocations=1, foreign={NODE: {"VGPU": 2, "VCPU": 1}})
    of_migration = Holder(uuid=TWO, migration_of=ONE, allocations=1, foreign={OTHER: {"VCPU": 1}})

    for known in ([], [instance("deleted")]):
        found = judge(seen(left, of_migration, instances=known))
        assert [(one.kind, one.subject) for one in found] == [("foreign", ONE), ("foreign", TWO)]
        assert found[0].detail == (
            f"was deleted, and has foreign allocations: 1 VCPU of provider {NODE}, 2 VGPU of provider {NODE}"
        )


def test_a_residue_without_a_known_attempt_is_leaked() -> None:
    failed = instance("error", attempts=(attempt("a", "failed"),))
    assert kinds(seen(residue("a"), instances=[failed])) == []
    assert kinds(seen(residue("b"), instances=[failed])) == [("leaked", derived("audit", "attempt", "b"))]


def test_no_residue_is_leaked_while_a_cell_does_not_answer() -> None:
    unknown = instance(cell=None)
    assert unanswered([unknown]) == {CELL}
    assert kinds(seen(HOLDS, residue("b"), instances=[unknown])) == []


def test_no_residue_is_leaked_while_the_records_of_a_cell_are_missing() -> None:
    assert kinds(seen(HOLDS, residue("b"), instances=[instance()], all_recorded=False)) == []


def test_residues_that_only_a_deleted_instance_can_explain_are_found() -> None:
    store = StoreAudit(holders=(residue("one"), residue("b"), HOLDS))
    [known] = recorded().values()
    assert unexplained_residues(store, known) == {derived("audit", "attempt", "b")}


def test_a_residue_of_an_attempt_whose_guest_is_gone_is_leaked_unless_its_host_is_still_cleaned_up() -> None:
    left, failed = residue("one"), instance("error", attempts=(attempt("one", "failed"),))
    for expected, fields in (
        ([("leaked", ATTEMPT)], {}),
        ([], {"cleaned": (ATTEMPT,)}),
        ([], {"settled": False}),
    ):
        assert kinds(seen(left, instances=[failed], recorded=recorded(state="error", **fields))) == expected


def test_a_consumer_on_two_hosts_is_doubled_and_one_that_also_uses_a_pool_is_not() -> None:
    pooled, twice = changed(root_provider_uuids=(NODE, POOL)), changed(root_provider_uuids=(NODE, OTHER))
    assert kinds(seen(pooled, instances=[instance()])) == []
    assert kinds(seen(twice, instances=[instance()])) == [("doubled", ONE)]


def test_an_instance_with_two_active_guests_is_doubled() -> None:
    twice = instance(attempts=(attempt("a"), attempt("b", on="host2")))
    [finding] = judge(seen(HOLDS, instances=[twice]))
    assert (finding.kind, finding.detail) == ("doubled", "has active guests on host1, host2")


# --- Which claim, and how much ----------------------------------------------------------------------------------------


def against(holder: Holder | None, *holds: RecordedHold, roots: Any = None, **fields: Any) -> list[Finding]:
    """Judge one holder against the records of its cell."""
    store = StoreAudit(holders=() if holder is None else (holder,), roots=roots or {})
    return judge(seen(store=store, instances=[instance()], recorded=recorded(*(holds or (hold(),)), **fields)))


def changed(**fields: Any) -> Holder:
    return Holder(**{name: getattr(HOLDS, name) for name in Holder.__struct_fields__} | fields)


def test_a_consumer_that_holds_what_is_recorded_has_no_finding() -> None:
    assert against(HOLDS) == []


def test_an_instance_that_holds_nothing_is_unheld_and_the_missing_amounts_are_named() -> None:
    [finding] = against(None)
    assert (finding.kind, finding.subject, finding.instance_uuid) == ("unheld", ONE, ONE)
    assert finding.detail == (
        f"holds nothing on host1, and should hold 1024 MEMORY_MB of provider {NODE}, 16 VCPU of provider {NODE}"
    )


def test_a_server_that_holds_too_little_is_short_by_class_and_amount() -> None:
    [finding] = against(changed(held={NODE: {"VCPU": 1, "MEMORY_MB": 1024}}))
    assert (finding.kind, finding.subject) == ("short", ONE)
    assert finding.detail == f"holds 1 VCPU of provider {NODE}, and should hold 16"
    other = against(changed(held={NODE: {"VCPU": 2, "MEMORY_MB": 1024}}))
    assert settled([finding], other) == [], "another shortage does not confirm this one"


def test_amounts_beyond_the_recorded_ones_are_no_finding() -> None:
    assert against(changed(held={NODE: {"VCPU": 17, "MEMORY_MB": 1024, "VGPU": 1}, POOL: {"DISK_GB": 5}})) == []


@pytest.mark.parametrize(("classes", "expected"), [({"VCPU", "MEMORY_MB"}, []), (None, ["short"])])
def test_a_recorded_amount_of_a_deleted_class_is_no_finding(classes: set[str] | None, expected: list[str]) -> None:
    older = recorded(hold({NODE: {**AMOUNTS[NODE], "CUSTOM_GONE": 1}}))
    found = judge(seen(HOLDS, instances=[instance()], recorded=older, classes=classes))
    assert [finding.kind for finding in found] == expected


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({"CUSTOM_OTHER"}, []),
        ({"VCPU"}, [f"holds nothing on host1, and should hold 16 VCPU of provider {NODE}"]),
        (
            None,
            [f"holds nothing on host1, and should hold 1 CUSTOM_GONE of provider {POOL}, 16 VCPU of provider {NODE}"],
        ),
    ],
)
def test_a_server_is_unheld_only_if_a_class_that_was_claimed_for_it_still_exists(
    classes: set[str] | None, expected: list[str]
) -> None:
    older = recorded(hold({NODE: {"VCPU": 16}, POOL: {"CUSTOM_GONE": 1}}))
    found = judge(seen(instances=[instance()], recorded=older, classes=classes))
    assert [finding.detail for finding in found] == expected


def test_amounts_moved_within_the_tree_are_no_finding_and_outside_of_it_are_short() -> None:
    child = derived("audit", "child")
    moved = changed(held={NODE: {"MEMORY_MB": 1024}, child: {"VCPU": 16}})
    assert against(moved, roots={child: NODE}) == []
    assert [finding.kind for finding in against(moved, roots={child: OTHER})] == ["short"]


def test_amounts_of_a_pool_must_be_on_that_pool() -> None:
    pooled = hold({**AMOUNTS, POOL: {"DISK_GB": 5}}, pools=(POOL,))
    for held, expected in (({POOL: {"DISK_GB": 5}}, []), ({OTHER: {"DISK_GB": 5}}, ["short"])):
        assert [finding.kind for finding in against(changed(held={**AMOUNTS, **held}), pooled)] == expected


@pytest.mark.parametrize(("gib", "expected"), [(5, []), (4, ["short"])])
def test_amounts_of_a_pool_that_a_reshape_has_emptied_may_be_in_any_tree_that_is_not_a_hosts(
    gib: int, expected: list[str]
) -> None:
    pool, part, other = (derived("audit", name) for name in ("tree", "part", "other pool"))
    pooled = hold({**AMOUNTS, POOL: {"DISK_GB": 5}, other: {"DISK_GB": 1}}, pools=(POOL, other))
    held = {**AMOUNTS, part: {"DISK_GB": gib}, other: {"DISK_GB": 1}}
    assert [finding.kind for finding in against(changed(held=held), pooled, roots={part: pool})] == expected


@pytest.mark.parametrize(("gib", "expected"), [(5, []), (4, ["short"])])
def test_amounts_of_a_deleted_pool_may_be_on_another_pool_below_the_same_host(gib: int, expected: list[str]) -> None:
    # The store does not count a pool below another host as an allocation of that host.
    pooled, part = hold({**AMOUNTS, POOL: {"DISK_GB": 5}}, pools=(POOL,)), derived("audit", "part")
    held = {**AMOUNTS, part: {"DISK_GB": gib}}
    assert [finding.kind for finding in against(changed(held=held), pooled, roots={part: OTHER})] == expected


@pytest.mark.parametrize("root", [POOL, OTHER])
def test_amounts_moved_within_the_tree_of_a_pool_are_no_finding(root: str) -> None:
    pooled, part = hold({**AMOUNTS, POOL: {"DISK_GB": 5}}, pools=(POOL,)), derived("audit", "part")
    roots = {part: root} | ({} if root == POOL else {POOL: root})

    assert against(changed(held={**AMOUNTS, part: {"DISK_GB": 5}}), pooled, roots=roots) == []

    [short] = against(changed(held={**AMOUNTS, part: {"DISK_GB": 4}}), pooled, roots=roots)
    assert short.detail == f"holds 4 DISK_GB of provider {root}, and should hold 5"


# --- Both sides of a move ---------------------------------------------------------------------------------------------

MIGRATION, PART, REST, TREE = (derived("audit", name) for name in ("migration", "part", "rest", "tree"))


def gib(amount: int, pool: str = POOL) -> dict[str, dict[str, int]]:
    return {pool: {"DISK_GB": amount}} if amount else {}


def of_a_move(held: tuple[Any, Any], recorded_of: tuple[Any, Any], roots: Any) -> list[tuple[str, str, str]]:
    """Judge a move from one host to the next, given the amounts of pools of the instance and of its migration."""
    arrived = {"placed_on": OTHER, "held": {OTHER: AMOUNTS[NODE], **held[0]}, "root_provider_uuids": (OTHER,)}
    moved = {"uuid": MIGRATION, "consumer_type": "MIGRATION", "claim_id": TWO, "migration_of": ONE}
    holders = changed(**arrived), changed(**moved, held={**AMOUNTS, **held[1]})
    own, left = recorded_of
    holds = (
        hold({OTHER: AMOUNTS[NODE], **own}, root_provider_uuid=OTHER, pools=tuple(own)),
        hold(
            {**AMOUNTS, **left},
            consumer_uuid=MIGRATION,
            consumer_type="MIGRATION",
            claim_id=TWO,
            migration_of=ONE,
            pools=tuple(left),
        ),
    )
    store = StoreAudit(holders=holders, roots=roots)
    state = seen(
        store=store,
        instances=[instance("moved", migration_uuid=MIGRATION)],
        recorded=recorded(*holds, state="moved", migrations=(MIGRATION,)),
    )
    return [(finding.kind, finding.subject, finding.detail) for finding in judge(state)]


@pytest.mark.parametrize(("old", "new"), [(5, 3), (3, 5)])
@pytest.mark.parametrize("roots", [{PART: POOL}, {PART: TREE}, {PART: TREE, POOL: TREE}])
def test_a_pool_that_was_reshaped_before_a_move_counts_once_for_both_sides(old: int, new: int, roots: Any) -> None:
    names = gib(new, PART), gib(old)

    assert of_a_move((gib(max(old, new), PART), {}), names, roots) == []
    # A part of it was moved: the migration holds the rest.
    assert of_a_move((gib(max(old - 1, new), PART), gib(1)), names, {PART: TREE, POOL: TREE}) == []
    # A second reshape has moved it during the move, and both providers are deleted.
    assert of_a_move((gib(max(old, new), REST), {}), names, {REST: TREE}) == []
    assert of_a_move((gib(max(old, new)), {}), names, {POOL: TREE}) == []


def test_a_pool_that_was_reshaped_before_a_move_must_have_the_larger_amount_of_both_sides() -> None:
    root, names = {PART: POOL}, (gib(3, PART), gib(5))
    [(kind, subject, detail)] = of_a_move((gib(4, PART), {}), names, root)
    assert (kind, subject) == ("short", MIGRATION)
    assert detail == f"holds 4 DISK_GB of provider {POOL}, and should hold 5"
    assert [found[:2] for found in of_a_move((gib(2, PART), gib(5)), names, root)] == [("short", ONE)]


def test_a_part_of_a_pool_that_a_reshape_has_moved_before_a_swap_may_be_the_migrations() -> None:
    roots = {PART: TREE, POOL: TREE}
    names: tuple[Any, Any] = gib(5), {}
    assert of_a_move((gib(3), gib(5, PART)), names, roots) == []
    assert [found[:2] for found in of_a_move((gib(3), gib(1, PART)), names, roots)] == [("short", ONE)]


def test_a_side_of_a_move_has_no_part_in_what_the_other_holds_of_its_host_or_of_another_pool() -> None:
    for other in (gib(9, NODE), gib(9, PART)):
        assert [found[:2] for found in of_a_move((other, {}), ({}, gib(5)), {})] == [("short", MIGRATION)]


# --- The claim --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"claim_id": TWO}, "is placed by claim"),
        ({"claim_id": None}, "is placed by claim (none)"),
        ({"placed_on": OTHER}, "is placed on provider"),
        ({"accepted_by": None}, "was accepted by attempt (none)"),
        ({"migration_of": TWO}, "is a migration of"),
    ],
)
def test_a_consumer_that_differs_from_its_record_is_a_finding_of_its_claim(fields: Any, words: str) -> None:
    [finding] = [one for one in against(changed(**fields)) if one.kind == "claim"]
    assert words in finding.detail


def test_an_instance_that_has_lost_its_server_group_is_a_finding_of_its_claim() -> None:
    group = ServerGroup(uuid=TWO, policy="anti-affinity")
    assert [finding.kind for finding in against(HOLDS, hold(group=group))] == ["claim"]
    assert against(changed(group_uuid=TWO), hold(group=group)) == []


def test_records_are_not_compared_during_an_operation() -> None:
    assert against(None, settled=False) == []


def test_records_are_compared_even_if_no_scheduler_answers() -> None:
    state = seen(instances=[instance()], recorded=recorded(hold()), hosts=None)
    assert kinds(state) == [("unheld", ONE)]


def test_a_missing_residue_is_unheld_as_long_as_its_host_exists() -> None:
    left = hold(consumer_uuid=ATTEMPT, consumer_type="RESIDUE", claim_id=None)
    assert [finding.kind for finding in against(None, left)] == ["unheld"]
    gone = hold(
        {POOL: {"VCPU": 1}}, consumer_uuid=ATTEMPT, consumer_type="RESIDUE", claim_id=None, root_provider_uuid=POOL
    )
    assert against(None, gone) == []


# ----------------------------------------------------------------------------------------------------------------------


def test_findings_of_inventories_unknown_guests_and_views_give_their_figures() -> None:
    inventory = InventoryFinding(provider_uuid=NODE, resource_class="VCPU", capacity=16.0, used=17, allocated=18)
    guest = Guest(instance_uuid=TWO, host="host2", attempt_id=TWO, claim_id=CLAIM)
    state = CloudState(
        store=StoreAudit(overcommitted=(inventory,), drifted=(inventory,)),
        instances=[],
        hosts=[],
        unknown_guests=[UnknownGuest(guest=guest, cell_uuid=CELL, agent="agent", age=1.0)],
        drift={"one": ViewDrift(hosts=2, drifted=("host1",))},
    )
    found = judge(state)
    assert [(finding.kind, finding.subject) for finding in found] == [
        ("over-committed", NODE),
        ("drifted", NODE),
        ("stranger", "host2"),
        ("view", "host1"),
    ]
    assert found[0].detail == "VCPU: capacity 16, used 17, allocations 18"


def test_nothing_is_judged_without_an_answer() -> None:
    assert judge(CloudState()) == []
    assert judge(CloudState(store=StoreAudit(holders=(HOLDS,)))) == []
    assert judge(CloudState(instances=[instance()])) == []


def test_only_findings_that_are_found_twice_count() -> None:
    stays, goes, comes = (Finding("leaked", name, "") for name in ("a", "b", "c"))
    changed = Finding("leaked", "a", "with other figures")
    assert settled([stays, goes], [changed, comes]) == [changed]


def test_the_same_consumer_with_another_claim_is_another_finding() -> None:
    assert settled([Finding("leaked", ONE, "", CLAIM)], [Finding("leaked", ONE, "", TWO)]) == []


def test_a_cloud_is_examined_once_and_a_second_time_only_if_there_are_findings() -> None:
    clean, dirty = seen(HOLDS, instances=[instance()]), seen(HOLDS)
    for looks, expected in (([clean], []), ([dirty, clean], []), ([dirty, dirty], ["leaked"])):
        left, slept = list(looks), list[float]()
        found, unseen, _state = examine(partial(left.pop, 0), 5.0, slept.append)
        assert [finding.kind for finding in found] == expected
        assert (left, unseen, slept) == ([], {}, [5.0] * (len(looks) - 1))


def test_parts_without_an_answer_in_either_examination_are_reported() -> None:
    first, second = seen(HOLDS, unseen={"the services": "away"}), seen(HOLDS, unseen={"the hosts": "away"})
    left = [first, second]
    assert examine(lambda: left.pop(0), 1.0, lambda _: None)[1] == {"the services": "away", "the hosts": "away"}
