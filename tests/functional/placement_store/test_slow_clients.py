"""Test the HTTP API with slow clients and long requests."""

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import falcon.testing
import pytest
import requests
from sqlalchemy import Connection
from support.databases import migrated
from support.http.api import Api, served
from support.http.replies import NEWEST
from support.processes.stopwatch import Stopwatch

from harness.waiting import wait_until
from moorage import context, ids
from moorage.config import options
from moorage.db.database import Database
from placement_store.db import names
from placement_store.http.application import application
from placement_store.http.buffered_worker import BufferedWorker
from placement_store.http.operations import DEADLINE
from placement_store.schema import MAIN

T = TypeVar("T")

SETTINGS = (
    "[placement_api]\nauth_strategy = noauth2\nworkers = 1\nthreads = 2\nreceive_timeout = 3\nserve_metrics = true\n"
)
ADMIN = {"X-Auth-Token": "admin", "OpenStack-API-Version": f"placement {NEWEST}"}
BEGINNING = b"POST /resource_providers HTTP/1.1\r\nHost: moorage\r\nX-Auth-Token: admin\r\n"
HEADERS = BEGINNING + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the server."""
    return tmp_path_factory.mktemp("slow") / "log"


@pytest.fixture(scope="module")
def api(log: Path) -> Iterator[Api]:
    settings = log.with_name("moorage.conf")
    settings.write_text(SETTINGS)
    with served(f"sqlite:///{log.parent}/main.sqlite", log, config_file=settings) as api:
        yield api


def connected(api: Api) -> socket.socket:
    host, _, port = api.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def answer(connection: socket.socket) -> tuple[int, Any]:
    """Return the status and the document of an answer after which the connection is closed."""
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    return reply.status, json.loads(reply.read())


def test_slow_clients_occupy_no_thread(api: Api) -> None:
    with ExitStack() as clients:
        for sent in (b"", b"GET", BEGINNING, HEADERS, HEADERS + b'{"name"'):
            for _ in range(12):
                client = clients.enter_context(connected(api))
                client.sendall(sent)
        watch = Stopwatch()

        assert api.ask("GET", "/resource_providers").status_code == 200
        # Less than the timeout of the slow clients.
        assert watch.seconds < 3


class Worker(BufferedWorker):
    """A worker process in a thread of the test, whose application answers long bodies when the test allows it."""

    def __init__(self, listening: socket.socket) -> None:
        self.app = SimpleNamespace(options=options.new({"placement_api": {"threads": 2}}).placement_api)
        self.sockets = [SimpleNamespace(sock=listening)]
        self.alive, self.ppid = True, os.getppid()
        self.bodies: list[int] = []
        self.go_on = threading.Event()

    def notify(self) -> None:
        """Tell nobody that the process is alive."""

    def received(self) -> int:
        """Return the number of connections with a request that has arrived and is not answered."""
        return sum(bool(one.requests) for server in self._servers for one in [*server.active_channels.values()])

    def wsgi(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            self.bodies.append(len(environ["wsgi.input"].read()))
            assert self.go_on.wait(60)
        start_response("200 OK", [("Content-Length", "0")])
        return []


def test_long_bodies_wait_for_each_other_and_other_requests_do_not_wait_for_them() -> None:
    length = 2**20 + 1
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(7) as threads:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        listening.setblocking(False)
        worker = Worker(listening)
        running = threads.submit(worker.run)
        sent = [threads.submit(requests.post, url, data=bytes(length), timeout=60) for _ in range(6)]
        try:
            wait_until(lambda: worker.bodies and worker.received() == 6, "all bodies")
            for _ in range(10):
                assert requests.get(url, timeout=60).status_code == 200
            assert worker.bodies == [length]
            assert not any(each.done() for each in sent)
        finally:
            worker.go_on.set()
            worker.alive = False
        assert [each.result().status_code for each in sent] == [200] * 6
        running.result(60)
    assert worker.bodies == [length] * 6


@pytest.fixture(scope="module")
def unfinished(api: Api) -> Iterator[dict[str, socket.socket]]:
    """Clients that have each sent a part of a request at the same time, so that one timeout is enough for all."""
    with ExitStack() as clients:
        opened = {}
        for part, sent in (("line", b"GET"), ("headers", BEGINNING), ("body", HEADERS + b'{"name"')):
            opened[part] = clients.enter_context(connected(api))
            opened[part].sendall(sent)
        yield opened


@pytest.mark.parametrize("part", ["line", "headers", "body"])
def test_a_request_that_does_not_arrive_in_time_is_refused(
    unfinished: dict[str, socket.socket], part: str, log: Path
) -> None:
    client = unfinished[part]
    status, document = answer(client)
    assert client.recv(1) == b""

    assert status == 408
    assert document["errors"][0]["detail"] == "The request did not arrive within 3 seconds."
    assert f"{document['errors'][0]['request_id']} -] A request that cannot be read: 408" in log.read_text()


def test_a_client_that_sends_single_bytes_is_refused_as_well(api: Api) -> None:
    with connected(api) as client:
        client.settimeout(0.2)
        refused = b""
        for byte in HEADERS + b" " * 1000:
            client.sendall(bytes([byte]))
            try:
                refused = client.recv(12)
                break
            except TimeoutError:
                continue

    assert refused == b"HTTP/1.0 408"


@pytest.mark.parametrize("host", [b"", b"Host:\r\n"])
def test_a_client_that_names_no_host_gets_an_address_without_one(api: Api, host: bytes) -> None:
    uuid = ids.fresh()
    body = json.dumps({"name": uuid, "uuid": uuid}).encode()
    with connected(api) as client:
        client.sendall(
            b"POST /resource_providers HTTP/1.0\r\nX-Auth-Token: admin\r\nContent-Type: application/json\r\n"
            + host
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        reply = http.client.HTTPResponse(client)
        reply.begin()
    assert (reply.status, reply.headers["Location"]) == (201, f"/resource_providers/{uuid}")


def test_a_request_line_of_32_kib_is_read(api: Api) -> None:
    uuids = ",".join(ids.fresh() for _ in range(880))
    query = f"/resource_providers?member_of=in:{uuids}"
    assert len(query) > 32_000

    assert api.get(query) == {"resource_providers": []}


def test_a_request_line_that_is_too_long_is_refused_with_an_error_document(api: Api) -> None:
    reply = api.ask("GET", f"/resource_providers?name={'x' * 70_000}")

    assert reply.status_code == 431
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.json()["errors"][0]["title"] == "Request Header Fields Too Large"


def test_a_request_that_cannot_be_read_is_counted_and_logged_with_the_id_of_its_answer(api: Api, log: Path) -> None:
    reply = api.ask("GET", f"/resource_providers?name={'x' * 70_000}")
    counted = requests.get(f"{api.url}/metrics", timeout=60).text

    request_id = reply.headers["X-Openstack-Request-Id"]
    assert reply.json()["errors"][0]["request_id"] == request_id
    assert reply.headers["Vary"] == "openstack-api-version"
    [line] = [one for one in log.read_text().splitlines() if request_id in one]
    assert "A request that cannot be read: 431, " in line
    assert line.endswith("from 127.0.0.1")
    assert 'moorage_http_requests_total{method="other",path="other",status="431"}' in counted


def test_a_connection_is_kept_after_an_answer_without_a_body(api: Api) -> None:
    host, _, port = api.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("PUT", "/traits/CUSTOM_KEPT", headers=ADMIN)
    reply = connection.getresponse()
    reply.read()

    assert (reply.status, reply.will_close) == (201, False)
    connection.close()


def in_process(tmp_path: Path, database: Database) -> falcon.testing.TestClient:
    migrated.sqlite(tmp_path / "main.sqlite", MAIN)
    names.sync(database)
    (tmp_path / "moorage.conf").write_text(SETTINGS)
    app = application(options.new(files=[tmp_path / "moorage.conf"]), database)
    return falcon.testing.TestClient(lambda environ, start_response: app(environ, start_response))


@pytest.mark.parametrize(("left", "status"), [(-1.0, 503), (60.0, 200)])
def test_a_request_that_has_waited_too_long_for_a_thread_is_refused(tmp_path: Path, left: float, status: int) -> None:
    database = Database(f"sqlite:///{tmp_path}/main.sqlite", MAIN.name)
    client = in_process(tmp_path, database)

    reply = client.simulate_get("/traits", headers=ADMIN, extras={DEADLINE: time.monotonic() + left})

    database.close()
    assert reply.status_code == status


def test_a_write_that_reaches_its_commit_after_the_deadline_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    class Slow(Database):
        """A database whose writes end just after the deadline of the request."""

        def write(self, work: Callable[[Connection], T]) -> T:
            def late(connection: Connection) -> T:
                result = work(connection)
                while not context.is_late():
                    time.sleep(0.01)
                return result

            return super().write(late if context.current().deadline else work)

    database = Slow(f"sqlite:///{tmp_path}/main.sqlite", MAIN.name)
    client = in_process(tmp_path, database)
    soon = {DEADLINE: time.monotonic() + 0.5}

    late = client.simulate_post("/resource_providers", headers=ADMIN, json={"name": "late"}, extras=soon)
    found = client.simulate_get("/resource_providers", headers=ADMIN)

    database.close()
    assert late.status_code == 503
    assert "before COMMIT" in late.json["errors"][0]["detail"]
    assert found.json["resource_providers"] == []
