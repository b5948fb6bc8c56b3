"""The disk of the database is slow: statements take seconds, calls succeed or fail in time, nothing is done twice."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pymysql
import pytest
from sqlalchemy import Connection, text
from support.processes.fault_servers import check
from support.processes.faulty_cloud import FaultyCloud
from support.processes.load import Load
from support.processes.stopwatch import Stopwatch

from harness.processes import pause
from harness.servers import USER, MariaDBServer
from moorage import errors
from moorage.db.database import Database
from moorage.messages import ListInstances

pytestmark = pytest.mark.timeout(600)

LONG = os.environ.get("DRILLS") == "long"
#: How often the database is paused, the seconds of each pause, and the seconds between two pauses.
PAUSES, PAUSED, RUNNING = 30 if LONG else 5, 1.5, 0.3
PATIENCE = 2.0


def test_builds_end_and_calls_end_in_time_while_every_statement_takes_seconds(
    cloud: FaultyCloud, mariadb: MariaDBServer, record_property: Callable[[str, object], None]
) -> None:
    client = cloud.client("conductor", timeout=PATIENCE)
    longest = 0.0
    with Load(cloud) as load:
        load.ended.wait(1.0)
        for _ in range(PAUSES):
            pause(mariadb.pid)
            try:
                load.ended.wait(PAUSED)
            finally:
                os.kill(mariadb.pid, signal.SIGCONT)
            load.ended.wait(RUNNING)
            begun = time.monotonic()
            with suppress(errors.Unavailable):
                client.call(ListInstances())
            longest = max(longest, time.monotonic() - begun)
        back = time.monotonic()
        load.wait_until_recovered(back)
    assert not load.faults, load.faults
    assert longest < PATIENCE + 1.0
    check(cloud, [], 60.0)
    record_property("measured", f"{PAUSES} times no disk for {PAUSED:g} s: recovery in {load.recovery(back):.1f} s")


# --- No write ends ----------------------------------------------------------------------------------------------------


@contextmanager
def no_writes(server: MariaDBServer) -> Iterator[None]:
    """Block every write and every COMMIT, as a backup or an unresponsive disk does."""
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user=USER, password=server.password, ssl_disabled=True
    )
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("SET SESSION lock_wait_timeout = 5")
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        yield


@pytest.fixture
def database(mariadb: MariaDBServer, mariadb_url: str) -> Iterator[Database]:
    opened = Database(
        mariadb_url, "main", pool_size=4, lock_wait=1.0, connect=1.0, statement_limit=2.0, answer_margin=1.0
    )
    with opened.engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (n INT) ENGINE = InnoDB"))
    yield opened
    opened.close()


def test_a_blocked_write_fails_with_a_typed_error_and_writes_nothing(
    database: Database, mariadb: MariaDBServer
) -> None:
    watch = Stopwatch()
    with no_writes(mariadb):
        with pytest.raises((errors.Overloaded, errors.StoreUnavailable)):
            database.write(lambda connection: connection.execute(text("INSERT INTO seen VALUES (1)")) and None)
        assert watch.seconds < 10.0
        assert database.read(lambda connection: connection.scalar(text("SELECT COUNT(*) FROM seen"))) == 0

    database.write(lambda connection: connection.execute(text("INSERT INTO seen VALUES (2)")) and None)
    assert database.read(lambda connection: list(connection.scalars(text("SELECT n FROM seen")))) == [2]


def test_a_commit_that_is_not_answered_fails_with_a_typed_error_and_is_carried_out_once(
    database: Database, mariadb: MariaDBServer
) -> None:
    tries: list[int] = []

    def add_once(connection: Connection) -> None:
        # Idempotent, like every unit of work: a COMMIT that has failed for its caller may be carried out later.
        connection.execute(text("INSERT INTO seen SELECT 1 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM seen)"))
        tries.append(1)
        if len(tries) == 1:
            pause(mariadb.pid)

    watch = Stopwatch()
    try:
        with pytest.raises(errors.StoreUnavailable):
            database.write(add_once)
        assert watch.seconds < 10.0
    finally:
        os.kill(mariadb.pid, signal.SIGCONT)

    database.write(add_once)
    assert database.read(lambda connection: list(connection.scalars(text("SELECT n FROM seen")))) == [1]
