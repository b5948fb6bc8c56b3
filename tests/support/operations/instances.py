"""Instances, guests and agents of a whole cloud, for tests that build and look at instances."""

from typing import Any

from compute.driver import Driver
from compute.service import ComputeService
from harness.cloud import RunningCloud, guests_in
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import (
    BuildInstances,
    GetResourceProvider,
    ListHosts,
    ListProviderTrees,
    ListResourceProviders,
    PutAllocations,
    ShowInstance,
)
from moorage.model import Flavor, Guest, Instance, RequestSpec, ResourceProvider
from support.placement_store.builders import Store

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=2, memory_mb=4096, root_gb=20))


def order(cloud: RunningCloud, spec: RequestSpec = SPEC, count: int = 1) -> list[str]:
    """Order new instances with one request; return their uuids."""
    uuids = tuple(ids.fresh() for _ in range(count))
    message = BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=uuids)
    return cloud.client("conductor").call(message)


def show(cloud: RunningCloud, uuid: str) -> Instance:
    return cloud.client("conductor").call(ShowInstance(instance_uuid=uuid))


def becomes(cloud: RunningCloud, uuid: str, state: str) -> Instance:
    """Wait until an instance is in a state; return it."""
    wait_until(lambda: show(cloud, uuid).state == state, lambda: f"the instance to be {state}: {show(cloud, uuid)}")
    return show(cloud, uuid)


def built(cloud: RunningCloud, uuid: str) -> Instance:
    """Wait until the build of an instance has ended, with success or without; return the instance."""
    wait_until(lambda: show(cloud, uuid).state != "building", "the end of the build")
    return show(cloud, uuid)


def build(cloud: RunningCloud, spec: RequestSpec = SPEC) -> Instance:
    """Order an instance, and return it when its build has ended."""
    [uuid] = order(cloud, spec)
    return built(cloud, uuid)


def used(cloud: RunningCloud, resource_class: str = "VCPU") -> dict[str, int]:
    """Return the amount of a class that is in use on the compute node of each host."""
    placement = cloud.client("placement")
    return {
        host.service_host: placement.call(GetResourceProvider(uuid=host.compute_node_uuid)).used[resource_class]
        for host in cloud.client("scheduler").call(ListHosts())
    }


def hold(cloud: RunningCloud, provider_uuid: str, **amounts: int) -> str:
    """Let a new consumer of another service hold amounts of a provider; return the consumer."""
    consumer, wanted = ids.fresh(), Store.wanted({provider_uuid: amounts}, consumer_type="OTHER")
    cloud.client("placement").call(PutAllocations(request_id=ids.fresh(), consumer_uuid=consumer, wanted=wanted))
    return consumer


def provider_tree(cloud: RunningCloud, host: str) -> dict[str, ResourceProvider]:
    """Return the providers of a host, by their names without the prefix of the host."""
    placement = cloud.client("placement")
    [node] = placement.call(ListResourceProviders(name=host))
    providers = placement.call(ListProviderTrees(uuids=(node.uuid,)))
    return {provider.name.removeprefix(f"{host}_"): provider for provider in providers}


def guests(cloud: RunningCloud, cell: str = "cell1") -> list[Guest]:
    """Return the guests of all hosts of a cell, read directly from the file of its agent."""
    return guests_in([cloud.folder / f"agent-{cell}.sqlite"])


def restart_agent(cloud: RunningCloud, hosts: int, kind: type[Driver] | None = None, /, **fake_driver: Any) -> Any:
    """Restart the agent of the first cell with other options or another kind of driver; return the driver."""
    cloud.stop_service("compute-cell1")
    agent = "agent-cell1"
    driver_options = cloud.driver_options("cell1", hosts, **fake_driver)
    conf = cloud.configuration(compute={"agent": agent}, fake_driver=driver_options)
    driver = None if kind is None else kind(conf, agent, "cell1")
    cloud.add("compute-cell1", ComputeService(conf, "cell1", driver))
    return driver
