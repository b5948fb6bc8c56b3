"""A database URL with several hosts: the first host that accepts connections is used, also after it was unavailable.

The tests of Galera nodes are in tests/external/clusters.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import make_url, text

from harness.servers import MariaDBServer
from harness.tcp_proxy import TcpProxy
from harness.waiting import wait_until
from moorage import errors
from moorage.db import cluster_connections
from moorage.db.database import Database


@pytest.fixture
def hosts(mariadb: MariaDBServer) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """Two addresses of one server, each of which can refuse its connections."""
    with TcpProxy("127.0.0.1", mariadb.port) as first, TcpProxy("127.0.0.1", mariadb.port) as second:
        yield first, second


@pytest.fixture
def database(mariadb_url: str, hosts: tuple[TcpProxy, TcpProxy]) -> Iterator[Database]:
    """A database with both addresses as hosts."""
    url = make_url(mariadb_url)
    addresses = ",".join(f"127.0.0.1:{proxy.port}" for proxy in hosts)
    opened = Database(f"mysql+pymysql://{url.username}:{url.password}@{addresses}/{url.database}", "main", pool_size=3)
    yield opened
    opened.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try an unavailable host again soon, and let connections of any age be replaced."""
    monkeypatch.setattr(cluster_connections, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(cluster_connections, "_FRESH_SECONDS", 0.0)


def answers(database: Database) -> bool:
    return bool(database.read(lambda connection: connection.scalar(text("SELECT 1"))) == 1)


def used(database: Database, hosts: tuple[TcpProxy, TcpProxy]) -> Callable[[], list[bool]]:
    """Return a function that reads, and returns for each of the hosts whether there are connections to it."""

    def read() -> list[bool]:
        assert answers(database)
        return [proxy.connections > 0 for proxy in hosts]

    return read


def test_the_second_host_is_used_while_the_first_refuses_connections_and_then_the_first_again(
    database: Database, hosts: tuple[TcpProxy, TcpProxy], quick: None
) -> None:
    first, _ = hosts
    read = used(database, hosts)
    assert read() == [True, False]
    first.refuse()
    wait_until(lambda: read() == [False, True], "the second host to be used")
    first.resume()
    wait_until(lambda: read() == [True, False], "the first host to be used again")


def test_a_process_that_starts_while_the_first_host_refuses_connections_uses_the_second(
    database: Database, hosts: tuple[TcpProxy, TcpProxy]
) -> None:
    hosts[0].refuse()
    assert used(database, hosts)() == [False, True]


def test_a_database_is_unavailable_until_one_of_its_hosts_accepts_connections(
    database: Database, hosts: tuple[TcpProxy, TcpProxy]
) -> None:
    for proxy in hosts:
        proxy.refuse()
    began = time.monotonic()
    with pytest.raises(errors.StoreUnavailable):
        answers(database)
    assert time.monotonic() - began < 20
    hosts[1].resume()
    wait_until(lambda: _is_answered(database), "the second host to be used")


def _is_answered(database: Database) -> bool:
    try:
        return answers(database)
    except errors.StoreUnavailable:
        return False
