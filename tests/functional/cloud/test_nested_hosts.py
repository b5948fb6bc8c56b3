"""Servers that ask for resource groups, on fake hosts that are trees of providers: a whole cloud of one process."""

from typing import Any

import pytest

from harness.audit import judge
from harness.cloud import CloudSpec, RunningCloud, wait_until
from moorage import errors, ids
from moorage.messages import (
    BuildInstances,
    DeleteInstance,
    GetAllocations,
    ListResourceProviders,
    PlanReshape,
    ShowInstance,
)
from moorage.model import Consumer, Flavor, Instance, MoveInstruction, RequestSpec, ResourceGroup, ResourceProvider

GPUS = {"gpus": 2, "vgpus_per_gpu": 1, "nics": 1}


def spec(**asked: Any) -> RequestSpec:
    flavor = Flavor(vcpus=2, memory_mb=4096, root_gb=20)
    return RequestSpec(**{"project_id": "p", "user_id": "u", "flavor": flavor} | asked)


ONE_GPU = spec(groups={"gpu": ResourceGroup(resources={"VGPU": 1})})
BOTH_GPUS = spec(
    groups={suffix: ResourceGroup(resources={"VGPU": 1}) for suffix in ("left", "right")}, group_policy="isolate"
)


def order(cloud: RunningCloud, asked: RequestSpec, count: int = 1) -> list[str]:
    uuids = tuple(ids.fresh() for _ in range(count))
    cloud.client("conductor").call(BuildInstances(request_spec=asked, instance_uuids=uuids, request_id=ids.fresh()))
    return list(uuids)


def built(cloud: RunningCloud, uuid: str) -> Instance:
    def show() -> Instance:
        return cloud.client("conductor").call(ShowInstance(instance_uuid=uuid))

    wait_until(lambda: show().state != "building", "the end of the build")
    return show()


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
        [uuid] = order(cloud, BOTH_GPUS)
        instance = built(cloud, uuid)
        assert (instance.state, instance.host) == ("active", "cell1-host-0003")
        found = providers(cloud)
        assert held(cloud, uuid).allocations.keys() == {
            found[name].uuid for name in ("cell1-host-0003", "cell1-host-0003_gpu0", "cell1-host-0003_gpu1")
        }
        for host in failing:
            assert found[f"{host}_gpu0"].used == found[f"{host}_gpu1"].used == {"VGPU": 0}
        assert judge(cloud.database, [uuid]).clean
        # The host knows nothing of groups; the store keeps them on two GPUs all the same.
        merge = MoveInstruction(
            from_resource_provider="cell1-host-0003_gpu0",
            moved_resources={"VGPU": 1},
            to_resource_provider="cell1-host-0003_gpu1",
        )
        with pytest.raises(errors.ImpossibleDeal, match="isolated"):
            cloud.client("placement").call(PlanReshape(instructions=(merge,)))
        # Nobody else has two that work.
        assert built(cloud, order(cloud, BOTH_GPUS)[0]).state == "error"


def test_gpus_are_given_out_until_there_are_none_and_again_when_their_guests_are_gone() -> None:
    with RunningCloud(CloudSpec(hosts=2, settings={"fake_driver": GPUS})) as cloud:
        uuids = order(cloud, ONE_GPU, count=4)
        assert {built(cloud, uuid).state for uuid in uuids} == {"active"}
        [late] = order(cloud, ONE_GPU)
        refused = built(cloud, late)
        assert refused.state == "error"
        assert refused.explanation is not None
        assert {(miss.resource_class, miss.free) for miss in refused.explanation.nearest_misses} == {("VGPU", 0.0)}
        cloud.client("conductor").call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuids[0]))
        wait_until(lambda: _is_gone(cloud, uuids[0]), "the end of the guest")
        assert built(cloud, order(cloud, ONE_GPU)[0]).state == "active"


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
        [late] = order(cloud, spec(groups={"port": port}))
        assert built(cloud, late).state == "error"
