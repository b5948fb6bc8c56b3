"""A build that falls back on its alternates, in a whole cloud of one process."""

import pytest

from harness.audit import judge
from harness.cloud import CloudSpec, RunningCloud, wait_until
from moorage import ids
from moorage.messages import BuildInstances, GetResourceProvider, ListHosts, PutAllocations, ShowInstance
from moorage.model import ConsumerAllocations, Flavor, HostState, Instance, ProviderAmounts, RequestSpec

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=2, memory_mb=4096, root_gb=20))


def order(cloud: RunningCloud) -> str:
    uuid = ids.fresh()
    cloud.client("conductor").call(BuildInstances(request_spec=SPEC, instance_uuids=(uuid,), request_id=ids.fresh()))
    return uuid


def show(cloud: RunningCloud, uuid: str) -> Instance:
    return cloud.client("conductor").call(ShowInstance(instance_uuid=uuid))


def fill(cloud: RunningCloud, host: HostState) -> str:
    """Let somebody else take all VCPU of a host."""
    uuid = ids.fresh()
    cloud.client("placement").call(
        PutAllocations(
            request_id=ids.fresh(),
            consumer_uuid=uuid,
            wanted=ConsumerAllocations(
                allocations={host.compute_node_uuid: ProviderAmounts(resources={"VCPU": 16})},
                project_id="p",
                user_id="u",
                consumer_type="OTHER",
                consumer_generation=None,
            ),
        )
    )
    return uuid


@pytest.fixture
def failing() -> CloudSpec:
    """Three hosts on which every spawn takes a second and fails."""
    return CloudSpec(hosts=3, settings={"fake_driver": {"fail_rate": 1.0, "spawn_seconds": 1.0}})


def test_an_alternate_that_has_filled_up_meanwhile_is_skipped_and_holds_only_what_others_put_there(
    failing: CloudSpec,
) -> None:
    with RunningCloud(failing) as cloud:
        uuid = order(cloud)
        wait_until(lambda: bool(show(cloud, uuid).attempts), "the first attempt")
        first = show(cloud, uuid).attempts[0].host
        others = [host for host in cloud.client("scheduler").call(ListHosts()) if host.service_host != first]
        fillers = [fill(cloud, host) for host in others]
        wait_until(lambda: show(cloud, uuid).state != "building", "the end of the build")
        instance = show(cloud, uuid)

        assert instance.state == "error"
        assert [attempt.state for attempt in instance.attempts] == ["failed", "skipped", "skipped"]
        assert {attempt.host for attempt in instance.attempts[1:]} == {host.service_host for host in others}
        assert judge(cloud.database, fillers).clean
        for host in others:
            provider = cloud.client("placement").call(GetResourceProvider(uuid=host.compute_node_uuid))
            assert provider.used["VCPU"] == 16
            assert provider.used["MEMORY_MB"] == 0


def test_the_hosts_that_failed_hold_nothing_and_the_guest_runs_on_the_last_one() -> None:
    names = [f"cell1-host-{number:04d}" for number in (1, 2)]
    with RunningCloud(CloudSpec(hosts=3, settings={"fake_driver": {"failing_hosts": ",".join(names)}})) as cloud:
        for _ in range(3):
            uuid = order(cloud)
            wait_until(lambda uuid=uuid: show(cloud, uuid).state != "building", "the end of the build")
            instance = show(cloud, uuid)
            assert instance.state == "active"
            assert instance.host == "cell1-host-0003"
            assert {attempt.host for attempt in instance.attempts[:-1]} <= set(names)
        for host in cloud.client("scheduler").call(ListHosts()):
            provider = cloud.client("placement").call(GetResourceProvider(uuid=host.compute_node_uuid))
            assert provider.used["VCPU"] == (6 if host.service_host == "cell1-host-0003" else 0)


def test_placement_alone_is_enough_for_a_failing_build_to_reach_its_last_alternate() -> None:
    settings = {
        "fake_driver": {"failing_hosts": "cell1-host-0001,cell1-host-0002", "spawn_seconds": 0.7},
    }
    with RunningCloud(CloudSpec(hosts=3, placement_apart=True, settings=settings)) as cloud:
        uuid = order(cloud)
        wait_until(lambda: bool(show(cloud, uuid).attempts), "the first attempt")
        cloud.stop_service("scheduler1")
        wait_until(lambda: show(cloud, uuid).state != "building", "the end of the build")

        assert show(cloud, uuid).state == "active"
