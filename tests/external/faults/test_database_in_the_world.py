"""MariaDB in a time zone with daylight saving time, and servers that become read-only or shut down."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import falcon.testing
import pymysql
import pytest
from sqlalchemy import Connection, exc, make_url, select, text

from harness.servers import MariaDBServer
from harness.tcp_proxy import TcpProxy
from harness.waiting import wait_until
from moorage import errors
from moorage.config import options
from moorage.db import cluster_connections, faults
from moorage.db.columns import now
from moorage.db.database import Database
from placement_store.http import wsgi
from placement_store.schema import MAIN

pytestmark = pytest.mark.servers

#: The user of a service. A user with all privileges may write even while the server is `read_only`.
SERVICE = "service"
CONNECTIONS = 4
INSERT = text("INSERT INTO seen VALUES (1)")
SERVER = text("SELECT @@port")


class _Berlin(MariaDBServer):
    """A MariaDB in a time zone with daylight saving time."""

    def _launch(self) -> object:
        self.env["TZ"] = "Europe/Berlin"
        return super()._launch()


@pytest.fixture(scope="module")
def berlin() -> Iterator[MariaDBServer]:
    with _Berlin() as server:
        yield server


def with_service_user(server: MariaDBServer, name: str) -> str:
    """Create a database with a table, and the user of a service; return the URL."""
    server.create_database(name)
    server.execute(f"CREATE TABLE `{name}`.seen (n INT) ENGINE = InnoDB")
    return grant_service_user(server, name)


def grant_service_user(server: MariaDBServer, name: str) -> str:
    """Create a user who may read and write the tables of a database, and nothing else; return the URL."""
    server.execute(f"CREATE OR REPLACE USER {SERVICE}@'127.0.0.1' IDENTIFIED BY 'secret'")
    server.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{name}`.* TO {SERVICE}@'127.0.0.1'")
    return make_url(server.url(name)).set(username=SERVICE, password="secret").render_as_string(hide_password=False)


def insert(connection: Connection) -> int:
    """Write a row, and return the port of its server."""
    connection.execute(INSERT)
    found: int = connection.scalar(SERVER)
    return found


# --- Time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)], ids=["spring", "autumn"]
)
def test_the_clock_of_the_database_is_continuous_when_daylight_saving_time_begins_and_ends(
    berlin: MariaDBServer, change: datetime
) -> None:
    database = Database(berlin.create_database("clock"), "test", pool_size=1)
    instants = [(change + timedelta(minutes=minutes)).timestamp() for minutes in range(-90, 91, 10)]

    def read(connection: Connection) -> tuple[list[float], set[timedelta]]:
        clock, hours = list[float](), set[timedelta]()
        for instant in instants:
            connection.execute(text(f"SET TIMESTAMP = {instant}"))
            clock.append(connection.execute(select(now())).scalar_one())
            hours.add(connection.execute(text("SELECT TIMEDIFF(NOW(), UTC_TIMESTAMP())")).scalar_one())
        return clock, hours

    try:
        clock, hours = database.read(read)
    finally:
        database.close()

    assert clock == instants
    assert len(hours) == 2, "the time zone of this server must change its offset in between"


# --- A server that becomes read-only ---------------------------------------------------------------------------------


@pytest.fixture
def first_url(mariadb: MariaDBServer) -> Iterator[str]:
    yield with_service_user(mariadb, "failing_over")
    mariadb.execute("SET GLOBAL read_only = 0")
    mariadb.drop_database("failing_over")


@pytest.fixture
def proxy(mariadb: MariaDBServer, first_url: str) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", mariadb.port) as proxy:
        yield proxy


@pytest.fixture
def database(proxy: TcpProxy, first_url: str) -> Iterator[Database]:
    """A database behind a proxy; all connections of its pool are open."""
    url = make_url(first_url).set(port=proxy.port).render_as_string(hide_password=False)
    database = Database(url, "main", pool_size=CONNECTIONS)
    open_all(database)
    assert proxy.connections == CONNECTIONS
    yield database
    database.close()


def open_all(database: Database, depth: int = CONNECTIONS) -> None:
    """Use ``depth`` connections at the same time."""

    def use(connection: Connection) -> None:
        connection.scalar(SERVER)
        open_all(database, depth - 1)

    if depth:
        database.read(use)


def test_writes_go_to_the_new_primary_behind_the_same_address_after_the_old_one_became_read_only(
    mariadb: MariaDBServer, berlin: MariaDBServer, proxy: TcpProxy, database: Database
) -> None:
    assert database.write(insert) == mariadb.port
    with_service_user(berlin, "failing_over")

    mariadb.execute("SET GLOBAL read_only = 1")
    proxy.switch("127.0.0.1", berlin.port)

    assert [database.write(insert) for _ in range(2 * CONNECTIONS)] == [berlin.port] * 2 * CONNECTIONS
    assert mariadb.execute("SELECT COUNT(*) FROM failing_over.seen") == ((1,),)


def test_a_primary_that_is_read_only_is_unavailable_for_writes_only(mariadb: MariaDBServer, database: Database) -> None:
    mariadb.execute("SET GLOBAL read_only = 1")

    with pytest.raises(errors.StoreUnavailable, match="read-only"):
        database.write(insert)
    assert database.read(lambda connection: connection.scalar(SERVER)) == mariadb.port

    mariadb.execute("SET GLOBAL read_only = 0")
    assert database.write(insert) == mariadb.port


def test_http_answers_503_while_the_database_is_read_only(mariadb: MariaDBServer, tmp_path: Path) -> None:
    url = mariadb.create_database("http_failing_over")
    schema = Database(url, MAIN.name)
    MAIN.upgrade(schema)
    schema.close()
    as_service = grant_service_user(mariadb, "http_failing_over")
    file = tmp_path / "moorage.conf"
    file.write_text(f"[placement_api]\nauth_strategy = noauth2\n[database]\nconnection = {as_service}\n")
    made = wsgi.make(options.new(files=[file]), threads=2)
    api = falcon.testing.TestClient(lambda environ, start_response: made(environ, start_response))

    def create(name: str) -> int:
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement latest"}
        answer = api.simulate_post("/resource_providers", headers=headers, json={"name": name})
        status: int = answer.status_code
        return status

    try:
        assert create("one") == 200
        mariadb.execute("SET GLOBAL read_only = 1")
        assert [create("two") for _ in range(3)] == [503] * 3
        mariadb.execute("SET GLOBAL read_only = 0")
        assert create("two") == 200
    finally:
        mariadb.execute("SET GLOBAL read_only = 0")
        mariadb.drop_database("http_failing_over")


def test_an_answer_that_the_driver_cannot_read_means_that_the_server_is_unavailable() -> None:
    unreadable = pymysql.err.InternalError("Packet sequence number wrong - got 5 expected 1")

    assert faults.is_away(exc.InternalError("SELECT 1", None, unreadable))
    # An error in the statement itself has a code, and does not mean that.
    assert not faults.is_away(exc.InternalError("SELECT 1", None, pymysql.err.InternalError(1815, "other")))


class _FailsOnce:
    """Work that gets an error of the server at its first try."""

    def __init__(self, fail: Callable[[Connection], object]) -> None:
        self.fail = fail
        self.connections: list[int] = []

    def __call__(self, connection: Connection) -> int:
        self.connections.append(connection.scalar(text("SELECT CONNECTION_ID()")))
        if len(self.connections) == 1:
            self.fail(connection)
        return insert(connection)


# Codes like 1040, 1129 and 2002 occur only while a connection is opened.
@pytest.mark.parametrize("code", [1047, 1053, 1180, 1184, 1290, 1317, 1792, 1836, 1927, 3032, 3100, 3101, 9001])
def test_after_an_unavailability_error_the_write_is_repeated_on_a_new_connection_and_no_old_one_is_used_again(
    database: Database, code: int
) -> None:
    former = {database.read(lambda connection: connection.scalar(text("SELECT CONNECTION_ID()")))}
    signal = text(f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'away'")
    work = _FailsOnce(lambda connection: connection.execute(signal))

    database.write(work)

    first, second = work.connections
    assert second > first  # connection ids ascend
    after = {database.read(lambda connection: connection.scalar(text("SELECT CONNECTION_ID()"))) for _ in range(8)}
    assert min(after) >= second > max(former)


@pytest.mark.parametrize("code", [1047, 1180, 1290, 1836, 3100, 3101])
def test_a_persistent_unavailability_error_is_raised_as_store_unavailable(database: Database, code: int) -> None:
    signal = text(f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'not here'")

    with pytest.raises(errors.StoreUnavailable, match="not here"):
        database.write(lambda connection: connection.execute(signal) and None)


# --- A primary and a replica, both in the URL ------ -----------------------------------------------------------------


@pytest.fixture
def pair(mariadb: MariaDBServer, berlin: MariaDBServer, first_url: str) -> Iterator[Database]:
    """A database with two hosts, a primary and a replica."""
    with_service_user(berlin, "failing_over")
    hosts = f"127.0.0.1:{mariadb.port},127.0.0.1:{berlin.port}"
    database = Database(f"mysql+pymysql://{SERVICE}:secret@{hosts}/failing_over", "main", pool_size=CONNECTIONS)
    yield database
    database.close()
    berlin.execute("SET GLOBAL read_only = 0")
    berlin.drop_database("failing_over")


def test_writes_go_to_the_second_host_when_the_first_becomes_a_replica_and_return_to_the_first(
    mariadb: MariaDBServer, berlin: MariaDBServer, pair: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_connections, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(cluster_connections, "_FRESH_SECONDS", 0.0)
    berlin.execute("SET GLOBAL read_only = 1")
    assert pair.write(insert) == mariadb.port

    mariadb.execute("SET GLOBAL read_only = 1")
    berlin.execute("SET GLOBAL read_only = 0")
    assert [pair.write(insert) for _ in range(2 * CONNECTIONS)] == [berlin.port] * 2 * CONNECTIONS
    time.sleep(0.3)  # meanwhile the first host is tried again
    assert [pair.read(lambda connection: connection.scalar(SERVER)) for _ in range(CONNECTIONS)] == (
        [berlin.port] * CONNECTIONS
    )

    berlin.execute("SET GLOBAL read_only = 1")
    mariadb.execute("SET GLOBAL read_only = 0")
    wait_until(lambda: pair.write(insert) == mariadb.port, "the first host to be written again")


def test_a_process_that_starts_while_the_first_host_is_read_only_writes_to_the_second(
    mariadb: MariaDBServer, berlin: MariaDBServer, pair: Database
) -> None:
    mariadb.execute("SET GLOBAL read_only = 1")
    assert pair.write(insert) == berlin.port


def test_if_all_hosts_are_read_only_the_database_is_unavailable_for_writes_only(
    mariadb: MariaDBServer, berlin: MariaDBServer, pair: Database
) -> None:
    for server in (mariadb, berlin):
        server.execute("SET GLOBAL read_only = 1")
    with pytest.raises(errors.StoreUnavailable, match="read-only"):
        pair.write(insert)
    assert pair.read(lambda connection: connection.scalar(SERVER)) in (mariadb.port, berlin.port)
