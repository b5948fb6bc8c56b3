"""Test that lost races, and rows that the change feed has not told, are counted, on each store."""

import pytest
from support.moorage.counts import Counts
from support.scheduler.builders import select
from support.scheduler.rig import Rig, rig_on_each_store

from moorage import errors
from placement_store.schema import changes

rig = rig_on_each_store


def test_a_claim_that_another_has_forestalled_is_a_conflict_and_a_try_more(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler(max_age=60.0)
    # Behind the scheduler's back: its view, which may be a minute old, proposes this host or the other one.
    rig.take(0, vcpus=15)
    rig.take(1, vcpus=15)
    counts = Counts()
    with pytest.raises(errors.NoValidHost):
        scheduler.select(select())
    conflicts = counts.by("why", "moorage_claim_conflicts_total")
    assert conflicts.keys() == {errors.CapacityExceeded.code}
    assert counts.of("moorage_claim_tries_total") == sum(conflicts.values()) >= 2
    assert counts.of("moorage_claims_total") == 0
    assert counts.by("result", "moorage_decisions_total") == {errors.NoValidHost.code: 1}


def test_a_repeated_request_claims_and_counts_nothing_more(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    counts = Counts()
    assert scheduler.select(select(count=2)) == scheduler.select(select(count=2))
    assert counts.of("moorage_claims_total") == 2


def test_only_what_the_feed_has_not_told_is_drift(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    counts = Counts()
    rig.take(1, vcpus=4)
    scheduler.follower.catch_up(scheduler.follower.now())
    assert counts.of("moorage_view_drift_total") == 0

    rig.take(2, vcpus=4)
    rig.database.write(lambda connection: connection.execute(changes.delete()))
    # A comparison without a word of the feed: the row of the host, and that of nobody else.
    scheduler.follower.catch_up(scheduler.follower.now())
    assert counts.of("moorage_view_drift_total") == 1
    scheduler.follower.catch_up(scheduler.follower.now())
    assert counts.of("moorage_view_drift_total") == 1
