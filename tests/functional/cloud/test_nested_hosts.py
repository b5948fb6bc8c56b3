"""Test servers with resource groups on fake hosts with provider trees, in a whole cloud of one process."""

from typing import Any

import pytest
from support.operations.instances import build, built, order

from harness.audit import judge
from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.messages import DeleteInstance, GetAllocations, ListResourceProviders, PlanReshape
from moorage.model import Consumer, Flavor, MoveInstruction, RequestSpec, ResourceGroup, ResourceProvider

GPUS = {"gpus": 2, "vgpus_per_gpu": 1, "nics": 1}


def spec(**fields: Any) -> RequestSpec:
    flavor = Flavor(vcpus=2, memory_mb=4096, root_gb=20)
    given: dict[str, Any] = {"project_id": "p", "user_id": "u", "flavor": flavor}
    return RequestSpec(**given | fields)


ONE_GPU = spec(groups={"gpu": ResourceGroup(resources={"VGPU": 1})})
BOTH_GPUS = spec(
    groups={suffix: ResourceGroup(resources={"VGPU": 1}) for suffix in ("left", "right")}, group_policy="isolate"
)


def held(cloud: RunningCloud, uuid: str) -> Consumer:
    return cloud.client("placement").call(GetAllocations(consumer_uuid=uuid))


def providers(cloud: RunningCloud) -> dict[str, ResourceProvider]:
    found = cloud.client("placement").call(ListResourceProviders())
    return {provider.name: provider for provider in found}


def test_a_build_that_falls_back_holds_the_gpus_of_the_host_it_runs_on() -> None:
    failing = [f"cell1-host-{number:04d}" for number in (1, 2)]
    with RunningCloud(
        CloudSpec(hosts=3, settings={"fake_driver": {**GPUS, "failing_hosts": ",".join(failing)}})
    ) as cloud:
        instance = build(cloud, BOTH_GPUS)
        uuid = instance.uuid
        assert (instance.state, instance.host) == ("active", "cell1-host-0003")
        found = providers(cloud)
        assert held(cloud, uuid).allocations.keys() == {
            found[name].uuid for name in ("cell1-host-0003", "cell1-host-0003_gpu0", "cell1-host-0003_gpu1")
        }
        for host in failing:
            assert found[f"{host}_gpu0"].used == found[f"{host}_gpu1"].used == {"VGPU": 0}
        assert judge(cloud.database, [uuid]).clean
        # The store keeps the isolated groups on two GPUs in a reshape, although the host knows no groups.
        merge = MoveInstruction(
            from_resource_provider="cell1-host-0003_gpu0",
            moved_resources={"VGPU": 1},
            to_resource_provider="cell1-host-0003_gpu1",
        )
        with pytest.raises(errors.ImpossibleDeal, match="isolated"):
            cloud.client("placement").call(PlanReshape(instructions=(merge,)))
        # No other working host has two free GPUs.
        assert build(cloud, BOTH_GPUS).state == "error"


def test_gpus_are_allocated_until_none_is_free_and_again_after_a_delete() -> None:
    with RunningCloud(CloudSpec(hosts=2, settings={"fake_driver": GPUS})) as cloud:
        uuids = order(cloud, ONE_GPU, count=4)
        assert {built(cloud, uuid).state for uuid in uuids} == {"active"}
        refused = build(cloud, ONE_GPU)
        assert refused.state == "error"
        assert refused.explanation is not None
        assert {(miss.resource_class, miss.free) for miss in refused.explanation.nearest_misses} == {("VGPU", 0.0)}
        cloud.client("conductor").call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuids[0]))
        wait_until(lambda: _is_gone(cloud, uuids[0]), "the end of the guest")
        assert build(cloud, ONE_GPU).state == "active"


def _is_gone(cloud: RunningCloud, uuid: str) -> bool:
    try:
        return not held(cloud, uuid).allocations
    except errors.ConsumerNotFound:
        return True


def test_a_function_and_its_bandwidth_come_from_one_card_of_the_right_network() -> None:
    settings = {"fake_driver": {"nics": 2, "physnets": "blue,red", "vfs_per_nic": 2, "nic_bandwidth": 5000}}
    with RunningCloud(CloudSpec(hosts=1, settings=settings)) as cloud:
        port = ResourceGroup(
            resources={"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 2000}, required=("CUSTOM_PHYSNET_RED",)
        )
        uuids = order(cloud, spec(groups={"port": port}), count=2)
        assert {built(cloud, uuid).state for uuid in uuids} == {"active"}
        found = providers(cloud)
        assert found["cell1-host-0001_nic1"].used["NET_BW_EGR_KILOBIT_PER_SEC"] == 4000
        assert found["cell1-host-0001_nic0"].used["NET_BW_EGR_KILOBIT_PER_SEC"] == 0
        assert build(cloud, spec(groups={"port": port})).state == "error"
