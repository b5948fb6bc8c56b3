"""Test builds that fall back to their alternates, in a whole cloud of one process."""

import pytest
from support.operations.instances import build, built, hold, order, show, used

from harness.audit import judge
from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until


@pytest.fixture
def failing() -> CloudSpec:
    """Three hosts on which every spawn takes three seconds and fails."""
    return CloudSpec(hosts=3, settings={"fake_driver": {"fail_rate": 1.0, "spawn_seconds": 3.0}})


def test_an_alternate_that_has_filled_up_is_skipped_and_nothing_is_claimed_on_it(
    failing: CloudSpec,
) -> None:
    with RunningCloud(failing) as cloud:
        [uuid] = order(cloud)
        wait_until(lambda: bool(show(cloud, uuid).attempts), "the first attempt")
        first = show(cloud, uuid).attempts[0].host
        others = [host for host in cloud.hosts() if host.service_host != first]
        fillers = [hold(cloud, host.compute_node_uuid, VCPU=16) for host in others]
        instance = built(cloud, uuid)

        assert instance.state == "error"
        assert [attempt.state for attempt in instance.attempts] == ["failed", "skipped", "skipped"]
        assert {attempt.host for attempt in instance.attempts[1:]} == {host.service_host for host in others}
        assert judge(cloud.database, fillers).clean
        for host in others:
            assert used(cloud)[host.service_host] == 16
            assert used(cloud, "MEMORY_MB")[host.service_host] == 0


def test_a_build_runs_on_the_last_host_and_the_failed_hosts_hold_nothing() -> None:
    names = [f"cell1-host-{number:04d}" for number in (1, 2)]
    with RunningCloud(CloudSpec(hosts=3, settings={"fake_driver": {"failing_hosts": ",".join(names)}})) as cloud:
        for _ in range(3):
            instance = build(cloud)
            assert instance.state == "active"
            assert instance.host == "cell1-host-0003"
            assert {attempt.host for attempt in instance.attempts[:-1]} <= set(names)
        assert used(cloud) == {**dict.fromkeys(names, 0), "cell1-host-0003": 6}


def test_a_failing_build_reaches_its_last_alternate_without_a_scheduler() -> None:
    settings = {
        "fake_driver": {"failing_hosts": "cell1-host-0001,cell1-host-0002", "spawn_seconds": 0.7},
    }
    with RunningCloud(CloudSpec(hosts=3, placement_apart=True, settings=settings)) as cloud:
        [uuid] = order(cloud)
        wait_until(lambda: bool(show(cloud, uuid).attempts), "the first attempt")
        cloud.stop_service("scheduler1")

        assert built(cloud, uuid).state == "active"
