"""Test the set-up of the HTTP API: policy, Keystone, CORS, proxies, WSGI servers, and the command."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import falcon.testing
import psutil
import pytest
import webob
from oslo_context.context import get_current
from oslo_policy.policy import DocumentedRuleDefault
from support.http.api import Api, served
from support.http.fake_keystone import require_middleware
from support.processes.stopwatch import Stopwatch

from harness.servers import free_ports
from harness.waiting import wait_until
from moorage import context, ids
from moorage.config import options
from moorage.db.database import Database
from placement_store.db import names
from placement_store.http import policy, wsgi
from placement_store.http.application import application
from placement_store.http.resources import RESOURCES
from placement_store.schema import MAIN

NOAUTH = "[placement_api]\nauth_strategy = noauth2\n"
ADMIN = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement latest"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('api')}/main.sqlite", MAIN.name)
    MAIN.upgrade(database)
    names.sync(database)
    yield database
    database.close()


def client(database: Database, tmp_path: Path, text: str = NOAUTH) -> Any:
    file = tmp_path / "moorage.conf"
    file.write_text(text)
    served = application(options.new(files=[file]), database)
    # A function, because the test client inspects the signature of its callable.
    return falcon.testing.TestClient(lambda environ, start_response: served(environ, start_response))


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The lines of the log of the API from INFO on, each with its request id."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{context.current().request_id} {record.getMessage()}")

    log, handler = logging.getLogger("placement_store.http"), Lines()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield lines
    log.removeHandler(handler)
    log.setLevel(before)


def test_each_request_is_a_line_of_the_log_with_its_id_and_that_of_its_caller(
    database: Database, tmp_path: Path, logged: list[str]
) -> None:
    api = client(database, tmp_path)
    of_nova = f"req-{ids.fresh()}"
    found = [
        api.simulate_get(
            "/traits", headers={**ADMIN, "X-Openstack-Request-Id": of_nova}, query_string="name=in:A%0AB,C"
        ),
        api.simulate_get("/nowhere\nelse", headers={**ADMIN, "X-Openstack-Request-Id": "me\nand you"}),
        api.simulate_get(f"/traits/{'X' * 1000}", headers=ADMIN),
    ]

    assert [line.split(" ")[0] for line in logged] == [each.headers["X-Openstack-Request-Id"] for each in found]
    known, unknown, long = [line.split(" ", 1)[1] for line in logged]
    assert re.fullmatch(
        rf"GET /traits\?name=in:A%0AB,C: 200, version 1\.39, [\d.]+ ms, from [\d.]+, for {of_nova}", known
    )
    assert re.fullmatch(r"GET /nowhere%0Aelse: 404, version 1\.39, [\d.]+ ms, from [\d.]+", unknown)
    assert re.match(r"GET /traits/X{492}…: 404, ", long)


def test_a_thread_keeps_no_request_context_after_its_answer(database: Database, tmp_path: Path) -> None:
    api = client(database, tmp_path)

    def answer() -> tuple[int, object]:
        return api.simulate_get("/traits", headers=ADMIN).status_code, get_current()

    # A new thread: this one may have a context of other tests.
    with ThreadPoolExecutor(1) as threads:
        status, left = threads.submit(answer).result()
    assert status == 200
    assert left is None, "every later log line of this thread would have the id of that request"


# --- Policy ---------------------------------------------------------------------------------------------------------


def test_every_operation_except_the_root_has_a_documented_policy_rule() -> None:
    documented = {
        (one["method"], re.sub(r"\{\w+\}", "{}", one["path"])): rule.name
        for rule in policy.list_rules()
        if isinstance(rule, DocumentedRuleDefault)
        for one in rule.operations
    }
    declared = {
        (method, re.sub(r"\{\w+\}", "{}", resource.path)): one.rule
        for resource in RESOURCES
        for method, one in resource.operations.items()
    }

    assert declared.pop(("GET", "/")) is None
    assert declared == documented


def test_a_policy_file_changes_what_roles_may_do(database: Database, tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text('"placement:resource_providers:list": "role:looker"\n')
    api = client(database, tmp_path, f"{NOAUTH}[oslo_policy]\npolicy_file = {rules}\n")

    assert api.simulate_get("/resource_providers", headers={**ADMIN, "X-Roles": "looker"}).status_code == 200
    assert api.simulate_get("/resource_providers", headers=ADMIN).status_code == 403
    assert api.simulate_get("/traits", headers=ADMIN).status_code == 200


def test_a_changed_policy_file_is_reloaded_while_the_server_runs(database: Database, tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text('"placement:resource_providers:list": "role:looker"\n')
    api = client(database, tmp_path, f"{NOAUTH}[oslo_policy]\npolicy_file = {rules}\n")

    def status(**headers: str) -> int:
        code: int = api.simulate_get("/resource_providers", headers={**ADMIN, **headers}).status_code
        return code

    assert (status(), status(**{"X-Roles": "looker"})) == (403, 200)
    rules.write_text('"placement:resource_providers:list": "role:admin"\n')
    # A change is noticed by the modification time of the file.
    os.utime(rules, (time.time() + 10, time.time() + 10))

    wait_until(lambda: status() == 200, "the new rules")
    assert status(**{"X-Roles": "looker"}) == 403


def test_cached_policy_decisions_depend_on_caller_and_target(database: Database, tmp_path: Path) -> None:
    api = client(database, tmp_path)

    def status(project: str, roles: str, asked: str, **more: str) -> int:
        headers = {**ADMIN, "X-Auth-Token": f"u:{project}", "X-Roles": roles, **more}
        code: int = api.simulate_get(f"/usages?project_id={asked}", headers=headers).status_code
        return code

    for _ in range(2):
        assert status("mine", "reader", "mine") == 200
        assert status("mine", "reader", "yours") == 403
        assert status("yours", "reader", "mine") == 403
        assert status("yours", "reader", "yours") == 200
        assert status("mine", "member", "mine") == 403
        assert status("mine", "member,admin", "yours") == 200
        assert status("mine", "admin", "mine", **{"OpenStack-System-Scope": "all"}) == 403


@pytest.mark.parametrize(("new_defaults", "administrator"), [("true", 403), ("false", 400)])
def test_the_legacy_defaults_permit_the_administrator_everything(
    database: Database, tmp_path: Path, new_defaults: str, administrator: int
) -> None:
    api = client(database, tmp_path, f"{NOAUTH}[oslo_policy]\nenforce_new_defaults = {new_defaults}\n")

    assert api.simulate_post("/reshaper", headers=ADMIN, json={}).status_code == administrator
    assert api.simulate_post("/reshaper", headers={**ADMIN, "X-Roles": "service"}, json={}).status_code == 400


# --- Keystone -------------------------------------------------------------------------------------------------------


def test_with_keystone_identity_headers_are_ignored_and_the_root_is_open(database: Database, tmp_path: Path) -> None:
    require_middleware()
    auth = "[keystone_authtoken]\nwww_authenticate_uri = http://127.0.0.1:1\nauth_type = none\n"
    api = client(database, tmp_path, f"[placement_api]\nauth_strategy = keystone\n{auth}")
    identity = {"X-User-Id": "me", "X-Project-Id": "mine", "X-Roles": "admin", "X-Identity-Status": "Confirmed"}

    assert api.simulate_get("/").status_code == 200
    for headers in ({}, identity):
        assert api.simulate_get("/resource_providers", headers=headers).status_code == 401


# --- Browsers and proxies ---------------------------------------------------------------------------------------------


def test_only_pages_of_an_allowed_origin_may_call_the_api(database: Database, tmp_path: Path) -> None:
    origin = "https://dashboard.example.org"
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "openstack-api-version",
    }
    open_ = client(database, tmp_path, f"{NOAUTH}[cors]\nallowed_origin = {origin}\n").app
    closed = client(database, tmp_path).app

    def allowed(app: Any, method: str, headers: Mapping[str, str]) -> str | None:
        request = webob.Request.blank("/traits", method=method, headers={**ADMIN, **headers})
        origin: str | None = request.get_response(app).headers.get("Access-Control-Allow-Origin")
        return origin

    assert allowed(open_, "OPTIONS", asked) == origin
    assert allowed(open_, "GET", {"Origin": origin}) == origin
    assert allowed(open_, "OPTIONS", {**asked, "Origin": "https://elsewhere.example.org"}) is None
    assert allowed(closed, "OPTIONS", asked) is None


@pytest.mark.parametrize("believed", [True, False])
def test_headers_of_a_proxy_are_used_only_if_configured(database: Database, tmp_path: Path, believed: bool) -> None:
    api = client(database, tmp_path, f"{NOAUTH}[oslo_middleware]\nenable_proxy_headers_parsing = {believed}\n")
    outside = {
        **ADMIN,
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "cloud.example.org",
        "X-Forwarded-Prefix": "/placement",
    }
    created = api.simulate_post("/resource_providers", headers=outside, json={"name": ids.fresh()})

    [link] = [one["href"] for one in created.json["links"] if one["rel"] == "self"]
    begin = "https://cloud.example.org/placement" if believed else "http://falconframework.org"
    assert link == f"{'/placement' if believed else ''}/resource_providers/{created.json['uuid']}"
    assert created.headers["Location"] == f"{begin}/resource_providers/{created.json['uuid']}"


def test_an_unreachable_database_is_503(tmp_path: Path) -> None:
    with closing(Database("mysql+pymysql://nobody@127.0.0.1:1/nothing", MAIN.name)) as away:
        refused = client(away, tmp_path).simulate_get("/resource_providers", headers=ADMIN)

    assert refused.status_code == 503
    assert "cannot be reached" in refused.json["errors"][0]["detail"]


def test_an_unexpected_error_is_500_without_details(tmp_path: Path, logged: list[str]) -> None:
    without_tables = Database(f"sqlite:///{tmp_path}/empty.sqlite", MAIN.name)
    failed = client(without_tables, tmp_path).simulate_get("/resource_providers", headers=ADMIN)
    without_tables.close()

    [error] = failed.json["errors"]
    fault, answer = logged
    assert fault.startswith(f"{error['request_id']} GET /resource_providers has failed")
    assert answer.startswith(f"{error['request_id']} GET /resource_providers: 500, ")
    assert (failed.status_code, error["title"]) == (500, "Internal Server Error")
    assert error["request_id"] == failed.headers["X-Openstack-Request-Id"]
    assert "sqlite" not in failed.text.lower()
    assert "resource_providers" not in failed.text


# --- Servers --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("closed_afterwards")
def test_any_wsgi_server_can_load_the_application(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"{NOAUTH}[database]\nconnection = {database.url}\n")
    monkeypatch.setenv("MOORAGE_CONFIG", str(file))
    api = falcon.testing.TestClient(type(wsgi.application)())

    assert api.simulate_get("/traits", headers=ADMIN).status_code == 200
    assert api.simulate_get("/").json["versions"][0]["max_version"] == "1.39"


def test_a_server_refuses_to_start_without_its_tables(tmp_path: Path) -> None:
    words = ["placement-api", "--database-url", f"sqlite:///{tmp_path}/empty.sqlite", "--auth-strategy", "noauth2"]
    refused = subprocess.run(
        [sys.executable, "-m", "moorage.cli.shell", *words], capture_output=True, text=True, timeout=60, check=False
    )

    assert refused.returncode != 0
    assert "run `moorage db upgrade`" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("library", "options", "reason"),
    [
        (
            "keystonemiddleware",
            "[placement_api]\nauth_strategy = keystone\n",
            "which needs keystonemiddleware, and that is not installed: pip install 'moorage[keystone]'",
        ),
        (
            "opentelemetry",
            f"{NOAUTH}[tracing]\notlp_endpoint = http://127.0.0.1:1/v1/traces\n",
            "which is not installed: pip install 'moorage[tracing]'",
        ),
    ],
)
def test_a_server_refuses_to_start_without_a_library_that_its_configuration_needs(
    database: Database, tmp_path: Path, library: str, options: str, reason: str
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"{options}[database]\nconnection = {database.url}\n")
    # For an import, a module that is None in this dictionary is not installed; workers inherit it.
    line = f"import sys; sys.modules[{library!r}] = None; from moorage.cli.shell import main; sys.exit(main())"
    words = ["--config-file", str(file), "placement-api", "--port", str(free_ports(1)[0])]
    refused = subprocess.run(
        [sys.executable, "-c", line, *words], capture_output=True, text=True, timeout=60, check=False
    )

    assert refused.returncode == 1
    [printed] = (refused.stdout + refused.stderr).splitlines()
    assert f"{reason}. (moorage.configuration)" in printed


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Api]:
    with served(f"sqlite:///{tmp_path}/main.sqlite", tmp_path / "log", "--workers", "2", "--threads", "2") as api:
        yield api


def test_each_line_of_a_server_is_json_if_its_log_is(tmp_path: Path) -> None:
    file, log = tmp_path / "moorage.conf", tmp_path / "log"
    file.write_text(f"[DEFAULT]\nuse_json = true\n{NOAUTH}")
    with served(f"sqlite:///{tmp_path}/main.sqlite", log, config_file=file) as server:
        server.get("/resource_providers")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["name"] for line in lines} == {"gunicorn.error", "placement_store.http.application"}
    assert {line["extra"]["service"] for line in lines} == {"placement-api"}
    assert "Shutting down: Master" in [line["message"] for line in lines]


@contextmanager
def half_a_request(server: Api) -> Iterator[tuple[socket.socket, bytes]]:
    """Send the head and the first bytes of a request; yield the connection and the other bytes."""
    body = f'{{"name": "{ids.fresh()}"}}'.encode()
    head = "POST /resource_providers HTTP/1.1\r\nHost: moorage\r\nX-Auth-Token: admin\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode() + body[:4])
        wait_until(lambda: _is_accepted(connection), "the server to begin to read")
        yield connection, body[4:]


def test_a_stopping_server_answers_the_request_in_progress(server: Api, tmp_path: Path) -> None:
    with half_a_request(server) as (connection, rest):
        _signal(tmp_path / "log", signal.SIGTERM)
        _wait_for_stop(tmp_path / "log")
        connection.sendall(rest)
        answer = connection.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 201 Created"), answer
    wait_until(lambda: not _runs(tmp_path / "log"), "the server has ended", 60.0)


def test_the_second_signal_ends_a_server_despite_a_request_in_progress(server: Api, tmp_path: Path) -> None:
    with half_a_request(server) as (connection, _):
        _signal(tmp_path / "log", signal.SIGTERM)
        _wait_for_stop(tmp_path / "log")
        assert _runs(tmp_path / "log")  # because a request in progress has eight seconds
        watch = Stopwatch()
        _signal(tmp_path / "log", signal.SIGTERM)
        wait_until(lambda: not _runs(tmp_path / "log"), "the server has ended")
        assert watch.seconds < 5.0
        assert connection.recv(1) == b""


def test_the_workers_of_a_killed_server_answer_the_request_in_progress_and_end(server: Api, tmp_path: Path) -> None:
    arbiter = psutil.Process(_process(tmp_path / "log"))
    wait_until(lambda: len(arbiter.children()) >= 2, "two workers to start")
    workers = arbiter.children()
    try:
        with half_a_request(server) as (connection, rest):
            _signal(tmp_path / "log", signal.SIGKILL)
            connection.sendall(rest)
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 201 Created"), answer
        wait_until(lambda: not any(worker.is_running() for worker in workers), "the workers to end", 60.0)
    finally:
        for worker in workers:
            if worker.is_running():
                worker.kill()


def test_a_reload_signal_does_not_stop_a_server(server: Api, tmp_path: Path) -> None:
    _signal(tmp_path / "log", signal.SIGHUP)
    wait_until(lambda: "Hang up" in (tmp_path / "log").read_text(), "the signal is seen")
    assert server.get("/resource_providers") == {"resource_providers": []}
    assert _runs(tmp_path / "log")


def test_a_reload_signal_starts_no_worker_that_would_end_the_server_if_it_does_not_start(
    server: Api, tmp_path: Path
) -> None:
    server.get("/resource_providers")
    _signal(tmp_path / "log", signal.SIGHUP)
    wait_until(lambda: "Hang up" in (tmp_path / "log").read_text(), "the signal is seen")
    # It is handled after the first signal.
    _signal(tmp_path / "log", signal.SIGTERM)
    wait_until(lambda: not _runs(tmp_path / "log"), "the server has ended", 60.0)
    assert (tmp_path / "log").read_text().count("Booting worker") == 2


def test_a_stopping_server_answers_a_request_on_an_accepted_connection(tmp_path: Path) -> None:
    # A worker that stops keeps such a connection for a second. If the machine has taken longer to send the request, the
    # answer may be missing, and another server has to show it.
    for number in range(5):
        log = tmp_path / f"log {number}"
        with served(f"sqlite:///{tmp_path}/{number}.sqlite", log, "--workers", "2", "--threads", "2") as server:
            answer, is_in_time = _answer_after_stop(server, log)
            if not answer and not is_in_time:
                continue
            assert answer.startswith(b"HTTP/1.1 200 OK"), answer
            assert b"Connection: close" in answer
            watch = Stopwatch()
            wait_until(lambda log=log: not _runs(log), "the server has ended")  # type: ignore[misc]
            assert watch.seconds < 5.0
            return
    pytest.fail("no request was sent within a second after the stop had begun")


def _answer_after_stop(server: Api, log: Path) -> tuple[bytes, bool]:
    """Send a request on an accepted connection of a stopping server; return the answer, and if it was sent in time."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        wait_until(lambda: _is_accepted(connection), "the connection to be accepted")
        began = time.monotonic()
        _signal(log, signal.SIGTERM)
        _wait_for_stop(log)
        answer, is_in_time = b"", time.monotonic() - began < 1.0
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: moorage\r\n\r\n")
            answer = connection.makefile("rb").read()
        return answer, is_in_time


def _is_accepted(connection: socket.socket) -> bool:
    """Return whether a server has accepted a connection, and has read all that was sent over it (proc(5))."""
    ours, theirs = (f":{end[1]:04X}" for end in (connection.getsockname(), connection.getpeername()))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _number, local, remote, _state, queues, *rest = line.split()
        if local.endswith(theirs) and remote.endswith(ours):
            # A connection that is not accepted has no inode.
            return queues.endswith(":00000000") and rest[4] != "0"
    return False


def _wait_for_stop(log: Path) -> None:
    """Wait until a server, which has been told to stop, accepts no connections any more."""
    port = int(re.search(r"Listening at: http://\S+:(\d+)", log.read_text())[1])  # type: ignore[index]

    def accepts() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=30).close()
        except ConnectionRefusedError:
            return False
        return True

    wait_until(lambda: not accepts(), "the server to accept no more connections")


def _signal(log: Path, number: signal.Signals) -> None:
    """Send a signal to the first process of the server with this log."""
    os.kill(_process(log), number)


def _runs(log: Path) -> bool:
    status = Path(f"/proc/{_process(log)}/stat")
    # An ended process is a zombie, because its parent, the test, has not waited for it.
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def _process(log: Path) -> int:
    return int(re.search(r"Listening at: \S+ \((\d+)\)", log.read_text())[1])  # type: ignore[index]
