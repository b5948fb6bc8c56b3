"""A cell's conductor is killed, with each service as a separate process: builds in the other cell are not slower."""

import time

from support.processes.building_client import SPEC, built
from support.processes.forked_cloud import ForkedCloud
from support.processes.stopwatch import Stopwatch

from moorage import ids
from moorage.bus.bus import Client
from moorage.messages import BuildInstances, ListHosts, ListInstances, SetHost

#: Builds for the dead cell. Arbitrary: more than a conductor has workers.
MANY = 40


def order(conductor: Client) -> str:
    uuid = ids.fresh()
    conductor.call(BuildInstances(request_spec=SPEC, instance_uuids=(uuid,), request_id=ids.fresh()))
    return uuid


def build_some(conductor: Client) -> float:
    begun = time.monotonic()
    for _ in range(5):
        assert built(conductor, order(conductor)).state == "active"
    return time.monotonic() - begun


def enable_only(cloud: ForkedCloud, cell: str) -> None:
    """Disable the hosts of all cells but one."""
    scheduler = cloud.client("scheduler")
    for host in scheduler.call(ListHosts()):
        disabled = host.agent != f"agent-{cell}"
        message = SetHost(request_id=ids.fresh(), service_host=host.service_host, disabled=disabled)
        scheduler.call(message)


def test_builds_in_one_cell_are_not_slower_while_the_conductor_of_another_cell_is_dead(
    migrated_url: str, rabbitmq_url: str
) -> None:
    with ForkedCloud(rabbitmq_url, migrated_url) as cloud:
        for cell in ("healthy", "dead"):
            cloud.run("cell", "create", cell)
            cloud.start(f"conductor-{cell}", "conductor", "--cell", cell)
        cloud.start("conductor", "conductor")
        cloud.start("scheduler", "scheduler")
        for cell in ("healthy", "dead"):
            cloud.start(f"compute-{cell}", "compute", "--cell", cell, "--agent", f"agent-{cell}", "--fake-hosts", "8")
        cloud.wait_for_hosts(16)
        conductor = cloud.client("conductor", timeout=60)
        enable_only(cloud, "healthy")
        build_some(conductor)
        alone = build_some(conductor)

        enable_only(cloud, "dead")
        cloud.kill("conductor-dead")
        doomed = [order(conductor) for _ in range(MANY)]
        # In this time, the scheduler places them.
        time.sleep(1.0)
        enable_only(cloud, "healthy")
        during = [build_some(conductor) for _ in range(3)]

        assert max(during) <= 3 * alone + 1.0, (alone, during)
        watch = Stopwatch()
        listed = {each.uuid: each for each in conductor.call(ListInstances())}
        # At most one call waits for the cell, for five seconds.
        assert watch.seconds < 8.0
        assert {listed[uuid].state for uuid in doomed} == {"building"}
        assert all("cell dead cannot be reached" in str(listed[uuid].reason) for uuid in doomed)

        cloud.start("conductor-dead", "conductor", "--cell", "dead")
        for uuid in doomed:
            assert built(conductor, uuid).state == "active"
