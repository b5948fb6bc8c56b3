"""Test that `compare_view` reports as drift, on each store, only differences that the change feed has not reported."""

import pytest
from support.scheduler.rig import OneScheduler, Rig, node_uuid, rig_on_each_store

from moorage.messages import CompareView, CreateResourceProvider, DeleteResourceProvider
from placement_store.schema import changes, hosts

empty_rig = rig_on_each_store


@pytest.fixture
def rig(empty_rig: Rig) -> Rig:
    empty_rig.add_hosts(range(3))
    return empty_rig


def drifted(scheduler: OneScheduler) -> tuple[str, ...]:
    return scheduler.view_endpoint.compare_view(CompareView()).drifted


def silence(rig: Rig) -> None:
    """Let the feed forget what it has not told yet: a change that it misses."""
    rig.database.write(lambda connection: connection.execute(changes.delete()))


def test_a_view_that_has_yet_to_follow_the_feed_has_not_drifted(rig: Rig) -> None:
    scheduler = rig.scheduler()
    rig.take(1, vcpus=4)
    rig.add_hosts([7])

    answer = scheduler.view_endpoint.compare_view(CompareView())

    assert (answer.hosts, answer.drifted) == (4, ())


def test_what_the_feed_has_not_told_is_drift_and_stays_so(rig: Rig) -> None:
    scheduler = rig.scheduler()
    rig.take(1, vcpus=4)
    rig.add_hosts([7])
    silence(rig)

    assert drifted(scheduler) == ("host1", "host7")
    assert drifted(scheduler) == ("host1", "host7"), "looking must not mend it"

    scheduler.follower.catch_up(scheduler.follower.now())
    assert drifted(scheduler) == ()


def test_what_is_gone_from_the_store_and_not_from_the_view_is_drift(rig: Rig) -> None:
    scheduler = rig.scheduler()
    rig.placement.call(DeleteResourceProvider(request_id=rig.fresh(), uuid=node_uuid(2)))
    rig.database.write(lambda connection: connection.execute(hosts.delete().where(hosts.c.service_host == "host0")))
    silence(rig)

    assert drifted(scheduler) == ("host0", "host2")


def test_a_claim_made_here_and_not_read_again_yet_is_no_drift(rig: Rig) -> None:
    scheduler = rig.scheduler()
    versions = scheduler.host_cache.versions([node_uuid(0)])
    rig.take(0, vcpus=2)
    silence(rig)
    scheduler.host_cache.apply_claims([(node_uuid(0), {"VCPU": 2})], versions)

    assert drifted(scheduler) == ()


def test_a_provider_without_a_host_is_named_by_its_uuid(rig: Rig) -> None:
    scheduler = rig.scheduler()
    pool = node_uuid(50)
    rig.placement.call(CreateResourceProvider(request_id=rig.fresh(), uuid=pool, name="a pool"))
    silence(rig)

    assert drifted(scheduler) == (pool,)
    rig.placement.call(DeleteResourceProvider(request_id=rig.fresh(), uuid=pool))
    assert drifted(scheduler) == ()
