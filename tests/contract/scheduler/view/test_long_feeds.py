"""Test that a scheduler reads many unread changes in parts of a bounded size, and notices that some were pruned."""

import pytest
from support.databases.statements import executed
from support.scheduler.rig import Rig

from moorage.db.columns import now
from placement_store.db.change_feed import READ_AT_ONCE, prune_all
from placement_store.schema import changes, hosts


def test_many_unread_changes_are_read_in_parts_and_none_is_missed(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    rig.take(1, vcpus=4)
    [first, *_] = rig.database.read(lambda connection: connection.scalars(hosts.select()).all())
    many = [{"host_id": first}] * (2 * READ_AT_ONCE)
    stamped = changes.insert().values(created_at=now() - 10)
    rig.database.write(lambda connection: connection.execute(stamped, many))
    rig.take(2, vcpus=5)

    with executed(scheduler.database) as noted:
        scheduler.follow()

    read = [statement for statement in noted if "FROM changes" in statement]
    assert len(read) == 3
    assert all("LIMIT" in statement for statement in read)
    assert [scheduler.used(number) for number in range(3)] == [0, 4, 5]
    with executed(scheduler.database) as again:
        scheduler.follow()
    assert len([statement for statement in again if "FROM changes" in statement]) <= 2


@pytest.mark.parametrize("hosts_at_first", [3, 0])
def test_changes_that_were_pruned_before_they_were_read_are_found_by_a_comparison(
    rig: Rig, hosts_at_first: int
) -> None:
    rig.add_hosts(range(hosts_at_first))
    scheduler = rig.scheduler()
    rig.add_hosts(range(hosts_at_first, 3))
    rig.take(1, vcpus=4)
    rig.take(2, vcpus=5)
    prune_all(rig.database, -1.0)

    scheduler.follow()

    assert [scheduler.used(number) for number in range(3)] == [0, 4, 5]
    with executed(scheduler.database) as again:
        scheduler.follow()
    assert not [statement for statement in again if "FROM resource_providers" in statement]
