"""Concurrent writes to all nodes of a Galera cluster: which conflicts certification detects, and which it does not.

While processes switch from one node to the next, for some seconds at most, they write to several nodes. No provider may
be over-committed in this time. These tests run only with DRILLS=long in the environment.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pymysql
import pytest
from support.placement_store.builders import Store
from support.placement_store.races import ONE, ROOM, Write, hosts, race

from harness.galera import GaleraCluster
from moorage import ids
from moorage.db.database import Database
from placement_store.schema import MAIN

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.environ.get("DRILLS") != "long", reason="DRILLS=long starts a Galera cluster"),
]

ROUNDS = 500
THREADS, WRITES = 9, 2
DEADLOCK = 1213


@pytest.fixture
def stores(galera: GaleraCluster) -> Iterator[list[Store]]:
    """The same store, reached through each of the nodes."""
    galera.create_database("all_nodes")
    databases = [Database(node.url("all_nodes"), "main", pool_size=THREADS + 1) for node in galera.nodes]
    MAIN.upgrade(databases[0])
    yield [Store(database) for database in databases]
    for database in databases:
        database.close()


def test_of_eighteen_writers_on_three_nodes_exactly_five_get_the_last_five_slots_in_every_round(
    stores: Sequence[Store], record_property: Callable[[str, object], None]
) -> None:
    providers = hosts(stores[0], ROUNDS)

    def put(store: Store, host: str) -> Write:
        return lambda: store.put(ids.fresh(), {host: ONE})

    outcomes = race([[[put(stores[n % 3], host)] * WRITES for n in range(THREADS)] for host in providers])

    expected = Counter(done=ROOM, CapacityExceeded=THREADS * WRITES - ROOM)
    assert [outcome for outcome in outcomes if outcome != expected] == []
    full = {name: amount * ROOM for name, amount in ONE.items()}
    assert [host for host in providers if stores[0].used(host) != full] == []
    assert all(store.is_sound() for store in stores)
    record_property(
        "measured", f"{ROUNDS} rounds of {THREADS * WRITES} writers on three nodes: {dict(expected)} in each"
    )


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        pytest.param(
            ["UPDATE one SET value = value + 1 WHERE id = 1"],
            ["UPDATE one SET value = value + 1 WHERE id = 1"],
            [None, DEADLOCK],
            id="two updates of a row",
        ),
        pytest.param(
            ["INSERT INTO other (value) VALUES (1)"],
            ["INSERT INTO other (value) VALUES (1)"],
            [None, DEADLOCK],
            id="two rows of one unique key",
        ),
        pytest.param(
            ["SELECT * FROM one WHERE id = 1 FOR UPDATE", "INSERT INTO other (value) VALUES (1)"],
            ["UPDATE one SET value = value + 1 WHERE id = 1"],
            [None, None],
            id="a lock on a row and its update",
        ),
        pytest.param(
            ["INSERT INTO other (value) VALUES (1)", "SELECT * FROM one WHERE id = 2 LOCK IN SHARE MODE"],
            ["UPDATE one SET value = 9 WHERE id = 2", "SELECT * FROM other WHERE value = 1 LOCK IN SHARE MODE"],
            [None, None],
            id="two transactions that each read the row of the other",
        ),
    ],
)
def test_certification_detects_conflicts_between_writes_but_not_with_locks(
    galera: GaleraCluster, first: Sequence[str], second: Sequence[str], outcome: Sequence[int | None]
) -> None:
    """Show why only one node is written: on a single server, the transactions of the last two cases would wait."""
    galera.create_database("certified")
    galera.execute("CREATE TABLE certified.one (id INT PRIMARY KEY, value INT) ENGINE=InnoDB")
    galera.execute("CREATE TABLE certified.other (value INT PRIMARY KEY) ENGINE=InnoDB")
    galera.execute("INSERT INTO certified.one VALUES (1, 1), (2, 2)")

    with closing(connect(galera, 0)) as one, closing(connect(galera, 1)) as other:
        for connection, statements in ((one, first), (other, second)):
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        found = [commit_error(one), commit_error(other)]

    assert found == outcome


def connect(galera: GaleraCluster, number: int) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    return pymysql.connect(
        host="127.0.0.1",
        port=galera.nodes[number].port,
        user="moorage",
        password=galera.password,
        database="certified",
        init_command="SET SESSION wsrep_sync_wait = 7, SESSION tx_isolation = 'READ-COMMITTED'",
    )


def commit_error(connection: "pymysql.Connection[pymysql.cursors.Cursor]") -> int | None:
    try:
        connection.commit()
    except pymysql.err.MySQLError as fault:
        return int(fault.args[0])
    return None
