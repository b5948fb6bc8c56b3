"""Test select_destinations for moves, on SQLite and on MariaDB: source, destination, and pools that both use."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from support.scheduler.builders import CELLS, select
from support.scheduler.moving_builders import accept, build, consumer, end, held, instance_of, migration_of, move
from support.scheduler.rig import Rig, node_uuid, report

from moorage import errors
from moorage.ids import derived
from moorage.messages import PutAllocations, ReshapeByInstructions, SelectDestinations
from moorage.model import (
    ChildProvider,
    ConsumerAllocations,
    Inventory,
    MoveInstruction,
    ProviderAmounts,
    ProviderReport,
    Selection,
)
from placement_store.candidates.tree import SHARES
from placement_store.db.names import sync

SMALL = {"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20}
I1 = instance_of("i1")
AGGREGATE = derived("tests", "aggregate")
POOL = derived("tests", "pool")


def replaced(message: SelectDestinations, **changes: Any) -> SelectDestinations:
    return msgspec.structs.replace(message, **changes)


# --- Source and destination -----------------------------------------------------------------------------------------


def test_the_migration_holds_the_source_and_the_instance_holds_the_destination(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    [[claimed]] = scheduler.select(move("m1", I1, source))
    assert claimed.compute_node_uuid != source.compute_node_uuid
    assert held(rig, I1) == {claimed.compute_node_uuid: SMALL}
    assert held(rig, migration_of("m1")) == {source.compute_node_uuid: SMALL}
    assert consumer(rig, migration_of("m1")).claim_id == source.claim_id
    assert consumer(rig, I1).claim_id == claimed.claim_id != source.claim_id
    assert claimed.consumer_generation == consumer(rig, I1).generation


@pytest.mark.parametrize("kind", ["cold-migration", "live-migration", "evacuation"])
def test_the_source_is_neither_claimed_nor_an_alternate(rig: Rig, kind: Any) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    [selections] = scheduler.select(move("m1", I1, source, kind, num_alternates=5))
    assert len({source.service_host, *(one.service_host for one in selections)}) == 3


def test_a_move_without_another_host_is_refused_with_the_reason(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    told = scheduler.refusal(move("m1", I1, source, force_hosts=("host0",)))
    assert [(told.filters[0].name, told.filters[0].hosts, told.filters[0].removed)] == [("leaving", 1, 1)]
    assert told.named_hosts == {"host0": "is the host that the server is to leave"}
    assert held(rig, I1) == {source.compute_node_uuid: SMALL}


def test_a_resize_may_stay_where_both_sizes_fit_together(rig: Rig) -> None:
    rig.add_hosts([0], vcpus=6)
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    with pytest.raises(errors.NoValidHost):
        scheduler.select(move("m1", I1, source, "resize", vcpus=5))
    [[claimed]] = scheduler.select(move("m2", I1, source, "resize", vcpus=4))
    assert claimed.service_host == "host0"
    assert held(rig, I1) == {node_uuid(0): {**SMALL, "VCPU": 4}}
    assert held(rig, migration_of("m2")) == {node_uuid(0): SMALL}
    assert scheduler.used(0) == 6


def test_a_resize_goes_elsewhere_where_only_one_of_both_sizes_fits(rig: Rig) -> None:
    rig.add_hosts([0], vcpus=6)
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    rig.add_hosts([1], vcpus=6)
    [[claimed]] = scheduler.select(move("m1", I1, source, "resize", vcpus=5))
    assert claimed.service_host == "host1"


def test_an_evacuated_server_leaves_a_host_that_is_forced_down(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1", force_hosts=("host0",))
    rig.report([report(0), report(1)], ["host1"])
    [[claimed]] = scheduler.select(move("m1", I1, source, "evacuation"))
    assert claimed.service_host == "host1"


def test_a_destination_that_is_full_only_in_the_store_is_passed_over(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler(max_age=3600.0)
    source = build(rig, scheduler, "i1", force_hosts=("host0",))
    rig.take(1, vcpus=15)
    [[claimed]] = scheduler.select(move("m1", I1, source))
    assert claimed.service_host == "host2"
    assert set(held(rig, I1)) == {node_uuid(2)}


# --- Pools ----------------------------------------------------------------------------------------------------------


def add_hosts_on_a_pool(rig: Rig, hosts: int, total: int) -> None:
    sync(rig.database)
    compute = {"VCPU": Inventory(total=16), "MEMORY_MB": Inventory(total=32768)}
    nodes = tuple(
        ProviderReport(uuid=node_uuid(n), name=f"host{n}", inventories=compute, aggregates=(AGGREGATE,))
        for n in range(hosts)
    )
    rig.report_providers(*nodes)
    rig.report([report(number) for number in range(hosts)], [f"host{number}" for number in range(hosts)])
    set_pool(rig, total)


def set_pool(rig: Rig, total: int, reserved: int = 0) -> None:
    pool = ProviderReport(
        uuid=POOL,
        name="pool",
        inventories={"DISK_GB": Inventory(total=total, reserved=reserved)},
        traits=(SHARES,),
        aggregates=(AGGREGATE,),
    )
    rig.report_providers(pool)


def seen_of_pool(scheduler: Any) -> float:
    """Return the used amount of the pool in the scheduler's view, read through the first host."""
    return float(scheduler.host_cache.snapshot().used("DISK_GB")[0])


def test_a_full_pool_allows_a_move_that_goes_on_using_it(rig: Rig) -> None:
    add_hosts_on_a_pool(rig, 3, total=20)
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    [[claimed, *alternates]] = scheduler.select(move("m1", I1, source, num_alternates=2))
    assert held(rig, I1)[POOL] == {"DISK_GB": 20}
    assert POOL not in held(rig, migration_of("m1"))
    assert claimed.shared_providers == (POOL,)
    # An alternate replaces the claimed host, so it may use the same amount of the pool.
    assert len(alternates) == 1
    assert seen_of_pool(scheduler) == 20
    with pytest.raises(errors.NoValidHost):
        scheduler.select(select("i2"))


def test_a_resize_needs_only_its_additional_amount_of_a_pool(rig: Rig) -> None:
    add_hosts_on_a_pool(rig, 2, total=30)
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    with pytest.raises(errors.NoValidHost):
        scheduler.select(move("m1", I1, source, "resize", root_gb=31))
    [[claimed]] = scheduler.select(move("m2", I1, source, "resize", root_gb=30))
    assert held(rig, I1)[POOL] == {"DISK_GB": 30}
    assert seen_of_pool(scheduler) == 30
    end(rig, "m2", I1, "revert", source, claimed)
    assert held(rig, I1)[POOL] == {"DISK_GB": 20}


def test_an_over_committed_pool_allows_a_move_that_adds_nothing_to_it(rig: Rig) -> None:
    add_hosts_on_a_pool(rig, 2, total=40)
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    build(rig, scheduler, "i2")
    set_pool(rig, total=40, reserved=30)
    with pytest.raises(errors.NoValidHost):
        scheduler.select(move("m1", I1, source, "resize", root_gb=21))
    scheduler.select(move("m2", I1, source))
    assert held(rig, I1)[POOL] == {"DISK_GB": 20}
    set_pool(rig, total=40)


def test_a_full_pool_that_a_reshape_has_moved_allows_a_move_that_goes_on_using_it(rig: Rig) -> None:
    add_hosts_on_a_pool(rig, 2, total=20)
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    part = ChildProvider(name="part", parent=POOL, traits=(SHARES,), aggregates=(AGGREGATE,))
    moved = MoveInstruction(from_resource_provider=POOL, moved_resources={"DISK_GB": 20}, to_resource_provider="part")
    reshape = ReshapeByInstructions(request_id=rig.fresh(), instructions=(moved,), providers=(part,))
    [created] = rig.placement.call(reshape).created

    source = msgspec.structs.replace(source, consumer_generation=consumer(rig, I1).generation)
    with pytest.raises(errors.NoValidHost):
        scheduler.select(move("m1", I1, source, "resize", root_gb=21))
    [[claimed]] = scheduler.select(move("m2", I1, source))

    assert held(rig, I1)[created] == {"DISK_GB": 20}
    assert claimed.shared_providers == (created,)
    assert seen_of_pool(scheduler) == 20


# --- Foreign allocations --------------------------------------------------------------------------------------------


def put_more(rig: Rig, source: Selection, **amounts: int) -> Selection:
    """Add foreign allocations to the instance on its host; return the selection with the new generation."""
    found = consumer(rig, I1)
    resources = dict(found.allocations[source.compute_node_uuid].resources)
    for name, amount in amounts.items():
        resources[name] = resources.get(name, 0) + amount
    wanted = ConsumerAllocations(
        allocations={**found.allocations, source.compute_node_uuid: ProviderAmounts(resources=resources)},
        project_id=found.project_id,
        user_id=found.user_id,
        consumer_generation=found.generation,
    )
    written = rig.placement.call(PutAllocations(request_id=rig.fresh(), consumer_uuid=I1, wanted=wanted))
    return msgspec.structs.replace(source, consumer_generation=written.consumer_generation)


def test_foreign_allocations_on_the_source_forbid_a_move_unless_they_may_be_dropped(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    source = put_more(rig, build(rig, scheduler, "i1"), VCPU=1)
    with pytest.raises(errors.CannotCarryOver) as caught:
        scheduler.select(move("m1", I1, source))
    assert caught.value.amounts == [{"provider_uuid": source.compute_node_uuid, "resource_class": "VCPU", "amount": 1}]
    assert held(rig, I1) == {source.compute_node_uuid: {**SMALL, "VCPU": 3}}
    [[claimed]] = scheduler.select(move("m2", I1, source, drop_extras=True))
    assert held(rig, I1) == {claimed.compute_node_uuid: SMALL}


def test_allocations_that_an_instance_holds_are_kept_if_the_request_says_so(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler()
    rig.take(0, vcpus=3, consumer=I1)
    asked = replaced(select("i1"), consumer_generations={I1: 1}, keep_held=True)
    [[claimed]] = scheduler.select(asked)
    assert held(rig, I1) == {node_uuid(0): {"VCPU": 5, "MEMORY_MB": 2049, "DISK_GB": 20}}
    with pytest.raises(errors.ConsumerGenerationConflict):
        scheduler.select(
            replaced(asked, request_id="again", consumer_generations={I1: claimed.consumer_generation or 0})
        )


# --- Repeated requests ----------------------------------------------------------------------------------------------


def test_a_repeated_move_gets_the_same_answer_from_any_scheduler_and_is_made_once(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    asked = move("m1", I1, source, num_alternates=1)
    answer = scheduler.select(asked)
    assert rig.scheduler().select(asked) == answer
    end(rig, "m1", I1, "confirm", source, answer[0][0])
    assert scheduler.select(asked) == answer
    assert len(rig.audit().holders) == 1


def test_the_request_of_a_reverted_move_is_refused_if_it_is_repeated(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1")
    asked = move("m1", I1, source)
    [[claimed]] = scheduler.select(asked)
    end(rig, "m1", I1, "revert", source, claimed)
    with pytest.raises(errors.ClaimReleased):
        scheduler.select(asked)
    assert held(rig, I1) == {source.compute_node_uuid: SMALL}


def test_the_same_move_at_many_schedulers_at_once_is_made_once(rig: Rig) -> None:
    rig.add_hosts(range(4))
    schedulers = [rig.scheduler() for _ in range(4)]
    for number in range(3):
        uuid = instance_of(f"i{number}")
        asked = move(f"m{number}", uuid, build(rig, schedulers[0], f"i{number}"), num_alternates=1)
        with ThreadPoolExecutor(len(schedulers)) as pool:
            answers = list(pool.map(lambda scheduler, sent=asked: scheduler.select(sent), schedulers))
        assert all(answer == answers[0] for answer in answers)
    assert len(rig.audit().holders) == 6


def test_of_concurrent_moves_of_one_instance_one_is_made(rig: Rig) -> None:
    rig.add_hosts(range(5))
    schedulers = [rig.scheduler() for _ in range(4)]
    source = build(rig, schedulers[0], "i1")

    def outcome(number: int) -> str:
        try:
            schedulers[number].select(move(f"m{number}", I1, source))
        except errors.MoorageError as fault:
            return type(fault).__name__
        return "moved"

    with ThreadPoolExecutor(len(schedulers)) as pool:
        outcomes = list(pool.map(outcome, range(len(schedulers))))
    assert outcomes.count("moved") == 1
    assert set(outcomes) <= {"moved", "ClaimReleased", "ConsumerGenerationConflict"}
    assert len(rig.audit().holders) == 2


# --- Invalid requests -----------------------------------------------------------------------------------------------


def test_a_move_that_names_another_claim_or_generation_is_refused(rig: Rig) -> None:
    # There is no other host, but the errors of a request are found first.
    rig.add_hosts([0])
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1", accepted=False)
    with pytest.raises(errors.InvalidState):
        scheduler.select(move("m1", I1, source))
    accept(rig, I1, source)
    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        scheduler.select(move("m2", I1, msgspec.structs.replace(source, consumer_generation=7)))
    assert (caught.value.named, caught.value.found) == (7, 1)
    with pytest.raises(errors.ClaimReleased):
        scheduler.select(move("m3", I1, msgspec.structs.replace(source, claim_id=derived("another", "claim"))))
    with pytest.raises(errors.ClaimReleased):
        scheduler.select(move("m4", instance_of("nobody"), source))
    assert held(rig, I1) == {node_uuid(0): SMALL}
    rig.release(I1, for_good=True)
    with pytest.raises(errors.ConsumerDeleted):
        scheduler.select(move("m5", I1, source))
    assert not rig.audit().holders


def test_an_invalid_move_is_refused_with_the_path_of_its_fault(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    good = move("m1", I1, build(rig, scheduler, "i1"))
    assert good.move is not None
    itself = msgspec.structs.replace(good.move, migration_uuid=I1)
    wrong = {
        "$.instance_uuids": replaced(good, instance_uuids=(I1, instance_of("i2"))),
        "$.consumer_generations": replaced(good, consumer_generations={}),
        "$.move.migration_uuid": replaced(good, move=itself),
        "$.keep_held": replaced(good, keep_held=True),
    }
    for path, message in wrong.items():
        with pytest.raises(errors.InvalidRequest) as caught:
            scheduler.select(message)
        assert caught.value.path == path
    assert len(scheduler.select(good)) == 1


def test_alternates_of_a_move_are_in_the_destinations_cell(rig: Rig) -> None:
    rig.add_hosts(range(2), cell=0)
    rig.add_hosts(range(2, 5), cell=1)
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1", force_hosts=("host0",))
    [selections] = scheduler.select(move("m1", I1, source, num_alternates=5))
    cell = selections[0].cell_uuid
    assert {one.cell_uuid for one in selections} == {cell}
    assert len(selections) == (1 if cell == CELLS[0] else 3)
