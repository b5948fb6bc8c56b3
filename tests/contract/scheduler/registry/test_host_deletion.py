"""Test the deletion of a host, on SQLite and on MariaDB: what is deleted with it, and when it is refused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func
from sqlalchemy import select as query
from support.placement_store.builders import Store, call_between
from support.scheduler.builders import CELLS, select
from support.scheduler.moving_builders import build, consumer, end, held, instance_of, migration_of, move
from support.scheduler.rig import Rig, node_uuid, report

from moorage import errors
from moorage.ids import derived
from moorage.messages import (
    DeleteAllocations,
    DeleteHost,
    EndMove,
    HostsRegistered,
    ListResourceProviders,
    PutAllocations,
    ReportHosts,
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

I1 = instance_of("i1")
OF_A_PROVIDER = (inventories, provider_traits, provider_aggregates, allocations)


def delete(rig: Rig, name: str = "host0", **more: Any) -> None:
    rig.serve(DeleteHost(request_id=rig.fresh(), service_host=name, **more))


def force_down(rig: Rig, name: str = "host0") -> None:
    rig.set_host(name, forced_down=True)


def known(rig: Rig) -> list[str]:
    return [host.service_host for host in rig.hosts()]


def providers(rig: Rig) -> list[str]:
    return [provider.name for provider in rig.placement.call(ListResourceProviders())]


def count(rig: Rig, table: Any) -> int:
    return rig.database.read(lambda connection: connection.scalar(query(func.count()).select_from(table)) or 0)


def orphans(rig: Rig) -> int:
    """Return the number of rows that belong to providers which do not exist."""
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
    rig.report_providers(*children)


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


def put(rig: Rig, uuid: str, generation: int | None, consumer_type: str) -> None:
    """Put one VCPU of host 0, as another client does."""
    wanted = Store.wanted({node_uuid(0): {"VCPU": 1}}, generation, consumer_type=consumer_type)
    rig.placement.call(PutAllocations(request_id=rig.fresh(), consumer_uuid=uuid, wanted=wanted))


# --- What is deleted ------------------------------------------------------------------------------------------------


def test_a_host_is_deleted_with_its_whole_tree_and_leaves_the_schedulers_views(rig: Rig) -> None:
    add_nested_host(rig)
    rig.add_hosts([1])
    scheduler = rig.scheduler()
    force_down(rig)
    delete(rig)
    assert known(rig) == ["host1"]
    assert providers(rig) == ["host1"]
    assert orphans(rig) == 0
    scheduler.follow()
    assert [host.service_host for host in scheduler.host_cache.snapshot().hosts] == ["host1"]
    assert scheduler.drifted() == ()
    assert scheduler.select(select("i1"))[0][0].service_host == "host1"


def test_residues_on_the_host_are_deleted_for_good_with_their_allocations(rig: Rig) -> None:
    rig.add_hosts(range(2))
    residue = leave_residue(rig, *evacuated(rig))
    assert set(held(rig, residue)) == {node_uuid(0)}
    delete(rig)
    assert known(rig) == ["host1"]
    with pytest.raises(errors.ConsumerNotFound):
        consumer(rig, residue)
    assert count(rig, tombstones.select().where(tombstones.c.consumer_uuid == residue).subquery()) == 1
    assert set(held(rig, I1)) == {node_uuid(1)}
    # A later message about the end of the guest finds the tombstone.
    rig.placement.call(
        DeleteAllocations(request_id=rig.fresh(), consumer_uuid=residue, for_good=True, leave_residue=True)
    )
    assert [holder.uuid for holder in rig.audit().holders] == [I1]


def test_a_put_changes_the_type_of_a_consumer_and_not_whether_it_is_deleted_with_the_host(rig: Rig) -> None:
    rig.add_hosts(range(2))
    residue = leave_residue(rig, *evacuated(rig))
    put(rig, residue, consumer(rig, residue).generation, "INSTANCE")
    live = derived("rig", "live")
    put(rig, live, None, "RESIDUE")
    with pytest.raises(errors.InvalidState, match=f"host host0 is held by {live}: "):
        delete(rig)
    rig.placement.call(DeleteAllocations(request_id=rig.fresh(), consumer_uuid=live, for_good=True))
    delete(rig)
    assert known(rig) == ["host1"]


def test_a_host_that_is_down_need_not_be_forced_down(rig: Rig) -> None:
    rig.report([report(0)])
    delete(rig)
    assert known(rig) == []


def test_a_host_with_several_nodes_and_without_providers_is_deleted(rig: Rig) -> None:
    rig.add_hosts([0])
    rig.report([report(1, service_host="host0", nodename="second")])
    force_down(rig)
    delete(rig)
    assert (known(rig), providers(rig)) == ([], [])


def test_a_deleted_host_that_is_reported_again_is_a_new_host(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler()
    force_down(rig)
    delete(rig)
    rig.add_hosts([0])
    [[claimed]] = scheduler.select(select("i1"))
    assert claimed.service_host == "host0"


def test_a_deleted_host_whose_description_comes_before_a_heartbeat_is_unknown_until_it_is_described_again(
    rig: Rig,
) -> None:
    def described(number: int) -> HostsRegistered:
        host = report(0, attributes={"power": number})
        message = ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=(host,), numbers=(number,))
        return rig.host_reports.report_hosts(message)

    rig.add_providers(0)
    assert described(1) == HostsRegistered()
    force_down(rig)
    delete(rig)

    # The agent has not reported the host's providers again: only its description has changed.
    assert described(2) == HostsRegistered(unknown=("host0",))
    # The answer may have been lost.
    assert described(2) == HostsRegistered(unknown=("host0",))
    assert described(3) == HostsRegistered(unknown=("host0",))
    assert rig.report([], ["host0"]) == HostsRegistered(unknown=("host0",))
    rig.add_providers(0)
    assert described(4) == HostsRegistered()
    assert rig.report([], ["host0"]) == HostsRegistered()


def test_a_dry_run_is_refused_like_a_deletion_and_deletes_nothing(rig: Rig) -> None:
    rig.add_hosts([0])
    with pytest.raises(errors.InvalidState):
        delete(rig, dry_run=True)
    force_down(rig)
    delete(rig, dry_run=True)
    assert (known(rig), providers(rig)) == (["host0"], ["host0"])


def test_a_repeated_request_does_not_delete_a_host_that_was_reported_again(rig: Rig) -> None:
    rig.add_hosts([0])
    force_down(rig)
    message = DeleteHost(request_id="once", service_host="host0")
    rig.serve(message)
    rig.add_hosts([0])
    force_down(rig)
    rig.serve(message)
    assert known(rig) == ["host0"]


# --- What is refused ------------------------------------------------------------------------------------------------


def test_a_host_that_may_be_up_is_not_deleted(rig: Rig) -> None:
    rig.add_hosts([0])
    with pytest.raises(errors.InvalidState, match="host0 is up"):
        delete(rig)
    assert providers(rig) == ["host0"]


def test_a_host_with_allocations_of_an_instance_is_not_deleted(rig: Rig) -> None:
    add_nested_host(rig)
    scheduler = rig.scheduler()
    build(rig, scheduler, "i1")
    force_down(rig)
    with pytest.raises(errors.InvalidState, match=I1):
        delete(rig)
    rig.release(I1)
    delete(rig)
    assert known(rig) == []


def test_the_source_of_an_evacuation_is_not_deleted_before_the_evacuation_has_ended(rig: Rig) -> None:
    rig.add_hosts(range(2))
    source, claimed = evacuated(rig)
    with pytest.raises(errors.InvalidState, match=migration_of("m1")):
        delete(rig)
    end(rig, "m1", I1, "confirm", source, claimed)
    delete(rig)
    assert known(rig) == ["host1"]


def test_a_host_with_foreign_allocations_of_a_deleted_server_is_not_deleted(rig: Rig) -> None:
    rig.add_hosts([0])
    uuid = rig.take(0, vcpus=1)
    rig.placement.call(DeleteAllocations(request_id=rig.fresh(), consumer_uuid=uuid, for_good=True, keep_extras=True))
    force_down(rig)
    with pytest.raises(errors.InvalidState, match=uuid):
        delete(rig)
    rig.release(uuid)
    delete(rig)
    assert known(rig) == []


def test_a_refusal_names_a_few_of_the_consumers_on_the_host(rig: Rig) -> None:
    rig.add_hosts([0])
    for _ in range(7):
        rig.take(0, vcpus=1)
    force_down(rig)
    with pytest.raises(errors.InvalidState, match="and 2 more"):
        delete(rig)
    assert count(rig, consumers) == 7


def test_an_unknown_or_ambiguous_host_is_not_deleted(rig: Rig) -> None:
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
    assert [host.cell_uuid for host in rig.hosts()] == [CELLS[0]]


# --- At the same time -----------------------------------------------------------------------------------------------


def test_of_a_concurrent_deletion_and_allocation_one_succeeds(rig: Rig) -> None:
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


def test_a_host_that_is_reported_while_it_is_deleted_exists_afterwards(rig: Rig) -> None:
    for _ in range(5):
        rig.report([report(0)])
        with ThreadPoolExecutor(2) as pool:
            removal = pool.submit(delete, rig)
            reported = pool.submit(rig.report, [report(0)], ["host0"]).result()
            refused = removal.exception()
        assert refused is None or isinstance(refused, errors.InvalidState)
        if reported.unknown:
            rig.report([report(0)], ["host0"])
        assert known(rig) == ["host0"]
        force_down(rig)
        delete(rig)


@pytest.mark.parametrize("rig", [pytest.param("mariadb", marks=pytest.mark.servers)], indirect=True)
def test_a_host_deleted_while_its_heartbeat_is_written_is_answered_as_unknown(rig: Rig) -> None:
    reporting = rig.scheduler()

    def interrupted(after: int) -> list[str]:
        rig.add_providers(0)
        rig.report([report(0)])
        message = ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], alive=("host0",))
        with call_between(reporting.database, after, lambda: delete(rig)) as between:
            answer = reporting.host_reports.report_hosts(message)
        assert (answer.unknown, known(rig)) == ((("host0",), []) if after else ((), ["host0"]))
        return between

    statements = interrupted(0)
    force_down(rig)
    delete(rig)
    heartbeat = next(number for number, sql in enumerate(statements) if sql.startswith("UPDATE hosts"))
    assert heartbeat > 2
    for after in range(1, heartbeat + 1):
        interrupted(after)
