"""Hosts that the registry or their cell has lost, in a whole cloud of one process: they take servers again."""

import pytest
from sqlalchemy import delete

from compute.service import ComputeService
from conductor.schema import cell_agents, cell_hosts
from harness.cloud import CloudSpec, RunningCloud, wait_until
from moorage import ids
from moorage.messages import BuildInstances, DeleteHost, GetResourceProvider, SetHost, ShowInstance
from moorage.model import Flavor, RequestSpec
from placement_store.schema import changes, hosts, inventories, resource_providers

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=2, memory_mb=4096, root_gb=20))
PLAN = CloudSpec(
    hosts=1,
    settings={
        "conductor": {"report_interval": 0.2, "retry_backoff": 0.1},
        "compute": {"report_interval": 0.2},
    },
)


def takes_a_server(cloud: RunningCloud) -> None:
    """Build an instance on the cloud's only host."""
    uuid = ids.fresh()
    conductor = cloud.client("conductor")
    conductor.call(BuildInstances(request_spec=SPEC, instance_uuids=(uuid,), request_id=ids.fresh()))
    wait_until(
        lambda: conductor.call(ShowInstance(instance_uuid=uuid)).state in ("active", "error"), "the build to end"
    )
    assert conductor.call(ShowInstance(instance_uuid=uuid)).state == "active"


def deleted(cloud: RunningCloud) -> None:
    """Delete the host while its agent runs."""
    [host] = cloud.hosts()
    scheduler = cloud.client("scheduler")
    scheduler.call(SetHost(request_id=ids.fresh(), service_host=host.service_host, forced_down=True))
    scheduler.call(DeleteHost(request_id=ids.fresh(), service_host=host.service_host))


def forgotten(cloud: RunningCloud) -> None:
    """Empty the registry and the providers behind everybody's back, as a backup does that was made before the host."""
    cloud.database.write(
        lambda connection: [
            connection.execute(delete(table)) for table in (hosts, inventories, resource_providers, changes)
        ]
    )


@pytest.mark.parametrize("lost", [deleted, forgotten])
def test_a_host_that_the_registry_has_lost_comes_back_with_its_providers(lost: object) -> None:
    with RunningCloud(PLAN) as cloud:
        [before] = cloud.hosts()

        assert callable(lost)
        lost(cloud)
        wait_until(lambda: any(host.up for host in cloud.hosts()), "the host to be up again")

        [after] = cloud.hosts()
        assert (after.service_host, after.compute_node_uuid) == (before.service_host, before.compute_node_uuid)
        assert (after.disabled, after.forced_down) == (False, False), "it is a new one"
        provider = cloud.client("placement").call(GetResourceProvider(uuid=after.compute_node_uuid))
        assert provider.inventories["VCPU"].total > 0
        takes_a_server(cloud)


def test_a_host_whose_cell_has_lost_its_records_goes_on_and_its_descriptions_count() -> None:
    with RunningCloud(PLAN) as cloud:
        cloud.database.write(
            lambda connection: [connection.execute(delete(table)) for table in (cell_hosts, cell_agents)]
        )
        # What the registry has is of a greater number than all that the cell will send for a while.
        cloud.database.write(lambda connection: connection.execute(hosts.update().values(description_number=1000)))
        cloud.stop_service("compute-cell1")
        conf = cloud.configuration(
            compute={"agent": "agent-cell1"},
            fake_driver={
                "availability_zone": "another",
                "hosts": 1,
                "host_prefix": "cell1-host",
                "state_file": str(cloud.folder / "agent-cell1.sqlite"),
            },
        )
        cloud.add("compute-cell1", ComputeService(conf, "cell1"))

        wait_until(lambda: [host.availability_zone for host in cloud.hosts()] == ["another"], "the new description")
        takes_a_server(cloud)
