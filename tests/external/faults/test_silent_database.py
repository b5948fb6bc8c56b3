"""A database whose open connections go silent: all reads are answered again soon and without intervention."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, make_url, text
from support.processes.stopwatch import Stopwatch

from harness.tcp_proxy import TcpProxy
from moorage import errors
from moorage.db.database import Database

CONNECT, STATEMENT, MARGIN = 0.4, 0.7, 0.3
ANSWER = STATEMENT + MARGIN
CONNECTIONS = 6


@pytest.fixture
def proxy(mariadb_url: str) -> Iterator[TcpProxy]:
    url = make_url(mariadb_url)
    with TcpProxy(url.host or "", url.port or 0) as proxy:
        yield proxy


@pytest.fixture
def database(proxy: TcpProxy, mariadb_url: str) -> Iterator[Database]:
    """The database behind the proxy, with all connections of its pool open."""
    url = make_url(mariadb_url).set(port=proxy.port).render_as_string(hide_password=False)
    database = Database(
        url,
        "test",
        pool_size=CONNECTIONS,
        connect=CONNECT,
        statement_limit=STATEMENT,
        answer_margin=MARGIN,
    )
    together = threading.Barrier(CONNECTIONS)
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(lambda _: database.read(lambda _: together.wait(10)), range(CONNECTIONS)))
    assert proxy.connections == CONNECTIONS
    yield database
    database.close()


def one(connection: Connection) -> int:
    found: int = connection.scalar(text("SELECT 1"))
    return found


def timed(database: Database) -> float:
    begun = time.monotonic()
    assert database.read(one) == 1
    return time.monotonic() - begun


def test_one_silent_connection_costs_one_time_out_and_the_others_of_the_pool_nothing(
    proxy: TcpProxy, database: Database
) -> None:
    proxy.go_silent()

    assert ANSWER <= timed(database) < ANSWER + CONNECT
    # If the pool had kept its other connections, each of these reads would also wait for a time-out.
    assert sum(timed(database) for _ in range(CONNECTIONS)) < ANSWER


def test_threads_whose_connections_go_silent_at_the_same_time_wait_in_parallel(
    proxy: TcpProxy, database: Database
) -> None:
    proxy.go_silent()

    watch = Stopwatch()
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        assert list(threads.map(lambda _: database.read(one), range(CONNECTIONS))) == [1] * CONNECTIONS
    assert watch.seconds < ANSWER + CONNECT + 1


def test_a_server_that_accepts_connections_and_sends_nothing_counts_as_unavailable_after_a_time_out(
    proxy: TcpProxy, database: Database
) -> None:
    proxy.go_silent(new_too=True)

    for longest in (ANSWER + CONNECT, 2 * CONNECT):  # the first read has a connection, the second opens one
        watch = Stopwatch()
        with pytest.raises(errors.StoreUnavailable):
            database.read(one)
        assert watch.seconds < longest + 1

    proxy.resume()
    assert timed(database) < ANSWER


def test_after_a_silent_handshake_no_older_connection_is_used(proxy: TcpProxy, database: Database) -> None:
    database.engine.dispose()
    with database.engine.connect() as older:
        older.scalar(text("SELECT 1"))
        older.rollback()
        proxy.go_silent(new_too=True)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(timed, database)  # it opens a connection, because the older one is in use
            time.sleep(CONNECT / 2)
            older.close()
            proxy.resume()
            assert reading.result(30) < ANSWER


def test_a_statement_that_takes_too_long_is_ended_and_its_connection_is_kept(
    proxy: TcpProxy, database: Database
) -> None:
    tries: list[Connection] = []

    def work(connection: Connection) -> None:
        tries.append(connection)
        connection.execute(text("SELECT SLEEP(30)"))

    for transaction in (database.read, database.write):
        with pytest.raises(errors.Overloaded, match="took too long"):
            transaction(work)

    assert len(tries) == 2, "a statement that takes too long is repeated"
    assert proxy.connections == CONNECTIONS


def test_each_connection_has_the_kernels_time_outs_for_a_network_that_acknowledges_nothing(database: Database) -> None:
    """Check only the options of the sockets: their effect is visible only on a network that loses packets."""
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        options = {
            name: driver._sock.getsockopt(level, getattr(socket, name))
            for level, name in (
                (socket.SOL_SOCKET, "SO_KEEPALIVE"),
                (socket.IPPROTO_TCP, "TCP_KEEPIDLE"),
                (socket.IPPROTO_TCP, "TCP_KEEPINTVL"),
                (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"),
            )
        }
    assert options == {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_USER_TIMEOUT": 15_000}
