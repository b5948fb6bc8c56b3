"""Deleting a host that will not come back, on SQLite and on MariaDB: what goes with it, and what forbids it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func
from sqlalchemy import select as query
from support.scheduler.builders import CELLS, select
from support.scheduler.moving_builders import build, consumer, end, held, instance_of, migration_of, move
from support.scheduler.rig import Rig, node_uuid, report, rig_on_each_store

from moorage import errors
from moorage.ids import derived
from moorage.messages import (
    CompareView,
    DeleteAllocations,
    DeleteHost,
    EndMove,
    ListHosts,
    ListResourceProviders,
    ReportProviders,
    SetHost,
)
from moorage.model import Inventory, ProviderReport, Selection
from placement_store.db.names import sync
from placement_store.schema import (
    allocations,
    consumers,
    inventories,
    provider_aggregates,
    provider_traits,
    resource_providers,
    tombstones,
)

rig = rig_on_each_store

I1 = instance_of("i1")
OF_A_PROVIDER = (inventories, provider_traits, provider_aggregates, allocations)


def delete(rig: Rig, name: str = "host0", **more: Any) -> None:
    rig.registry.delete_host(DeleteHost(request_id=rig.fresh(), service_host=name, **more))


def force_down(rig: Rig, name: str = "host0", *, down: bool = True) -> None:
    rig.registry.set_host(SetHost(request_id=rig.fresh(), service_host=name, forced_down=down))


def known(rig: Rig) -> list[str]:
    return [host.service_host for host in rig.registry.list_hosts(ListHosts())]


def providers(rig: Rig) -> list[str]:
    return [provider.name for provider in rig.placement.call(ListResourceProviders())]


def count(rig: Rig, table: Any) -> int:
    return rig.database.read(lambda connection: connection.scalar(query(func.count()).select_from(table)) or 0)


def orphans(rig: Rig) -> int:
    """How many rows are left of providers that are not there."""
    there = query(resource_providers.c.id).scalar_subquery()

    def work(connection: Any) -> int:
        return sum(
            connection.scalar(query(func.count()).select_from(table).where(table.c.resource_provider_id.not_in(there)))
            for table in OF_A_PROVIDER
        )

    return rig.database.read(work)


def add_nested_host(rig: Rig) -> None:
    """Host 0, with two children that have traits and aggregates."""
    sync(rig.database)
    rig.add_hosts([0])
    children = tuple(
        ProviderReport(
            uuid=derived("rig", "child", number),
            name=f"child{number} of host0",
            parent_provider_uuid=node_uuid(0),
            inventories={"VGPU": Inventory(total=4)},
            traits=("HW_CPU_X86_AVX2",),
            aggregates=(derived("rig", "aggregate"),),
        )
        for number in range(2)
    )
    rig.placement.call(ReportProviders(request_id=rig.fresh(), providers=children))


def evacuated(rig: Rig) -> tuple[Selection, Selection]:
    """Evacuate the instance from host 0, which is forced down; a residue stays there."""
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1", force_hosts=("host0",))
    force_down(rig)
    [[claimed]] = scheduler.select(move("m1", I1, source, "evacuation"))
    return source, claimed


def leave_residue(rig: Rig, source: Selection, claimed: Selection) -> str:
    ended = rig.placement.call(
        EndMove(
            request_id=rig.fresh(),
            consumer_uuid=I1,
            migration_uuid=migration_of("m1"),
            claim_id=str(claimed.claim_id),
            outcome="confirm",
            held=source.allocation_request,
            claimed=claimed.allocation_request,
            leave_residue=True,
        )
    )
    assert ended.residue_uuid is not None
    return ended.residue_uuid


# --- What goes ------------------------------------------------------------------------------------------------------


def test_a_host_goes_with_its_whole_tree_and_the_schedulers_see_it(rig: Rig) -> None:
    add_nested_host(rig)
    rig.add_hosts([1])
    scheduler = rig.scheduler()
    force_down(rig)
    delete(rig)
    assert known(rig) == ["host1"]
    assert providers(rig) == ["host1"]
    assert orphans(rig) == 0
    scheduler.follower.follow(scheduler.follower.now())
    assert [host.service_host for host in scheduler.host_cache.snapshot().hosts] == ["host1"]
    assert scheduler.view_endpoint.compare_view(CompareView()).drifted == ()
    assert scheduler.select(select("i1"))[0][0].service_host == "host1"


def test_residues_there_go_for_good_with_what_they_hold(rig: Rig) -> None:
    rig.add_hosts(range(2))
    residue = leave_residue(rig, *evacuated(rig))
    assert set(held(rig, residue)) == {node_uuid(0)}
    delete(rig)
    assert known(rig) == ["host1"]
    with pytest.raises(errors.ConsumerNotFound):
        consumer(rig, residue)
    assert count(rig, tombstones.select().where(tombstones.c.consumer_uuid == residue).subquery()) == 1
    assert set(held(rig, I1)) == {node_uuid(1)}
    # Whoever hears of the guest's end later finds that said already.
    rig.placement.call(
        DeleteAllocations(request_id=rig.fresh(), consumer_uuid=residue, for_good=True, leave_residue=True)
    )
    assert [holder.uuid for holder in rig.audit().holders] == [I1]


def test_a_host_that_has_been_missed_need_not_be_forced_down(rig: Rig) -> None:
    rig.report([report(0)])
    delete(rig)
    assert known(rig) == []


def test_a_host_without_providers_and_one_with_several_nodes_go_too(rig: Rig) -> None:
    rig.add_hosts([0])
    rig.report([report(1, service_host="host0", nodename="second")])
    force_down(rig)
    delete(rig)
    assert (known(rig), providers(rig)) == ([], [])


def test_a_host_that_comes_back_is_a_new_one(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler()
    force_down(rig)
    delete(rig)
    rig.add_hosts([0])
    [[claimed]] = scheduler.select(select("i1"))
    assert claimed.service_host == "host0"


def test_a_dry_run_says_what_would_be_refused_and_deletes_nothing(rig: Rig) -> None:
    rig.add_hosts([0])
    with pytest.raises(errors.InvalidState):
        delete(rig, dry_run=True)
    force_down(rig)
    delete(rig, dry_run=True)
    assert (known(rig), providers(rig)) == (["host0"], ["host0"])


def test_a_repeated_request_deletes_no_host_that_has_come_back_meanwhile(rig: Rig) -> None:
    rig.add_hosts([0])
    force_down(rig)
    message = DeleteHost(request_id="once", service_host="host0")
    rig.registry.delete_host(message)
    rig.add_hosts([0])
    force_down(rig)
    rig.registry.delete_host(message)
    assert known(rig) == ["host0"]


# --- What is refused ------------------------------------------------------------------------------------------------


def test_a_host_that_may_be_up_is_not_deleted(rig: Rig) -> None:
    rig.add_hosts([0])
    with pytest.raises(errors.InvalidState, match="host0 is up"):
        delete(rig)
    assert providers(rig) == ["host0"]


def test_a_host_on_which_an_instance_holds_anything_is_not_deleted(rig: Rig) -> None:
    add_nested_host(rig)
    scheduler = rig.scheduler()
    build(rig, scheduler, "i1")
    force_down(rig)
    with pytest.raises(errors.InvalidState, match=I1):
        delete(rig)
    rig.release(I1)
    delete(rig)
    assert known(rig) == []


def test_a_host_that_an_evacuation_has_not_left_yet_is_not_deleted(rig: Rig) -> None:
    rig.add_hosts(range(2))
    source, claimed = evacuated(rig)
    with pytest.raises(errors.InvalidState, match=migration_of("m1")):
        delete(rig)
    end(rig, "m1", I1, "confirm", source, claimed)
    delete(rig)
    assert known(rig) == ["host1"]


def test_a_host_on_which_a_deleted_server_has_left_what_others_had_put_there_is_not_deleted(rig: Rig) -> None:
    rig.add_hosts([0])
    uuid = rig.take(0, vcpus=1)
    rig.placement.call(DeleteAllocations(request_id=rig.fresh(), consumer_uuid=uuid, for_good=True, keep_extras=True))
    force_down(rig)
    with pytest.raises(errors.InvalidState, match=uuid):
        delete(rig)
    rig.release(uuid)
    delete(rig)
    assert known(rig) == []


def test_a_refusal_names_a_few_of_those_that_hold_something(rig: Rig) -> None:
    rig.add_hosts([0])
    for _ in range(7):
        rig.take(0, vcpus=1)
    force_down(rig)
    with pytest.raises(errors.InvalidState, match="and 2 more"):
        delete(rig)
    assert count(rig, consumers) == 7


def test_a_host_that_is_unknown_or_ambiguous_is_not_deleted(rig: Rig) -> None:
    rig.report([report(1)])
    rig.report([report(2, service_host="host1")], cell=1)
    with pytest.raises(errors.HostNotFound):
        delete(rig, "nobody")
    with pytest.raises(errors.InvalidRequest) as caught:
        delete(rig, "host1")
    assert caught.value.path == "$.cell_uuid"
    with pytest.raises(errors.HostNotFound):
        delete(rig, "host1", cell_uuid=derived("tests", "cell", "nowhere"))
    delete(rig, "host1", cell_uuid=CELLS[1])
    assert [host.cell_uuid for host in rig.registry.list_hosts(ListHosts())] == [CELLS[0]]


# --- At the same time -----------------------------------------------------------------------------------------------


def test_a_host_is_either_deleted_or_claimed_of(rig: Rig) -> None:
    for number in range(10):
        rig.add_hosts([number])
        force_down(rig, f"host{number}")

        def take(number: int = number) -> str:
            try:
                return rig.take(number, vcpus=1)
            except errors.ProviderNotFound:
                return ""

        def remove(number: int = number) -> bool:
            try:
                delete(rig, f"host{number}")
            except errors.InvalidState:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            taken, removed = pool.submit(take), pool.submit(remove)
        assert bool(taken.result()) is not removed.result()
    assert orphans(rig) == 0


def test_a_host_that_reports_itself_while_it_is_deleted_is_there_whole_or_new(rig: Rig) -> None:
    for _ in range(5):
        rig.report([report(0)])
        with ThreadPoolExecutor(2) as pool:
            removal = pool.submit(delete, rig)
            pool.submit(rig.report, [report(0)], ["host0"]).result()
            refused = removal.exception()
        assert refused is None or isinstance(refused, errors.InvalidState)
        assert refused is None or known(rig) == ["host0"]
        if known(rig):
            force_down(rig)
            delete(rig)
