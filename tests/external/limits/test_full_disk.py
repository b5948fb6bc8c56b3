"""The disk of the database is full: writers get typed errors, no write is partial, and work continues afterwards."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import falcon.testing
import pytest
from sqlalchemy import Connection, text
from support.processes import private_servers
from support.processes.fault_servers import Server, check, delete
from support.processes.faulty_cloud import FaultyCloud
from support.processes.limited_servers import MariaDBOnASmallDisk
from support.processes.load import Load
from support.processes.stopwatch import Stopwatch

from harness.audit import judge
from harness.drills.cloud import unlogged
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.config import options
from moorage.db.database import Database
from placement_store.http import wsgi
from placement_store.schema import MAIN

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

#: The maximum number of writes until the pages that the tables already have are full.
MOST = 2000


@pytest.fixture(scope="module")
def small_server() -> Iterator[MariaDBOnASmallDisk]:
    yield from private_servers.run(MariaDBOnASmallDisk)


@pytest.fixture
def small(small_server: MariaDBOnASmallDisk) -> Iterator[MariaDBOnASmallDisk]:
    """A server on a small disk, which is freed after the test."""
    yield small_server
    small_server.free_disk()


def test_http_answers_503_while_the_disk_is_full_and_refused_requests_have_written_nothing(
    small: MariaDBOnASmallDisk, tmp_path: Path
) -> None:
    url = small.create_database("http_full")
    store = Database(url, MAIN.name)
    MAIN.upgrade(store)
    file = tmp_path / "moorage.conf"
    file.write_text(f"[placement_api]\nauth_strategy = noauth2\n[database]\nconnection = {url}\n")
    made = wsgi.make(options.new(files=[file]), threads=2)
    api = falcon.testing.TestClient(lambda environ, start_response: made(environ, start_response))
    headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement latest"}

    def create() -> tuple[str, int]:
        uuid = ids.fresh()
        body = {"name": f"{uuid}{'n' * 160}", "uuid": uuid}
        watch = Stopwatch()
        status: int = api.simulate_post("/resource_providers", headers=headers, json=body).status_code
        assert watch.seconds < 10.0
        return uuid, status

    answers = [create()]
    small.fill_disk()
    while answers[-1][1] == 200 and len(answers) < MOST:
        answers.append(create())
    answers += [create() for _ in range(5)]
    listed = api.simulate_get("/resource_providers", headers=headers)
    assert listed.status_code == 200, "existing rows can be read"
    small.free_disk()
    answers.append(create())

    assert answers[-1][1] == 200
    assert {status for _, status in answers} == {200, 503}, answers
    names = {row["uuid"] for row in api.simulate_get("/resource_providers", headers=headers).json["resource_providers"]}
    assert names == {uuid for uuid, status in answers if status == 200}
    assert judge(store, set()).clean
    store.close()


def test_a_cloud_under_load_continues_without_a_restart_when_the_disk_has_room_again(
    small: MariaDBOnASmallDisk, rabbitmq_url: str, record_property: Callable[[str, object], None]
) -> None:
    with unlogged(), FaultyCloud(rabbitmq_url, small.create_database("cloud_full")) as cloud:
        cloud.begin()
        services = [process.pid for process in cloud.processes.values()]
        standing = Server(cloud, 1, zone="nova")
        standing.order_build()
        before = standing.becomes("active")
        with Load(cloud) as load:
            load.ended.wait(1.0)
            small.fill_disk()
            wait_until(
                lambda: load.faults or any("is full" in cloud.log(role) for role in cloud.ROLES),
                "the tables to be full",
            )
            assert not load.faults, load.faults  # then no client writes any more
            load.ended.wait(3.0)
            small.free_disk()
            back = time.monotonic()
            load.wait_until_recovered(back)
        assert not load.faults, load.faults
        after = standing.show()
        assert (after.state, after.host, after.claim_id) == (before.state, before.host, before.claim_id)
        check(cloud, [standing], 60.0)
        delete([standing])
        check(cloud, [], 60.0)
        assert [process.pid for process in cloud.processes.values() if process.poll() is None] == services
        record_property("measured", f"disk of the database full: recovery in {load.recovery(back):.1f} s")


# --- With a binary log, MariaDB waits for room ------------------------------------------------------------------------

STATEMENT = 1.0


@pytest.fixture(scope="module")
def logging_server() -> Iterator[MariaDBOnASmallDisk]:
    yield from private_servers.run(lambda: MariaDBOnASmallDisk("log-bin=binlog", "server-id=1"))


def test_a_commit_that_waits_for_room_is_ended_in_time_and_its_rows_are_not_written(
    logging_server: MariaDBOnASmallDisk,
) -> None:
    database = Database(logging_server.create_database("log_full"), "main", statement_limit=STATEMENT)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (n INT PRIMARY KEY, filler VARCHAR(500)) ENGINE = InnoDB"))

    def write(number: int) -> None:
        def work(connection: Connection) -> None:
            if connection.scalar(text("SELECT n FROM seen WHERE n = :n"), {"n": number}) is None:
                connection.execute(text("INSERT INTO seen VALUES (:n, REPEAT('x', 500))"), {"n": number})

        database.write(work)

    logging_server.fill_disk()
    try:
        written, refused = 0, False
        while not refused and written < MOST:
            watch = Stopwatch()
            try:
                write(written)
                written += 1
            except errors.StoreUnavailable:
                refused = True
        assert refused
        # Each try waits for the time limit of a statement.
        assert watch.seconds < 10 * STATEMENT
        kept = database.read(lambda connection: list(connection.scalars(text("SELECT n FROM seen ORDER BY n"))))
        assert kept == list(range(written))
    finally:
        logging_server.free_disk()

    write(written)
    assert database.read(lambda connection: connection.scalar(text("SELECT COUNT(*) FROM seen"))) == written + 1
    database.close()
