"""Test hosts that the registry or their cell has lost, in a whole cloud of one process: they are used again."""

from dataclasses import replace

import pytest
from sqlalchemy import delete
from support.operations.instances import build, restart_agent

from conductor.schema import cell_agents, cell_hosts
from harness.cloud import CloudSpec, RunningCloud, merged
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import DeleteHost, DeleteResourceProvider, GetResourceProvider, ListProviderTrees, SetHost
from placement_store.schema import changes, hosts, inventories, resource_providers

PLAN = CloudSpec(
    hosts=1,
    settings={
        "conductor": {"report_interval": 0.2, "retry_backoff": 0.1},
        "compute": {"report_interval": 0.2},
    },
)


def deleted(cloud: RunningCloud) -> None:
    """Delete the host while its agent runs."""
    [host] = cloud.hosts()
    scheduler = cloud.client("scheduler")
    scheduler.call(SetHost(request_id=ids.fresh(), service_host=host.service_host, forced_down=True))
    scheduler.call(DeleteHost(request_id=ids.fresh(), service_host=host.service_host))


def forgotten(cloud: RunningCloud) -> None:
    """Empty the registry and the providers, as a restored backup does that is older than the host."""
    cloud.database.write(
        lambda connection: [
            connection.execute(delete(table)) for table in (hosts, inventories, resource_providers, changes)
        ]
    )


@pytest.mark.parametrize("lost", [deleted, forgotten])
def test_a_host_that_the_registry_has_lost_is_registered_again_with_its_providers(lost: object) -> None:
    with RunningCloud(PLAN) as cloud:
        [before] = cloud.hosts()

        assert callable(lost)
        lost(cloud)
        wait_until(lambda: any(host.up for host in cloud.hosts()), "the host to be up again")

        [after] = cloud.hosts()
        assert (after.service_host, after.compute_node_uuid) == (before.service_host, before.compute_node_uuid)
        assert (after.disabled, after.forced_down) == (False, False), "it is registered as a new host"
        provider = cloud.client("placement").call(GetResourceProvider(uuid=after.compute_node_uuid))
        assert provider.inventories["VCPU"].total > 0
        assert build(cloud).state == "active"


@pytest.mark.parametrize("numa_nodes", [0, 2])
def test_a_provider_of_a_host_that_is_deleted_is_reported_again_without_a_restart(numa_nodes: int) -> None:
    settings = merged(PLAN.settings, {"fake_driver": {"numa_nodes": numa_nodes, "vcpus": 16}})
    with RunningCloud(replace(PLAN, settings=settings)) as cloud:
        [host] = cloud.hosts()
        placement = cloud.client("placement")

        def providers_with_vcpus() -> dict[str, int]:
            tree = placement.call(ListProviderTrees(uuids=(host.compute_node_uuid,)))
            return {one.uuid: one.inventories["VCPU"].total for one in tree if "VCPU" in one.inventories}

        before = providers_with_vcpus()
        assert sum(before.values()) == 16

        placement.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=min(before)))

        wait_until(lambda: providers_with_vcpus() == before, "the deleted provider")
        assert build(cloud).state == "active"


def test_new_descriptions_of_a_host_count_after_its_cell_has_lost_its_records() -> None:
    with RunningCloud(PLAN) as cloud:
        cloud.database.write(
            lambda connection: [connection.execute(delete(table)) for table in (cell_hosts, cell_agents)]
        )
        # The number of the description in the registry is greater than those that the cell will send for a while.
        cloud.database.write(lambda connection: connection.execute(hosts.update().values(description_number=1000)))
        restart_agent(cloud, 1, availability_zone="another")

        wait_until(lambda: [host.availability_zone for host in cloud.hosts()] == ["another"], "the new description")
        assert build(cloud).state == "active"
