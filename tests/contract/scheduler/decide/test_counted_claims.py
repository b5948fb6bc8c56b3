"""Test that lost races, and changes that the change feed has not named, are counted, on each store."""

import pytest
from support.moorage.counts import Counts
from support.scheduler.builders import select
from support.scheduler.rig import Rig

from moorage import errors


def test_a_claim_that_loses_a_race_counts_as_a_conflict_and_is_tried_again(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler(max_age=60.0)
    # The scheduler's view may be a minute old, so it still proposes one of these hosts.
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


def test_only_changes_that_the_feed_has_not_named_count_as_drift(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    counts = Counts()
    rig.take(1, vcpus=4)
    scheduler.catch_up()
    assert counts.of("moorage_view_drift_total") == 0

    rig.take(2, vcpus=4)
    rig.lose_changes()
    # The comparison finds the row of this host, and no other one.
    scheduler.catch_up()
    assert counts.of("moorage_view_drift_total") == 1
    scheduler.catch_up()
    assert counts.of("moorage_view_drift_total") == 1
