"""Test workers of the Placement API without readable tables: they start, answer 503, and serve as soon as they can."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import falcon.testing
import psutil
import pytest
import requests
from sqlalchemy import make_url
from support.http.api import Api, served

from harness.servers import free_ports
from harness.tcp_proxy import TcpProxy
from harness.waiting import wait_until
from moorage.config import options
from moorage.db.database import Database
from placement_store.http import wsgi
from placement_store.schema import MAIN

HEADERS = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement latest"}


def _status(url: str) -> int:
    try:
        return requests.get(f"{url}/traits", headers=HEADERS, timeout=60).status_code
    except requests.ConnectionError:
        return 0


def in_process(folder: Path) -> falcon.testing.TestClient:
    """The API in this process, on a database without tables."""
    file = folder / "moorage.conf"
    file.write_text(f"[placement_api]\nauth_strategy = noauth2\n[database]\nconnection = sqlite:///{folder}/main\n")
    made = wsgi.make(options.new(files=[file]), threads=2)
    return falcon.testing.TestClient(lambda environ, start_response: made(environ, start_response))


@pytest.mark.usefixtures("closed_afterwards")
def test_a_process_serves_as_soon_as_its_tables_exist(tmp_path: Path) -> None:
    api = in_process(tmp_path)

    assert api.simulate_get("/").status_code == 200
    refused = api.simulate_get("/traits", headers=HEADERS)
    assert refused.status_code == 503
    assert "run `moorage db upgrade`" in refused.json["errors"][0]["detail"]

    database = Database(f"sqlite:///{tmp_path}/main", MAIN.name)
    MAIN.upgrade(database)
    database.close()
    assert "HW_CPU_X86_AVX2" in api.simulate_get("/traits", headers=HEADERS).json["traits"]


@pytest.mark.usefixtures("closed_afterwards")
def test_a_path_with_a_line_break_stays_on_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert in_process(tmp_path).simulate_get("/traits/A%0AForged", headers=HEADERS).status_code == 503

    lines = [record.getMessage() for record in caplog.records if "Forged" in record.getMessage()]
    assert lines
    assert all("A%0AForged" in line and "\n" not in line for line in lines), lines


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Api]:
    with served(f"sqlite:///{tmp_path}/main.sqlite", tmp_path / "log", "--workers", "2") as api:
        assert _status(api.url) == 200
        yield api


def _is_alive(worker: psutil.Process) -> bool:
    """Return whether a worker runs: it may have ended since it was listed, or be a zombie."""
    try:
        return bool(worker.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _kill_the_workers(log: Path) -> set[int]:
    """Kill all workers of the server with this log; return the process ids of the workers that replace them."""
    main = psutil.Process(int(re.search(r"Listening at: \S+ \((\d+)\)", log.read_text())[1]))  # type: ignore[index]
    wait_until(lambda: len(main.children()) == 2, "both workers to start")
    killed = {worker.pid for worker in main.children()}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)

    def others() -> set[int]:
        return {worker.pid for worker in main.children() if _is_alive(worker)} - killed

    wait_until(lambda: len(others()) == len(killed) == 2, "other workers have taken their place")
    return others()


@pytest.mark.parametrize(("oldest_code", "status"), [("main_0007", 200), ("main_9999", 503)])
def test_killed_workers_are_restarted_on_a_newer_schema(
    server: Api, tmp_path: Path, oldest_code: str, status: int
) -> None:
    with server.store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE alembic_version_main SET version_num = 'main_9999'")
        connection.exec_driver_sql(f"UPDATE schema_compatibility_main SET oldest_code = '{oldest_code}'")

    workers = _kill_the_workers(tmp_path / "log")

    wait_until(lambda: _status(server.url) == status, f"they answer with {status}")
    assert requests.get(server.url, timeout=60).status_code == 200
    assert all(psutil.pid_exists(pid) for pid in workers), "none of them has ended"


def test_a_server_started_without_its_database_answers_503_and_then_serves(mariadb_url: str, tmp_path: Path) -> None:
    database = Database(mariadb_url, MAIN.name)
    MAIN.upgrade(database)
    database.close()
    url, [port] = make_url(mariadb_url), free_ports(1)
    with TcpProxy(url.host or "", url.port or 0) as proxy, (tmp_path / "log").open("w") as log:
        proxy.refuse()
        behind = url.set(port=proxy.port).render_as_string(hide_password=False)
        words = ["placement-api", "--host", "127.0.0.1", "--port", str(port), "--auth-strategy", "noauth2"]
        words += ["--workers", "2", "--database-url", behind]
        with subprocess.Popen([sys.executable, "-m", "moorage.cli.shell", *words], stdout=log, stderr=log) as server:
            try:
                address = f"http://127.0.0.1:{port}"
                wait_until(lambda: _status(address) == 503, "it answers")
                proxy.resume()
                wait_until(lambda: _status(address) == 200, "it serves")
                proxy.refuse()
                wait_until(lambda: _status(address) == 503, "the database is missed")
                proxy.resume()
                wait_until(lambda: _status(address) == 200, "it serves again")
                assert server.poll() is None
            finally:
                server.terminate()
