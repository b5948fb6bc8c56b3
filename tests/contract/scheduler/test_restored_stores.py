"""A scheduler that runs notices that the store under it has been restored from an older copy, on each store."""

import pytest
from sqlalchemy import select
from support.databases.store_copy import copied, put_back
from support.scheduler.rig import OneScheduler, Rig, node_uuid, rig_on_each_store

from moorage import ids
from moorage.messages import CreateResourceProvider, EnsureResourceClass, GetResourceProvider, SetInventories
from moorage.model import Inventory
from placement_store.db import change_feed
from placement_store.schema import consumers, hosts, resource_providers

empty_rig = rig_on_each_store


@pytest.fixture
def rig(empty_rig: Rig) -> Rig:
    empty_rig.add_hosts(range(3))
    return empty_rig


def believed(scheduler: OneScheduler) -> dict[str, float]:
    """Return the used VCPU by host in a decision's view, which follows only the change feed."""
    scheduler.follower.follow(scheduler.follower.now())
    snapshot = scheduler.host_cache.snapshot()
    used = snapshot.used("VCPU")
    return {host.service_host: float(used[row]) for row, host in enumerate(snapshot.hosts)}


def test_a_scheduler_goes_back_with_a_store_that_has_gone_back(rig: Rig) -> None:
    scheduler = rig.scheduler()
    rig.take(1, vcpus=4)
    copy = copied(rig.database)
    rig.take(2, vcpus=3)
    rig.add_hosts([7])
    assert believed(scheduler) == {"host0": 0.0, "host1": 4.0, "host2": 3.0, "host7": 0.0}

    put_back(rig.database, copy)

    assert believed(scheduler) == {"host0": 0.0, "host1": 4.0, "host2": 0.0}


def test_a_scheduler_notices_a_new_history_that_has_come_past_the_number_it_knew(rig: Rig) -> None:
    scheduler = rig.scheduler()
    copy = copied(rig.database)
    rig.add_hosts([7])
    rig.take(7, vcpus=4)
    believed(scheduler)

    # Other rows come to have the numbers and the `seq` of the lost ones, before anybody looks.
    put_back(rig.database, copy)
    rig.database.write(change_feed.begin_history)
    rig.add_hosts([8])
    for _ in range(5):
        rig.take(8, vcpus=1)

    assert believed(scheduler) == {"host0": 0.0, "host1": 0.0, "host2": 0.0, "host8": 5.0}
    scheduler.follower.catch_up(scheduler.follower.now())
    assert believed(scheduler)["host8"] == 5.0


def test_a_comparison_of_everything_notices_a_new_history_too(rig: Rig) -> None:
    scheduler = rig.scheduler()
    copy = copied(rig.database)
    rig.add_hosts([7])
    believed(scheduler)
    put_back(rig.database, copy)
    rig.database.write(change_feed.begin_history)
    rig.add_hosts([8])

    scheduler.follower.catch_up(scheduler.follower.now())

    assert sorted(host.service_host for host in scheduler.host_cache.snapshot().hosts) == [
        "host0",
        "host1",
        "host2",
        "host8",
    ]


def test_a_comparison_notices_a_new_history_after_the_feed_was_pruned_whole(rig: Rig) -> None:
    scheduler = rig.scheduler()
    copy = copied(rig.database)
    _give(rig, "CUSTOM_LOST")
    believed(scheduler)
    rig.database.write(lambda connection: change_feed.prune(connection, -1.0))
    scheduler.follower.catch_up(scheduler.follower.now())
    put_back(rig.database, copy)
    rig.names.forget_numbers()
    rig.database.write(change_feed.begin_history)
    _give(rig, "CUSTOM_NEW")

    scheduler.follower.catch_up(scheduler.follower.now())

    assert scheduler.host_cache.snapshot().capacity("CUSTOM_NEW").max() == 5.0
    assert scheduler.host_cache.snapshot().capacity("CUSTOM_LOST").max() == 0.0


def test_a_number_of_a_class_that_means_another_name_now_is_looked_up_again(rig: Rig) -> None:
    scheduler = rig.scheduler()
    copy = copied(rig.database)
    _give(rig, "CUSTOM_LOST")
    believed(scheduler)
    put_back(rig.database, copy)
    rig.names.forget_numbers()
    rig.database.write(change_feed.begin_history)
    _give(rig, "CUSTOM_NEW")

    believed(scheduler)

    assert scheduler.host_cache.snapshot().capacity("CUSTOM_NEW").max() == 5.0
    assert scheduler.host_cache.snapshot().capacity("CUSTOM_LOST").max() == 0.0


def _give(rig: Rig, name: str) -> None:
    """Let host 1 have five of a class of its own."""
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


def test_no_number_of_a_lost_history_comes_again(rig: Rig) -> None:
    rig.take(1, vcpus=4)
    columns = {
        resource_providers: ("generation", "seq"),
        hosts: ("seq",),
        consumers: ("generation",),
    }

    def numbers() -> list[int]:
        return [
            number
            for table, names in columns.items()
            for name in names
            for number in rig.database.read(lambda c, column=table.c[name]: list(c.scalars(select(column))))
        ]

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
