"""A cell whose conductor is killed, with every service a process of its own: the other cell does not notice."""

import time

from support.processes.building_client import SPEC, built
from support.processes.forked_cloud import ForkedCloud

from moorage import ids
from moorage.bus.bus import Client
from moorage.messages import BuildInstances, ListHosts, ListInstances, SetHost

#: Builds for the dead cell: more than a conductor has workers.
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


def only(cloud: ForkedCloud, cell: str) -> None:
    """Leave the hosts of one cell alone to be chosen."""
    scheduler = cloud.client("scheduler")
    for host in scheduler.call(ListHosts()):
        is_of_it = str(host.agent) == f"agent-{cell}"
        message = SetHost(request_id=ids.fresh(), service_host=host.service_host, disabled=not is_of_it)
        scheduler.call(message)


def test_builds_in_one_cell_take_what_they_took_while_the_conductor_of_another_is_dead(
    mariadb_url: str, rabbitmq_url: str
) -> None:
    with ForkedCloud(rabbitmq_url, mariadb_url) as cloud:
        cloud.run("db", "upgrade")
        for cell in ("healthy", "dead"):
            cloud.run("cell", "create", cell)
            cloud.start(f"conductor-{cell}", "conductor", "--cell", cell)
        cloud.start("conductor", "conductor")
        cloud.start("scheduler", "scheduler")
        for cell in ("healthy", "dead"):
            cloud.start(f"compute-{cell}", "compute", "--cell", cell, "--agent", f"agent-{cell}", "--fake-hosts", "8")
        cloud.wait_for_hosts(16)
        conductor = cloud.client("conductor", timeout=60)
        only(cloud, "healthy")
        build_some(conductor)
        alone = build_some(conductor)

        only(cloud, "dead")
        cloud.kill("conductor-dead")
        doomed = [order(conductor) for _ in range(MANY)]
        # The scheduler has placed them by then.
        time.sleep(1.0)
        only(cloud, "healthy")
        during = [build_some(conductor) for _ in range(3)]

        assert max(during) <= 3 * alone + 1.0, (alone, during)
        begun = time.monotonic()
        listed = {each.uuid: each for each in conductor.call(ListInstances())}
        # At most one question waits for the cell, and that for five seconds.
        assert time.monotonic() - begun < 8.0
        assert {listed[uuid].state for uuid in doomed} == {"building"}
        assert all("cell dead cannot be reached" in str(listed[uuid].reason) for uuid in doomed)

        cloud.start("conductor-dead", "conductor", "--cell", "dead")
        for uuid in doomed:
            assert built(conductor, uuid).state == "active"
