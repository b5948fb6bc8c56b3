"""Test that a refused login is a different error from a server that is away, and ends a service with advice."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kombu
import pytest
from sqlalchemy import make_url, text
from support.processes.forked_process import run_forked
from support.processes.stopwatch import Stopwatch

from harness.servers import MariaDBServer, RabbitMQServer
from harness.tcp_proxy import TcpProxy
from moorage import errors
from moorage.bus.bus import Bus, serves
from moorage.bus.rabbit import tls
from moorage.bus.rabbit.direct import DirectBus, DirectClient
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import ListCells
from moorage.model import Cell
from moorage.service.process import until_available


def wrong(url: str, *, password: bool) -> str:
    """Return the address with another password, or with another database or virtual host."""
    head, _, name = url.partition("@")
    if password:
        return f"{head.rpartition(':')[0]}:wrong@{name}"
    return f"{head}@{name.partition('/')[0]}/no_such_place"


@pytest.mark.parametrize("password", [True, False], ids=["password", "name"])
def test_a_database_that_refuses_a_login_is_not_waited_for(mariadb_url: str, *, password: bool) -> None:
    url = wrong(mariadb_url, password=password)
    watch = Stopwatch()
    remedy = r"\); check user and password\.$" if password else r"\); check the database name\b"
    with pytest.raises(errors.StoreRefused, match=remedy) as caught:
        until_available(lambda: Database(url, "main").read(lambda connection: None), "the main database")
    assert watch.seconds < 5
    assert ":wrong@" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


#: Reasons for which the server refuses an account: the statements that cause them, and the remedies that it names.
REFUSALS = {
    "from another machine": ("", "check user and password|check the user, and from which machines it may log in"),
    "locked": ("ALTER USER refused_user@'127.0.0.1' ACCOUNT LOCK", "unlock this account"),
    "expired": ("ALTER USER refused_user@'127.0.0.1' PASSWORD EXPIRE", "give this account a new password"),
    "may only read": (
        "REVOKE INSERT ON `{name}`.* FROM refused_user@'127.0.0.1'",
        "grant this user the privilege that it lacks",
    ),
    "not on this database": (
        "REVOKE ALL PRIVILEGES ON `{name}`.* FROM refused_user@'127.0.0.1'",
        "check the database name, and the privileges of this user on it",
    ),
    "by a socket only": (
        "ALTER USER refused_user@'127.0.0.1' IDENTIFIED VIA unix_socket",
        "check the user, and how this account logs in",
    ),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_database_that_refuses_an_account_is_not_waited_for(
    mariadb: MariaDBServer, mariadb_url: str, why: str
) -> None:
    url = make_url(mariadb_url)
    mariadb.execute(f"CREATE TABLE `{url.database}`.seen (n INT)")
    mariadb.execute("CREATE OR REPLACE USER refused_user@'127.0.0.1' IDENTIFIED BY 'secret'")
    mariadb.execute(f"GRANT SELECT, INSERT ON `{url.database}`.* TO refused_user@'127.0.0.1'")
    statement, remedy = REFUSALS[why]
    if statement:
        mariadb.execute(statement.format(name=url.database))
    else:
        url = url.update_query_dict({"bind_address": "127.0.0.9"})
    database = Database(
        url.set(username="refused_user", password="secret").render_as_string(hide_password=False), "main", pool_size=1
    )
    with pytest.raises(errors.StoreRefused, match=rf"\); ({remedy})") as caught:
        until_available(
            lambda: database.write(lambda connection: connection.execute(text("INSERT INTO seen VALUES (1)"))),
            "the main database",
        )
    assert "secret" not in str(caught.value)
    database.close()
    mariadb.execute("DROP USER refused_user@'127.0.0.1'")


def test_privileges_that_are_granted_again_are_used_without_a_restart(mariadb: MariaDBServer, mariadb_url: str) -> None:
    url = make_url(mariadb_url)
    mariadb.execute(f"CREATE TABLE `{url.database}`.seen (n INT)")
    mariadb.execute("CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'secret'")
    mariadb.execute(f"GRANT SELECT ON `{url.database}`.* TO reader@'127.0.0.1'")
    named = url.set(username="reader", password="secret").render_as_string(hide_password=False)
    with closing(Database(named, "main", pool_size=2)) as database:

        def write() -> None:
            database.write(lambda connection: connection.execute(text("INSERT INTO seen VALUES (1)")))

        # Two connections: one is refused, and the other one is idle meanwhile.
        database.read(lambda _: database.read(lambda connection: connection.execute(text("SELECT * FROM seen"))))
        with pytest.raises(errors.StoreRefused):
            write()
        mariadb.execute(f"GRANT INSERT ON `{url.database}`.* TO reader@'127.0.0.1'")
        write()
        database.read(lambda _: write())
    mariadb.execute("DROP USER reader@'127.0.0.1'")


def test_a_database_that_is_dropped_and_restored_is_used_again(mariadb: MariaDBServer, mariadb_url: str) -> None:
    name = make_url(mariadb_url).database
    mariadb.execute(f"CREATE TABLE `{name}`.seen (n INT)")
    with closing(Database(mariadb_url, "main", pool_size=1)) as database:

        def seen() -> list[int]:
            return list(database.read(lambda connection: connection.scalars(text("SELECT n FROM seen")).all()))

        assert seen() == []
        mariadb.execute(f"DROP DATABASE `{name}`")
        for _ in range(2):  # on the old connection, and on a new one
            with pytest.raises(errors.StoreRefused, match=r"\); (check the database name|restore the database)"):
                seen()
        mariadb.execute(f"CREATE DATABASE `{name}`")
        with pytest.raises(errors.StoreRefused, match=r"seen' doesn't exist.*\); restore the database, or create it"):
            seen()
        mariadb.execute(f"CREATE TABLE `{name}`.seen SELECT 7 AS n")
        assert seen() == [7]


def test_a_database_with_a_statement_based_binlog_is_not_waited_for(mariadb_url: str) -> None:
    database = Database(mariadb_url, "main", pool_size=1)
    refuse = text("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1665")
    with pytest.raises(errors.StoreRefused, match=r"\); set its binlog_format to MIXED or ROW\."):
        until_available(lambda: database.write(lambda connection: connection.execute(refuse)), "the main database")
    database.close()


def test_the_placement_api_reports_a_refused_login_before_it_starts_a_worker(mariadb_url: str, tmp_path: Path) -> None:
    words = ["placement-api", "--port", "0", "--auth-strategy", "noauth2", "--database-url"]
    done = run_forked([*words, wrong(mariadb_url, password=True)], tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert output.count("; check user and password.") == 1
    assert ":wrong@" not in output
    assert "Booting worker" not in output


@pytest.mark.parametrize("password", [True, False], ids=["password", "virtual host"])
def test_a_broker_that_refuses_a_login_is_not_waited_for(rabbitmq_url: str, *, password: bool) -> None:
    bus = Bus(options.new({"DEFAULT": {"transport_url": wrong(rabbitmq_url, password=password)}}))
    with pytest.raises(errors.BusRefused, match="check the user, the password and the virtual host") as caught:
        until_available(bus.probe, "the broker")
    bus.close()
    assert ":wrong@" not in str(caught.value)


class Guest:
    """A user of one virtual host, which a test can restrict."""

    def __init__(self, rabbitmq: RabbitMQServer, url: str) -> None:
        self._broker = rabbitmq
        self._vhost = url.rpartition("/")[2]
        self._name = f"guest-{self._vhost}"
        rabbitmq.add_user(self._name, "right", [self._vhost])
        self.url = f"rabbit://{self._name}:right@127.0.0.1:{rabbitmq.port}/{self._vhost}"

    def change_password(self, password: str) -> None:
        user = f'<<"{self._name}">>'
        self._broker.evaluate(f'rabbit_auth_backend_internal:change_password({user}, <<"{password}">>, {user})')

    def end_connections(self) -> None:
        its_own = f'[{{user, <<"{self._name}">>}}] =:= (catch rabbit_networking:connection_info(C, [user]))'
        self._broker.evaluate(
            f'[rabbit_networking:close_connection(C, "test") || C <- rabbit_networking:connections(), {its_own}], ok'
        )

    def limit(self, name: str | None) -> None:
        """Set a limit of the virtual host to zero, or remove all limits."""
        vhost, user = f'<<"{self._vhost}">>', f'<<"{self._name}">>'
        if name is None:
            self._broker.evaluate(f"rabbit_vhost_limit:clear({vhost}, {user})")
        else:
            self._broker.evaluate(f'rabbit_vhost_limit:set({vhost}, [{{<<"{name}">>, 0}}], {user})')


@pytest.fixture
def guest(rabbitmq: RabbitMQServer, rabbitmq_url: str) -> Guest:
    return Guest(rabbitmq, rabbitmq_url)


@pytest.mark.parametrize("name", ["max-connections", "max-queues"])
def test_a_limit_of_the_broker_is_an_unavailable_bus_and_no_refusal(guest: Guest, name: str) -> None:
    guest.limit(name)
    with pytest.raises(errors.BusUnavailable, match=r"limit .* is reached") as caught:
        begin_to_serve(guest.url)
    assert type(caught.value) is errors.BusUnavailable
    if name == "max-connections":
        with pytest.raises(errors.BusUnavailable, match=r"limit .* is reached") as caught:
            DirectClient(DirectBus(guest.url, options.new()), "placement", None, 5.0).call(ListCells())
        assert type(caught.value) is errors.BusUnavailable
    guest.limit(None)
    begin_to_serve(guest.url)


def test_a_full_queue_is_an_unavailable_bus_with_that_reason(rabbitmq: RabbitMQServer, placement: str) -> None:
    vhost = placement.rpartition("/")[2]
    full = '[{<<"max-length">>, 0}, {<<"overflow">>, <<"reject-publish">>}]'
    rabbitmq.evaluate(f'rabbit_policy:set(<<"{vhost}">>, <<"full">>, <<".*">>, {full}, 0, <<"queues">>, <<"test">>)')
    conf = options.new({"DEFAULT": {"transport_url": placement}})
    refused = pytest.raises(errors.BusUnavailable, match="refuses the message, as its queue is full")
    with closing(Bus(conf)) as bus, refused:
        bus.client("placement", timeout=5.0).call(ListCells())


class Cells:
    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        return []


def test_a_service_whose_login_is_refused_for_a_while_tries_again_slowly_and_continues(
    guest: Guest, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Bus(options.new({"DEFAULT": {"transport_url": guest.url}}))) as bus:
        bus.server("placement", "one", [Cells()]).start()
        client = bus.client("placement", timeout=5.0)
        assert client.call(ListCells()) == []
        guest.change_password("another")
        # The first try may be made before the connections are known to have ended. If another test of this process has
        # set up the log, the line of a later try is not repeated.
        caplog.clear()
        begin = time.monotonic()
        guest.end_connections()
        time.sleep(3.0)
        tries = sum("Unable to connect" in record.getMessage() for record in caplog.records)
        # The server and the receiver of answers try once a second each; the library also tries an unused connection.
        assert 0 < tries <= 4 * (time.monotonic() - begin)
        guest.change_password("right")
        end = time.monotonic() + 20.0
        while True:
            try:
                assert client.call(ListCells()) == []
                break
            except (errors.BusUnavailable, errors.NoReply):
                assert time.monotonic() < end
                time.sleep(0.1)


def test_a_connection_that_the_broker_has_ended_is_dropped_without_another_connection(rabbitmq_url: str) -> None:
    url = make_url(rabbitmq_url)
    with TcpProxy("127.0.0.1", url.port or 0) as proxy:
        moved = url.set(drivername="amqp", port=proxy.port).render_as_string(hide_password=False)
        # kombu has types only in part.
        connection: Any = kombu.Connection(moved, connect_timeout=5.0)  # type: ignore[attr-defined,no-untyped-call]
        connection.connect().collect()  # as the library does in this case
        proxy.go_silent(new_too=True)
        watch = Stopwatch()
        tls.drop(connection)
        assert watch.seconds < 2.5


@pytest.fixture
def placement(rabbitmq_url: str) -> str:
    """The address of a broker that has the queues of topic `placement`."""
    begin_to_serve(rabbitmq_url)
    return rabbitmq_url


def begin_to_serve(url: str) -> None:
    bus = Bus(options.new({"DEFAULT": {"transport_url": url}}))
    try:
        bus.server("placement", "one", []).start()
    finally:
        bus.close()


def test_a_broker_with_queues_of_another_type_refuses_the_service_with_the_name_of_the_queue(placement: str) -> None:
    with pytest.raises(errors.BusRefused, match=r"'x-queue-type' for queue 'placement'.* check .*the virtual host"):
        until_available(lambda: begin_to_serve(f"{placement}?rabbit_quorum_queue=true"), "the broker")


def test_a_broker_refuses_the_service_of_a_user_without_the_right_to_declare_queues(
    rabbitmq: RabbitMQServer, placement: str
) -> None:
    address = placement.rpartition("@")[2]
    vhost = address.rpartition("/")[2]
    rabbitmq.add_user("reader", "secret", [vhost])
    names = f'<<"reader">>, <<"{vhost}">>, <<"^$">>, <<".*">>, <<".*">>, <<"reader">>'
    rabbitmq.evaluate(f"rabbit_auth_backend_internal:set_permissions({names})")
    with pytest.raises(errors.BusRefused, match=r"ACCESS_REFUSED.* 'moorage'.* check the user") as caught:
        until_available(lambda: begin_to_serve(f"rabbit://reader:secret@{address}"), "the broker")
    assert "secret" not in str(caught.value)


def test_user_and_password_in_an_address_may_have_any_character(rabbitmq: RabbitMQServer, placement: str) -> None:
    address = placement.rpartition("@")[2]
    user, password = "odd/user", "/a?b#c@d:e%f,g+h/"
    rabbitmq.add_user(user, password, [address.rpartition("/")[2]])
    url = f"rabbit://{quote(user, safe='')}:{quote(password, safe='')}@{address}"
    begin_to_serve(url)
    direct = DirectBus(url, options.new())
    assert direct.servers_of("placement") == 0
    direct.close()


SERVED: Sequence[Sequence[str]] = [
    ["db", "upgrade"],
    ["scheduler", "--name", "a"],
    ["placement", "--name", "a"],
    ["placement-api", "--port", "0"],
    ["conductor", "--name", "a"],
    ["conductor", "--cell", "c", "--name", "a"],
    ["compute", "--cell", "c", "--fake-hosts", "1"],
    ["host", "list"],
    ["status"],
    ["audit"],
]


@pytest.mark.parametrize("command", SERVED, ids=" ".join)
def test_without_a_configuration_a_command_writes_nothing_and_names_the_missing_option(
    command: list[str], tmp_path: Path
) -> None:
    # In another process, because a service handles the signals of its process.
    done = run_forked(command, tmp_path, {"MOORAGE_CONFIG": ""})
    assert done.returncode in {1, 2}
    # A service writes to its log.
    assert (done.stdout + done.stderr).count("is not set, and no configuration file was read") == 1
    assert list(tmp_path.iterdir()) == []
