"""A cloud on clusters, a node of each of which is killed and brought back, and cut off from the others, under load.

With DRILLS=long in the environment only: it takes more than five minutes, and six servers.
"""

import gc
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.processes.clustered_cloud import BusyClients, ClusteredCloud
from support.processes.fault_servers import check

from harness.galera import GaleraCluster
from harness.rabbitmq_cluster import RabbitMQCluster

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(os.environ.get("DRILLS") != "long", reason="DRILLS=long kills nodes of clusters for 300 s"),
]

SECONDS, CLIENTS = 300.0, 12
KILLS = 5
#: Seconds between a node's return and the next one's death, that a dead node stays away, and that a cut lasts.
BETWEEN, AWAY, CUT = 10.0, 2.0, 20.0
BUILDS, MOVES, SLOWEST = 1000, 300, 30.0


@pytest.fixture
def cloud(galera: GaleraCluster, rabbitmq_cluster: RabbitMQCluster) -> Iterator[ClusteredCloud]:
    logging.disable()  # records of what has failed would keep dead sockets, to be found in a later test
    try:
        with ClusteredCloud(rabbitmq_cluster.add_vhost("load"), galera.create_database("load")) as begun:
            begun.begin()
            yield begun
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()


def trouble(cluster: GaleraCluster | RabbitMQCluster, ended: threading.Event) -> float:
    """Kill one node after the other and bring each back, then cut one off for a while; return when this began."""
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


def test_every_order_ends_and_nothing_leaks_while_nodes_of_both_clusters_die_and_are_cut_off(
    cloud: ClusteredCloud,
    galera: GaleraCluster,
    rabbitmq_cluster: RabbitMQCluster,
    record_property: Callable[[str, object], None],
) -> None:
    clients, faults = BusyClients(cloud, CLIENTS), list[BaseException]()
    cuts: dict[str, str] = {}

    def run(cluster: GaleraCluster | RabbitMQCluster) -> None:
        try:
            cuts[type(cluster).__name__] = f"{trouble(cluster, clients.ended) - clients.started:.1f} s"
        except BaseException as fault:  # noqa: BLE001 - shown by the test's own thread
            faults.append(fault)

    troubles = [threading.Thread(target=run, args=(cluster,)) for cluster in (galera, rabbitmq_cluster)]
    began = time.monotonic()
    with clients.busy():
        for thread in troubles:
            thread.start()
        while (time.monotonic() < began + SECONDS or any(each.is_alive() for each in troubles)) and not (
            clients.faults or faults
        ):
            time.sleep(0.2)
        seconds = time.monotonic() - began
    for thread in troubles:
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
