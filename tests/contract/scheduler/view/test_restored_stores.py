"""Test that a running scheduler notices that its store was restored from an older copy, on each store."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import Column, select
from support.databases.store_copy import copied, put_back
from support.scheduler.builders import CELLS
from support.scheduler.rig import OneScheduler, Rig, node_uuid, report

from moorage import ids
from moorage.messages import (
    CreateResourceProvider,
    EnsureResourceClass,
    GetResourceProvider,
    HostsRegistered,
    ListHosts,
    ReportHosts,
    SetInventories,
)
from moorage.model import HostReport, Inventory
from placement_store.db import change_feed
from placement_store.schema import changes, consumers, hosts, resource_providers


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.add_hosts(range(3))
    return rig


def used_vcpus(scheduler: OneScheduler) -> dict[str, float]:
    """Return the used VCPU by host in the view of a decision, which follows only the change feed."""
    scheduler.follow()
    snapshot = scheduler.host_cache.snapshot()
    used = snapshot.used("VCPU")
    return {host.service_host: float(used[row]) for row, host in enumerate(snapshot.hosts)}


def test_the_view_has_the_content_of_the_restored_store(rig: Rig) -> None:
    scheduler = rig.scheduler()
    rig.take(1, vcpus=4)
    copy = copied(rig.database)
    rig.take(2, vcpus=3)
    rig.add_hosts([7])
    assert used_vcpus(scheduler) == {"host0": 0.0, "host1": 4.0, "host2": 3.0, "host7": 0.0}

    put_back(rig.database, copy)

    assert used_vcpus(scheduler) == {"host0": 0.0, "host1": 4.0, "host2": 0.0}


def test_a_new_history_is_noticed_although_its_feed_is_longer_than_the_lost_one(rig: Rig) -> None:
    scheduler = rig.scheduler()
    copy = copied(rig.database)
    rig.add_hosts([7])
    rig.take(7, vcpus=4)
    used_vcpus(scheduler)

    # Before the scheduler reads again, other rows have the ids and the `seq` of the lost ones.
    put_back(rig.database, copy)
    rig.database.write(change_feed.begin_history)
    rig.add_hosts([8])
    for _ in range(5):
        rig.take(8, vcpus=1)

    assert used_vcpus(scheduler) == {"host0": 0.0, "host1": 0.0, "host2": 0.0, "host8": 5.0}
    scheduler.catch_up()
    assert used_vcpus(scheduler)["host8"] == 5.0


@pytest.mark.parametrize("leaps", [(1, 2), (2, 1)])
def test_a_scheduler_notices_that_the_same_backup_is_restored_again(rig: Rig, leaps: tuple[int, int]) -> None:
    scheduler = rig.scheduler()
    copy = copied(rig.database)
    for number, of_history in enumerate(leaps):
        put_back(rig.database, copy)
        rig.database.write(partial(change_feed.begin_history, leaps=of_history))
        rig.take(number, vcpus=4)

        assert used_vcpus(scheduler) == {"host0": 0.0, "host1": 0.0, "host2": 0.0} | {f"host{number}": 4.0}


def test_two_histories_hardly_ever_begin_with_the_same_number() -> None:
    assert len({change_feed.any_leaps() for _ in range(100)}) > 50
    assert {change_feed.any_leaps() > 0 for _ in range(100)} == {True}


def restore_without_host7(rig: Rig, scheduler: OneScheduler) -> None:
    """Restore a copy that lacks a host that the scheduler knows, and add another host."""
    copy = copied(rig.database)
    rig.add_hosts([7])
    used_vcpus(scheduler)
    put_back(rig.database, copy)
    rig.database.write(change_feed.begin_history)
    rig.add_hosts([8])


def test_a_comparison_notices_a_new_history(rig: Rig) -> None:
    scheduler = rig.scheduler()
    restore_without_host7(rig, scheduler)

    scheduler.compare()

    assert sorted(host.service_host for host in scheduler.host_cache.snapshot().hosts) == [
        "host0",
        "host1",
        "host2",
        "host8",
    ]


def test_a_comparison_notices_a_new_history_although_the_feed_was_empty(rig: Rig) -> None:
    scheduler = rig.scheduler()
    copy = copied(rig.database)
    _give(rig, "CUSTOM_LOST")
    used_vcpus(scheduler)
    # As a former release does.
    rig.database.write(lambda connection: connection.execute(changes.delete()))
    scheduler.catch_up()
    put_back(rig.database, copy)
    rig.names.forget_numbers()
    rig.database.write(change_feed.begin_history)
    _give(rig, "CUSTOM_NEW")

    scheduler.compare()

    assert scheduler.host_cache.snapshot().capacity("CUSTOM_NEW").max() == 5.0
    assert scheduler.host_cache.snapshot().capacity("CUSTOM_LOST").max() == 0.0


def test_a_new_history_is_noticed_although_its_first_row_was_pruned(rig: Rig) -> None:
    scheduler = rig.scheduler()
    restore_without_host7(rig, scheduler)
    change_feed.prune_all(rig.database, -1.0)

    assert sorted(used_vcpus(scheduler)) == ["host0", "host1", "host2", "host8"]


def test_the_id_of_a_resource_class_that_has_another_name_now_is_read_again(rig: Rig) -> None:
    scheduler = rig.scheduler()
    copy = copied(rig.database)
    _give(rig, "CUSTOM_LOST")
    used_vcpus(scheduler)
    put_back(rig.database, copy)
    rig.names.forget_numbers()
    rig.database.write(change_feed.begin_history)
    _give(rig, "CUSTOM_NEW")

    used_vcpus(scheduler)

    assert scheduler.host_cache.snapshot().capacity("CUSTOM_NEW").max() == 5.0
    assert scheduler.host_cache.snapshot().capacity("CUSTOM_LOST").max() == 0.0


def _give(rig: Rig, name: str) -> None:
    """Give host 1 an inventory of five of a new resource class."""
    rig.placement.call(EnsureResourceClass(request_id=rig.fresh(), name=name))
    provider = rig.placement.call(GetResourceProvider(uuid=node_uuid(1)))
    rig.placement.call(
        SetInventories(
            request_id=rig.fresh(),
            uuid=provider.uuid,
            generation=provider.generation,
            inventories={**provider.inventories, name: Inventory(total=5)},
        )
    )


def test_hosts_of_a_restored_store_are_unknown_until_they_are_described(rig: Rig) -> None:
    names = ("host0", "host1", "host2")
    moved, vanished = report(1, availability_zone="moved"), report(5, service_host="host1")
    rig.report([vanished], names)
    copy = copied(rig.database)
    described(rig, moved, number=7)
    put_back(rig.database, copy)
    rig.database.write(change_feed.begin_history)

    assert rig.report([], names).unknown == names
    assert rig.report([], names).unknown == names

    # The number of the backup, a smaller one, or none as from an older release. The provider is still that of the
    # backup, if the description was sent before the agent was asked to report both.
    assert described(rig, moved, number=1) == HostsRegistered(unknown=("host1",))
    assert described(rig, moved, number=2) == HostsRegistered()
    assert rig.report([report(2, availability_zone="moved")]).unknown == ("host2",)
    assert rig.report([], names).unknown == ("host0",)
    zones = {host.nodename: host.availability_zone for host in rig.serve(ListHosts())}
    assert (zones["host1"], zones["host2"]) == ("moved", "moved")
    described(rig, report(0), number=3)
    assert rig.report([], names).unknown == ()
    assert described(rig, report(0), number=2).newer[0].number == 3


def described(rig: Rig, host: HostReport, number: int) -> HostsRegistered:
    return rig.host_reports.report_hosts(
        ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=(host,), numbers=(number,))
    )


def test_a_new_history_uses_no_number_of_the_lost_one(rig: Rig) -> None:
    rig.take(1, vcpus=4)
    columns = {
        resource_providers: ("generation", "seq"),
        hosts: ("seq",),
        consumers: ("generation",),
    }

    def numbers_in(column: Column[Any]) -> list[int]:
        return rig.database.read(lambda c: list(c.scalars(select(column))))

    def numbers() -> list[int]:
        return [number for table, names in columns.items() for name in names for number in numbers_in(table.c[name])]

    copy = copied(rig.database)
    for _ in range(3):
        rig.take(1, vcpus=1)
    lost, last = max(numbers()), rig.database.read(change_feed.newest)
    put_back(rig.database, copy)

    rig.database.write(change_feed.begin_history)

    assert min(numbers()) > lost
    assert rig.database.read(change_feed.newest) > last
    rig.placement.call(CreateResourceProvider(request_id=rig.fresh(), uuid=ids.fresh(), name="new"))
    assert rig.database.read(change_feed.newest) > last
