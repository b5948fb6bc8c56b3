"""Test servers with dedicated CPUs and NUMA nodes in a whole cloud."""

from typing import Any

import pytest
from msgspec import structs
from support.operations.move_scenario import SMALL, SPEC, MoveScenario, plan

from harness.audit import judge
from harness.cloud import RunningCloud
from moorage import errors, ids
from moorage.messages import AttachResource, BuildInstances, ListResourceProviders
from moorage.model import Flavor, ResourceGroup

NESTED: dict[str, Any] = {"layout": "nested", "numa_nodes": 2, "pcpus": 8}
PINNED = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2"}


def small(**extra_specs: str) -> Flavor:
    return structs.replace(SMALL, extra_specs=extra_specs)


def build(stage: MoveScenario, flavor: Flavor, state: str = "active") -> str:
    uuid = ids.fresh()
    spec = structs.replace(SPEC, flavor=flavor)
    stage.order(BuildInstances(request_spec=spec, instance_uuids=(uuid,), request_id=ids.fresh()))
    stage.becomes(uuid, state)
    return uuid


def used(cloud: RunningCloud, resource_class: str) -> dict[str, int]:
    """Return the used amount of a class on each provider that has it, by the name without the host."""
    found = cloud.client("placement").call(ListResourceProviders())
    return {
        provider.name.partition("_")[2]: provider.used[resource_class]
        for provider in found
        if resource_class in provider.inventories
    }


def test_a_server_with_dedicated_cpus_holds_them_on_two_numa_nodes_until_it_is_resized() -> None:
    with RunningCloud(plan(hosts=1, **NESTED)) as cloud:
        stage = MoveScenario(cloud)
        uuid = build(stage, small(**PINNED))
        assert used(cloud, "PCPU") == {"numa0": 1, "numa1": 1}
        assert used(cloud, "VCPU") == {"numa0": 0, "numa1": 0}
        assert used(cloud, "MEMORY_MB") == {"numa0": 2048, "numa1": 2048}
        # The extra specs are recorded unchanged, and the next decision interprets them.
        assert stage.show(uuid).flavor.extra_specs == PINNED
        extra = ResourceGroup(resources={"VCPU": 1})
        with pytest.raises(errors.AlreadyExists):
            stage.order(AttachResource(request_id=ids.fresh(), instance_uuid=uuid, suffix="_NUMA0", group=extra))
        stage.resize(uuid, flavor=small(**{"hw:numa_nodes": "2"}))
        stage.becomes(uuid, "moved")
        assert used(cloud, "VCPU") == {"numa0": 1, "numa1": 1}
        stage.confirm(uuid)
        stage.becomes(uuid, "active")
        assert used(cloud, "PCPU") == {"numa0": 0, "numa1": 0}
        assert judge(cloud.database, [uuid]).clean


def test_an_invalid_extra_spec_is_named_in_the_reason_of_the_failed_build() -> None:
    with RunningCloud(plan(hosts=1)) as cloud:
        stage = MoveScenario(cloud)
        uuid = build(stage, small(**{"hw:cpu_policy": "exclusive"}), state="error")
        assert "$.request_spec.flavor.extra_specs['hw:cpu_policy']" in str(stage.show(uuid).reason)
