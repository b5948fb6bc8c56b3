"""Private clusters keep their data while a node is down or cut off, and admit the node again.

These tests run only with DRILLS=long in the environment: the start of three nodes of each kind takes half a minute of
processor time.
"""

import os
import time

import pymysql
import pytest
from kombu.connection import Connection
from kombu.entity import Queue

from harness.galera import GaleraCluster, GaleraNode
from harness.rabbitmq_cluster import RabbitMQCluster

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("DRILLS") != "long", reason="DRILLS=long starts clusters"),
]

WITHOUT_A_MAJORITY = 1047


def test_a_killed_node_that_returns_has_the_rows_that_were_written_meanwhile(galera: GaleraCluster) -> None:
    galera.create_database("killed")
    galera.execute("CREATE TABLE killed.boats (name VARCHAR(20) PRIMARY KEY) ENGINE=InnoDB")

    galera.kill(0)
    galera.nodes[1].execute("INSERT INTO killed.boats VALUES ('launched')")
    assert not galera.nodes[0].is_synced()
    galera.start_node(0)

    assert galera.nodes[0].execute("SELECT name FROM killed.boats") == (("launched",),)
    assert [node.status("wsrep_cluster_size") for node in galera.nodes] == ["3"] * 3


def test_a_node_that_is_cut_off_from_the_others_refuses_reads_and_catches_up_afterwards(
    galera: GaleraCluster,
) -> None:
    galera.create_database("cut_off")
    galera.execute("CREATE TABLE cut_off.boats (name VARCHAR(20) PRIMARY KEY) ENGINE=InnoDB")
    node = galera.nodes[2]

    node.set_cut_off(True)
    end = time.monotonic() + 60
    while (code := error_code(node)) is None:  # after some seconds it notices that the others are gone
        assert time.monotonic() < end
        time.sleep(0.2)
    galera.nodes[0].execute("INSERT INTO cut_off.boats VALUES ('launched')")
    node.set_cut_off(False)
    galera.wait_whole()

    assert code == WITHOUT_A_MAJORITY
    assert node.execute("SELECT name FROM cut_off.boats") == (("launched",),)


def error_code(node: GaleraNode) -> object:
    try:
        node.execute("SELECT name FROM cut_off.boats")
    except pymysql.err.OperationalError as fault:
        return fault.args[0]
    return None


def test_after_all_nodes_were_killed_the_cluster_restarts_from_the_node_with_the_newest_data(
    galera: GaleraCluster,
) -> None:
    galera.create_database("dead")
    galera.execute("CREATE TABLE dead.boats (name VARCHAR(20) PRIMARY KEY) ENGINE=InnoDB")
    for number in range(3):
        galera.kill(number)

    galera.restart_all()

    assert [node.execute("SELECT name FROM dead.boats") for node in galera.nodes] == [()] * 3


def test_a_message_survives_a_sigkill_of_the_node_that_accepted_it(rabbitmq_cluster: RabbitMQCluster) -> None:
    rabbitmq_cluster.add_vhost("killed")
    kind = {"x-queue-type": "quorum"}
    queue = Queue("letters", durable=True, queue_arguments=kind)  # type: ignore[no-untyped-call]  # kombu has no types
    with broker(rabbitmq_cluster, 0) as connection:
        connection.Producer().publish("kept", routing_key="letters", declare=[queue])

    rabbitmq_cluster.kill(0)
    with broker(rabbitmq_cluster, 1) as connection, connection.SimpleQueue(queue) as letters:
        message = letters.get(timeout=30)
        message.ack()

    assert message.payload == "kept"
    rabbitmq_cluster.start_node(0)
    assert rabbitmq_cluster.nodes[0].is_member()


def test_a_broker_that_is_cut_off_from_the_others_leaves_the_majority_and_rejoins(
    rabbitmq_cluster: RabbitMQCluster,
) -> None:
    node = rabbitmq_cluster.nodes[1]

    node.set_cut_off(True)
    end = time.monotonic() + 60
    while node.is_member():
        assert time.monotonic() < end
    assert rabbitmq_cluster.nodes[0].is_member()
    node.set_cut_off(False)

    rabbitmq_cluster.wait_whole()


def broker(cluster: RabbitMQCluster, number: int) -> Connection:
    url = f"pyamqp://moorage:{cluster.password}@127.0.0.1:{cluster.nodes[number].port}/killed"
    options = {"confirm_publish": True}
    return Connection(url, transport_options=options)  # type: ignore[no-untyped-call]  # kombu has no types
