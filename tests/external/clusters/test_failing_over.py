"""A database with several hosts: a process writes to the first available node, and returns to it after a failure."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, text

from harness.galera import GaleraCluster
from harness.tcp_proxy import TcpProxy
from moorage import errors
from moorage.db.database import Database

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("DRILLS") != "long", reason="DRILLS=long starts a Galera cluster"),
]

#: Seconds for a cluster to notice that a node is silent and for a process to try a host again, with a margin.
PATIENCE = 60.0


@pytest.fixture
def database(galera: GaleraCluster) -> Iterator[Database]:
    """A database with all nodes as hosts, and a table that records the node of each write."""
    opened = Database(galera.create_database("failing_over"), "main", pool_size=4)
    opened.write(
        lambda connection: connection.execute(
            text("CREATE TABLE writes (number INT PRIMARY KEY, port INT NOT NULL) ENGINE=InnoDB")
        )
    )
    yield opened
    opened.close()


def write(database: Database, number: int) -> None:
    """Write one row, even if the write is repeated; wait while no node is available."""
    end = time.monotonic() + PATIENCE

    def work(connection: Connection) -> None:
        connection.execute(text("INSERT IGNORE INTO writes VALUES (:number, @@port)"), {"number": number})

    while True:
        try:
            return database.write(work)
        except (errors.StoreUnavailable, errors.Overloaded):
            if time.monotonic() > end:
                raise


def port(database: Database) -> int:
    return int(database.read(lambda connection: connection.scalar(text("SELECT @@port"))) or 0)


def count(database: Database, change: str, number: int) -> int:
    """Execute a statement with a number, and return how many rows it changed."""
    return database.write(lambda connection: connection.execute(text(change), {"n": number}).rowcount)


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_writes_continue_on_the_next_node_when_the_first_is_killed_and_return_to_the_first(
    galera: GaleraCluster, database: Database, record_property: Callable[[str, object], None]
) -> None:
    ports = [node.port for node in galera.nodes]
    ended, slowest, written = threading.Event(), [0.0], [0]

    def work() -> None:
        while not ended.is_set():
            began = time.monotonic()
            write(database, written[0])
            slowest[0] = max(slowest[0], time.monotonic() - began)
            written[0] += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert port(database) == ports[0]
        galera.kill(0)
        wait_for(lambda: port(database) == ports[1])
        galera.start_node(0)
        wait_for(lambda: port(database) == ports[0])
    finally:
        ended.set()
        worker.join()

    rows = database.read(lambda connection: connection.execute(text("SELECT number, port FROM writes")).all())
    assert sorted(row.number for row in rows) == list(range(written[0]))
    assert {row.port for row in rows} == {ports[0], ports[1]}
    assert slowest[0] < 30
    record_property("measured", f"{written[0]} writes while a node was killed; the slowest took {slowest[0]:.1f} s")


def test_a_node_that_is_cut_off_from_the_others_is_not_used_even_if_it_answers(
    galera: GaleraCluster, database: Database
) -> None:
    ports = [node.port for node in galera.nodes]
    assert port(database) == ports[0]

    galera.nodes[0].set_cut_off(True)
    try:
        write(database, 1)
        wait_for(lambda: port(database) == ports[1])
        write(database, 2)
    finally:
        galera.nodes[0].set_cut_off(False)
    galera.wait_whole()

    assert galera.nodes[0].execute("SELECT number FROM failing_over.writes ORDER BY number") == ((1,), (2,))


def test_a_new_process_does_not_use_a_node_without_a_majority_and_fails_if_it_is_the_only_one(
    galera: GaleraCluster,
) -> None:
    galera.create_database("alone")
    galera.nodes[0].set_cut_off(True)
    node = galera.nodes[0]
    wait_for(lambda: node.status("wsrep_ready") == "OFF")

    several, single = Database(galera.url("alone"), "main"), Database(node.url("alone"), "main")
    try:
        assert port(several) == galera.nodes[1].port
        with pytest.raises(errors.StoreUnavailable):
            port(single)
    finally:
        several.close()
        single.close()
        node.set_cut_off(False)


def test_a_write_committed_on_one_node_is_visible_at_once_on_the_next(galera: GaleraCluster) -> None:
    galera.create_database("causal")
    galera.execute("CREATE TABLE causal.counts (id INT PRIMARY KEY, value INT NOT NULL) ENGINE=InnoDB")
    galera.execute("INSERT INTO causal.counts VALUES (1, 0)")
    one, other = (Database(node.url("causal"), "main") for node in galera.nodes[:2])
    read: list[object] = []
    changed: list[int] = []

    for number in range(100):
        count(one, "UPDATE counts SET value = :n", number)
        read.append(other.read(lambda connection: connection.scalar(text("SELECT value FROM counts"))))
        # An update of no row would also be read as a refusal.
        changed.append(count(other, "UPDATE counts SET value = value + 1000 WHERE value = :n", number))
    one.close()
    other.close()

    assert read == list(range(100))
    assert changed == [1] * 100


class Balancer(TcpProxy):
    """A proxy that forwards each connection to the next server in turn."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        super().__init__("127.0.0.1", ports[0])

    def _accept(self) -> None:
        super()._accept()
        self._ports.append(self._ports.pop(0))
        self.switch("127.0.0.1", self._ports[0])


def test_a_proxy_that_distributes_connections_over_the_nodes_is_refused(galera: GaleraCluster) -> None:
    galera.create_database("balanced")
    with Balancer([node.port for node in galera.nodes]) as proxy:
        url = galera.nodes[0].url("balanced").replace(f":{galera.nodes[0].port}/", f":{proxy.port}/")
        database = Database(url, "main")
        with pytest.raises(errors.ConfigurationError, match="reach 3 nodes of a Galera cluster"):
            port(database)
        database.close()


def test_a_proxy_that_uses_one_node_at_a_time_may_switch_to_the_next(galera: GaleraCluster) -> None:
    galera.create_database("behind_a_proxy")
    with TcpProxy("127.0.0.1", galera.nodes[0].port) as proxy:
        url = galera.nodes[0].url("behind_a_proxy").replace(f":{galera.nodes[0].port}/", f":{proxy.port}/")
        database = Database(url, "main")
        assert port(database) == galera.nodes[0].port
        proxy.refuse()
        proxy.switch("127.0.0.1", galera.nodes[1].port)
        proxy.resume()
        assert port(database) == galera.nodes[1].port
        database.close()
