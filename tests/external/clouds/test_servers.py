"""Private servers keep their data when they are stopped or killed, and do not affect each other."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pymysql
import pytest
from kombu.connection import Connection
from sqlalchemy.engine import make_url

from harness.servers import MariaDBServer, RabbitMQServer


@pytest.fixture
def row(mariadb: MariaDBServer, mariadb_url: str) -> Iterator[str]:
    """A database with one committed row; if the test has stopped the session's server, it is started again."""
    write(mariadb_url, "CREATE TABLE boats (name VARCHAR(20)) ENGINE=InnoDB")
    write(mariadb_url, "INSERT INTO boats VALUES ('kept')")
    yield mariadb_url
    if mariadb._main is None:
        mariadb.start()


def connect(url: str) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    where = make_url(url)
    return pymysql.connect(
        host=where.host,
        port=where.port or 0,
        user=where.username,
        password=str(where.password),
        database=where.database,
    )


def write(url: str, statement: str) -> tuple[tuple[object, ...], ...]:
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        connection.commit()
        return cursor.fetchall()


def broker(url: str) -> Connection:
    url, options = url.replace("rabbit://", "pyamqp://", 1), {"confirm_publish": True}
    return Connection(url, transport_options=options)  # type: ignore[no-untyped-call]  # kombu has no types


def send_durable(url: str, text: str) -> None:
    with broker(url) as connection, connection.SimpleQueue("letters") as queue:
        queue.put(text)


def receive(url: str) -> str:
    with broker(url) as connection, connection.SimpleQueue("letters") as queue:
        message = queue.get(timeout=10)
        message.ack()
        return str(message.payload)


def test_a_committed_row_survives_a_stop_of_mariadb(mariadb: MariaDBServer, row: str) -> None:
    mariadb.stop()
    mariadb.start()

    assert write(row, "SELECT name FROM boats") == (("kept",),)


def test_a_committed_row_survives_a_sigkill_of_mariadb(mariadb: MariaDBServer, row: str) -> None:
    mariadb.kill()
    mariadb.start()

    assert write(row, "SELECT name FROM boats") == (("kept",),)


def test_a_stopped_mariadb_accepts_no_connections(mariadb: MariaDBServer, row: str) -> None:
    mariadb.stop()

    with pytest.raises(pymysql.err.OperationalError):
        write(row, "SELECT 1")


def test_creating_a_database_again_empties_it_even_if_a_transaction_is_open_in_it(
    mariadb: MariaDBServer, row: str
) -> None:
    name = make_url(row).database or ""
    other = connect(row)
    with other.cursor() as cursor:
        cursor.execute("SELECT * FROM boats")  # locks the table's definition until the transaction ends

        mariadb.create_database(name)

        assert write(row, "SHOW TABLES") == ()
        with pytest.raises(pymysql.err.OperationalError):
            cursor.execute("SELECT 1")
    other.close()


@pytest.fixture(scope="module")
def second_mariadb(mariadb: MariaDBServer) -> Iterator[MariaDBServer]:
    """A second server with some options; the test is skipped if MariaDB is not installed."""
    with MariaDBServer("transaction-isolation=READ-UNCOMMITTED", "max-connections=77") as server:
        yield server


def test_options_given_to_mariadb_override_the_defaults(second_mariadb: MariaDBServer) -> None:
    found = second_mariadb.execute("SELECT @@GLOBAL.tx_isolation, @@max_connections")

    assert found == (("READ-UNCOMMITTED", 77),)


def test_each_mariadb_has_its_own_folder_for_temporary_tables(
    mariadb: MariaDBServer, second_mariadb: MariaDBServer
) -> None:
    # When a server starts, it removes all files in this folder.
    folders = {server.execute("SELECT @@tmpdir") for server in (mariadb, second_mariadb)}

    assert len(folders) == 2


def test_a_durable_message_survives_a_stop_of_rabbitmq(rabbitmq: RabbitMQServer, rabbitmq_url: str) -> None:
    send_durable(rabbitmq_url, "kept")

    rabbitmq.stop()
    rabbitmq.start()

    assert receive(rabbitmq_url) == "kept"


def test_a_durable_message_survives_a_sigkill_of_rabbitmq(rabbitmq: RabbitMQServer, rabbitmq_url: str) -> None:
    send_durable(rabbitmq_url, "kept")

    rabbitmq.kill()
    rabbitmq.start()

    assert receive(rabbitmq_url) == "kept"


def test_two_rabbitmqs_do_not_affect_each_other(rabbitmq: RabbitMQServer) -> None:
    with RabbitMQServer() as other:
        send_durable(rabbitmq.url, "for the first")
        send_durable(other.url, "for the second")
        other.kill()

        assert receive(rabbitmq.url) == "for the first"

        other.start()
        assert receive(other.url) == "for the second"


def test_closing_a_server_ends_its_processes_and_removes_its_data(
    mariadb: MariaDBServer, rabbitmq: RabbitMQServer
) -> None:
    before = set(psutil.Process().children(recursive=True))
    with MariaDBServer() as database, RabbitMQServer() as queues:
        directories = [Path(database.tempdir), Path(queues.tempdir)]
        assert all(directory.is_dir() for directory in directories)

    assert set(psutil.Process().children(recursive=True)) <= before
    assert not any(directory.exists() for directory in directories)


def test_servers_end_if_their_parent_process_is_killed(
    mariadb: MariaDBServer, rabbitmq: RabbitMQServer, tmp_path: Path
) -> None:
    script = (
        "from harness.servers import *\n"
        "import time\n"
        "a, b = MariaDBServer(), RabbitMQServer()\n"
        "a.start(); b.start()\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        servers = psutil.Process(parent.pid).children(recursive=True)
        assert {"mariadbd", "epmd", "beam.smp"} <= {server.name() for server in servers}

        parent.send_signal(signal.SIGKILL)

    deadline = time.monotonic() + 20
    while any(server.is_running() for server in servers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [server for server in servers if server.is_running()] == []
    shutil.rmtree(tmp_path)  # a killed parent cannot remove the data
