"""A database from which nothing comes any more, on connections that stand: all answer again, soon and by themselves."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, make_url, text

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
    # Each of these would wait for as long, had the connections that are left been kept.
    assert sum(timed(database) for _ in range(CONNECTIONS)) < ANSWER


def test_threads_whose_connections_go_silent_at_once_wait_side_by_side(proxy: TcpProxy, database: Database) -> None:
    proxy.go_silent()

    begun = time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        assert list(threads.map(lambda _: database.read(one), range(CONNECTIONS))) == [1] * CONNECTIONS
    assert time.monotonic() - begun < ANSWER + CONNECT + 1


def test_a_server_that_takes_connections_and_says_nothing_is_given_up_at_the_hand_shake(
    proxy: TcpProxy, database: Database
) -> None:
    proxy.go_silent(new_too=True)

    for longest in (ANSWER + CONNECT, 2 * CONNECT):  # the first has a connection yet, the second must make one
        begun = time.monotonic()
        with pytest.raises(errors.StoreUnavailable):
            database.read(one)
        assert time.monotonic() - begun < longest + 1

    proxy.resume()
    assert timed(database) < ANSWER


def test_after_a_hand_shake_that_has_gone_silent_no_older_connection_is_tried(
    proxy: TcpProxy, database: Database
) -> None:
    database.engine.dispose()
    with database.engine.connect() as older:
        older.scalar(text("SELECT 1"))
        older.rollback()
        proxy.go_silent(new_too=True)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(timed, database)  # which must make a connection, because the older one is in use
            threading.Event().wait(CONNECT / 2)
            older.close()
            proxy.resume()
            assert reading.result(30) < ANSWER


def test_a_statement_that_takes_too_long_is_ended_and_is_no_loss_of_the_connection(
    proxy: TcpProxy, database: Database
) -> None:
    tries: list[Connection] = []

    def work(connection: Connection) -> None:
        tries.append(connection)
        connection.execute(text("SELECT SLEEP(30)"))

    for transaction in (database.read, database.write):
        with pytest.raises(errors.Overloaded, match="took too long"):
            transaction(work)

    assert len(tries) == 2, "its own time-out is repeated"
    assert proxy.connections == CONNECTIONS


def test_a_network_that_acknowledges_nothing_is_noticed_before_the_answer_is_due(database: Database) -> None:
    """The kernel's own limits are on each connection: what they do takes a network that loses packets to see."""
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        options = {
            name: driver._sock.getsockopt(level, getattr(__import__("socket"), name))
            for level, name in (
                (1, "SO_KEEPALIVE"),
                (6, "TCP_KEEPIDLE"),
                (6, "TCP_KEEPINTVL"),
                (6, "TCP_USER_TIMEOUT"),
            )
        }
    assert options == {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_USER_TIMEOUT": 15_000}
