"""Test builds of instances whose consumers already hold foreign amounts."""

from collections.abc import Iterator

import pytest
from msgspec import structs
from support.operations.move_scenario import plan
from support.operations.room import SPEC

from harness.cloud import RunningCloud
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import (
    BuildInstances,
    DeleteInstance,
    GetAllocations,
    PutAllocations,
    ShowInstance,
    UpdateResourceProvider,
)
from moorage.model import ConsumerAllocations, Instance, ProviderAmounts


@pytest.fixture(scope="module")
def cloud() -> Iterator[RunningCloud]:
    with RunningCloud(plan()) as running:
        yield running


def nodes(cloud: RunningCloud) -> dict[str, str]:
    return {host.nodename: host.compute_node_uuid for host in cloud.hosts()}


def put(cloud: RunningCloud, consumer: str, *providers: str) -> None:
    """Write some memory of each provider to a consumer that no instance has yet."""
    held = {uuid: ProviderAmounts(resources={"MEMORY_MB": 512}) for uuid in providers}
    wanted = ConsumerAllocations(allocations=held, project_id="p", user_id="u", consumer_generation=None)
    cloud.client("placement").call(PutAllocations(request_id=ids.fresh(), consumer_uuid=consumer, wanted=wanted))


def build(cloud: RunningCloud, *uuids: str, force: str | None = None) -> Instance:
    spec = structs.replace(SPEC, force_hosts=() if force is None else (force,))
    cloud.client("conductor").call(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=uuids))
    show = ShowInstance(instance_uuid=uuids[0])
    wait_until(lambda: cloud.client("conductor").call(show).state in ("active", "error"), "it to be built or not")
    return cloud.client("conductor").call(show)


def test_an_instance_is_built_on_the_host_of_which_its_consumer_already_holds_something(
    cloud: RunningCloud,
) -> None:
    for name, node in nodes(cloud).items():
        uuid = ids.fresh()
        put(cloud, uuid, node)

        built = build(cloud, uuid)

        assert (built.state, built.host) == ("active", name), built.reason
        held = cloud.client("placement").call(GetAllocations(consumer_uuid=uuid)).allocations
        assert held[node].resources["MEMORY_MB"] == SPEC.flavor.memory_mb + 512
        cloud.client("conductor").call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))


def test_an_instance_is_built_on_its_host_although_the_provider_has_another_name_than_the_node(
    cloud: RunningCloud,
) -> None:
    name, node = sorted(nodes(cloud).items())[-1]
    uuid = ids.fresh()
    cloud.client("placement").call(UpdateResourceProvider(request_id=ids.fresh(), uuid=node, name=f"{name}.example"))
    put(cloud, uuid, node)

    built = build(cloud, uuid)

    assert (built.state, built.host) == ("active", name), built.reason


def test_the_reason_names_the_obstacle_if_the_instance_cannot_be_built_on_that_host(cloud: RunningCloud) -> None:
    (first, one), (second, other), *_ = nodes(cloud).items()
    forced, torn, among = ids.fresh(), ids.fresh(), ids.fresh()
    put(cloud, forced, one)
    put(cloud, torn, one, other)
    put(cloud, among, one)

    assert f"it has allocations on node {first}, and is to be built elsewhere" in str(
        build(cloud, forced, force=second).reason
    )
    assert f"on nodes {first}, {second}; a server has one node" in str(build(cloud, torn).reason)
    assert f"it has allocations on node {first}: order a build of this instance alone" in str(
        build(cloud, among, ids.fresh(), force=second).reason
    )
