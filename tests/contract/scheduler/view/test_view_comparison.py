"""Test that `compare_view` reports as drift, on each store, only differences that the change feed has not named."""

import pytest
from support.scheduler.rig import Rig, node_uuid

from moorage.messages import CompareView, CreateResourceProvider
from placement_store.schema import hosts
from scheduler.view.provisional import AddedClaims


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.add_hosts(range(3))
    return rig


def test_changes_that_the_view_has_not_read_yet_are_no_drift(rig: Rig) -> None:
    scheduler = rig.scheduler()
    rig.take(1, vcpus=4)
    rig.add_hosts([7])

    answer = scheduler.view_endpoint.compare_view(CompareView())

    assert (answer.hosts, answer.drifted) == (4, ())


def test_changes_that_the_feed_has_missed_are_drift_until_the_view_catches_up(rig: Rig) -> None:
    scheduler = rig.scheduler()
    rig.take(1, vcpus=4)
    rig.add_hosts([7])
    rig.lose_changes()

    assert scheduler.drifted() == ("host1", "host7")
    assert scheduler.drifted() == ("host1", "host7"), "a comparison changes nothing"

    scheduler.catch_up()
    assert scheduler.drifted() == ()


def test_hosts_and_providers_that_only_the_view_has_are_drift(rig: Rig) -> None:
    scheduler = rig.scheduler()
    rig.delete_provider(node_uuid(2))
    rig.database.write(lambda connection: connection.execute(hosts.delete().where(hosts.c.service_host == "host0")))
    rig.lose_changes()

    assert scheduler.drifted() == ("host0", "host2")


def test_a_claim_of_this_scheduler_that_it_has_not_read_back_is_no_drift(rig: Rig) -> None:
    scheduler = rig.scheduler()
    versions = scheduler.host_cache.versions([node_uuid(0)])
    rig.take(0, vcpus=2)
    rig.lose_changes()
    scheduler.host_cache.apply_claims([AddedClaims([(node_uuid(0), {"VCPU": 2})], versions)])

    assert scheduler.drifted() == ()


def test_a_provider_without_a_host_is_reported_by_its_uuid(rig: Rig) -> None:
    scheduler = rig.scheduler()
    pool = node_uuid(50)
    rig.placement.call(CreateResourceProvider(request_id=rig.fresh(), uuid=pool, name="a pool"))
    rig.lose_changes()

    assert scheduler.drifted() == (pool,)
    rig.delete_provider(pool)
    assert scheduler.drifted() == ()
