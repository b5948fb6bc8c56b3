"""Test that a scheduler finds what the change feed has missed, and reads every `seq` only if something is missing."""

from collections.abc import Callable

import pytest
from support.databases.statements import executed
from support.placement_store.builders import call_between
from support.scheduler.builders import select
from support.scheduler.rig import OneScheduler, Rig, node_uuid

from moorage.db.columns import now
from placement_store.db import change_feed
from placement_store.schema import changes, hosts

#: What the statement that reads the `seq` of all providers begins with.
EVERY_SEQ = "SELECT resource_providers.id, resource_providers.seq"


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.add_hosts(range(4))
    return rig


def caught_up(scheduler: OneScheduler) -> bool:
    """Let a scheduler catch up, and return whether it has read every `seq`."""
    with executed(scheduler.database) as noted:
        scheduler.catch_up()
    return any(statement.startswith(EVERY_SEQ) and "WHERE" not in statement for statement in noted)


def delete_host(rig: Rig) -> None:
    rig.database.write(lambda connection: connection.execute(hosts.delete().where(hosts.c.service_host == "host2")))


CHANGES: dict[str, Callable[[Rig], object]] = {
    "a used provider": lambda rig: rig.take(1, vcpus=4),
    "a new host": lambda rig: rig.add_hosts([7]),
    "a disabled host": lambda rig: rig.set_host("host3", disabled=True),
    "a deleted provider": lambda rig: rig.delete_provider(node_uuid(2)),
    "a deleted host": delete_host,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_the_feed_has_missed_is_found(rig: Rig, change: Callable[[Rig], object]) -> None:
    scheduler = rig.scheduler()
    change(rig)
    rig.lose_changes()
    scheduler.follow()
    assert scheduler.drifted()

    assert caught_up(scheduler)

    assert scheduler.drifted() == ()


@pytest.mark.parametrize("first", ["follow", "compare", "start"])
def test_a_change_that_is_committed_after_one_with_a_later_number_is_not_missed(rig: Rig, first: str) -> None:
    scheduler = rig.scheduler()
    # Given a disk that holds back all commits for two seconds, and of two transactions the later one commits first
    newest = rig.database.read(change_feed.newest)
    later = changes.insert().values(id=newest + 2, host_id=1, created_at=now() - 2)
    rig.database.write(lambda connection: connection.execute(later))
    if first == "start":
        scheduler = rig.scheduler()
    else:
        getattr(scheduler, first)()

    # When the earlier one commits
    rig.take(1, vcpus=4)
    its_number = changes.update().where(changes.c.id > newest + 2).values(id=newest + 1)
    assert rig.database.write(lambda connection: connection.execute(its_number).rowcount) == 1

    scheduler.follow()
    assert scheduler.used(1) == 4


def test_if_the_feed_has_missed_nothing_its_changes_are_enough(rig: Rig) -> None:
    scheduler, other = rig.scheduler(max_age=3600.0), rig.scheduler()
    for name, change in CHANGES.items():
        if name != "a deleted host":  # no transaction of ours has deleted it
            change(rig)
    # Its own claims are in the view, and their providers are not read again.
    scheduler.select(select("r1", count=2))
    other.select(select("r2"))

    assert not caught_up(scheduler)

    assert scheduler.drifted() == ()
    assert [scheduler.used(number) for number in range(4)] == [other.used(number) for number in range(4)]


def test_as_many_new_hosts_as_deleted_ones_are_found(rig: Rig) -> None:
    scheduler = rig.scheduler()
    delete_host(rig)
    rig.delete_provider(node_uuid(2))
    rig.add_hosts([8])
    rig.lose_changes()

    assert caught_up(scheduler)

    assert scheduler.drifted() == ()


@pytest.mark.parametrize("statement", range(1, 6))
def test_a_change_during_a_catch_up_does_not_disturb_it_and_is_found_by_the_next_one(rig: Rig, statement: int) -> None:
    scheduler = rig.scheduler()
    rig.take(1, vcpus=4)

    with call_between(scheduler.database, statement, lambda: rig.take(2, vcpus=5)) as noted:
        scheduler.catch_up()

    assert not any(one.startswith(EVERY_SEQ) and "WHERE" not in one for one in noted)
    assert scheduler.used(1) == 4
    assert not caught_up(scheduler)
    assert scheduler.used(2) == 5
