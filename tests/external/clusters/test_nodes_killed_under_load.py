"""A cloud under load on two clusters, while nodes of both are killed, restarted, and cut off from the others.

The test runs only with DRILLS=long in the environment: it takes more than five minutes and needs six servers.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.processes.clustered_cloud import BusyClients, ClusteredCloud
from support.processes.fault_servers import check

from harness.drills.cloud import unlogged
from harness.galera import GaleraCluster
from harness.rabbitmq_cluster import RabbitMQCluster

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(os.environ.get("DRILLS") != "long", reason="DRILLS=long kills nodes of clusters for 300 s"),
]

SECONDS, CLIENTS = 300.0, 12
KILLS = 5
#: Seconds between the return of a node and the kill of the next, seconds until a killed node is started again, and
#: seconds for which a node is cut off.
BETWEEN, AWAY, CUT = 10.0, 2.0, 20.0
BUILDS, MOVES, SLOWEST = 1000, 300, 30.0


@pytest.fixture
def cloud(galera: GaleraCluster, rabbitmq_cluster: RabbitMQCluster) -> Iterator[ClusteredCloud]:
    with unlogged(), ClusteredCloud(rabbitmq_cluster.add_vhost("load"), galera.create_database("load")) as begun:
        begun.begin()
        yield begun


def disturb(cluster: GaleraCluster | RabbitMQCluster, ended: threading.Event) -> float:
    """Kill and restart one node after the other, then cut one off for a while; return when the cut began."""
    for number in range(KILLS):
        if ended.wait(BETWEEN):
            return math.inf
        cluster.kill(number % 3)
        ended.wait(AWAY)
        cluster.start_node(number % 3)
    if ended.wait(BETWEEN):
        return math.inf
    began, node = time.monotonic(), cluster.nodes[KILLS % 3]
    node.set_cut_off(True)
    ended.wait(CUT)
    node.set_cut_off(False)
    return began


def test_every_order_ends_and_nothing_leaks_while_nodes_of_both_clusters_are_killed_and_cut_off(
    cloud: ClusteredCloud,
    galera: GaleraCluster,
    rabbitmq_cluster: RabbitMQCluster,
    record_property: Callable[[str, object], None],
) -> None:
    clients, faults = BusyClients(cloud, CLIENTS), list[BaseException]()
    cuts: dict[str, str] = {}

    def run(cluster: GaleraCluster | RabbitMQCluster) -> None:
        try:
            cuts[type(cluster).__name__] = f"{disturb(cluster, clients.ended) - clients.started:.1f} s"
        except BaseException as fault:  # noqa: BLE001 - checked by the thread of the test
            faults.append(fault)

    disturbing = [threading.Thread(target=run, args=(cluster,)) for cluster in (galera, rabbitmq_cluster)]
    began = time.monotonic()
    with clients.busy():
        for thread in disturbing:
            thread.start()
        while (time.monotonic() < began + SECONDS or any(each.is_alive() for each in disturbing)) and not (
            clients.faults or faults
        ):
            time.sleep(0.2)
        seconds = time.monotonic() - began
    for thread in disturbing:
        thread.join()
    record_property("measured", f"{seconds:.0f} s, {KILLS} kills, and a cut of each cluster at {cuts}: {clients}")

    assert not clients.faults, clients.faults
    assert not faults, faults
    check(cloud, [], 90.0)
    internal = [line for name in cloud.processes for line in cloud.log(name).splitlines() if "InternalError" in line]
    assert internal == []
    assert clients.slowest < SLOWEST
    assert clients.ends["build: active"] >= BUILDS
    assert clients.ends["move: confirmed"] >= MOVES
