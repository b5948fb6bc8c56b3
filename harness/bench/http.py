"""Benchmark of the Placement API over HTTP: candidates by their limit, and allocation writes by many clients."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from harness.bench import store
from harness.cloud import CloudSpec, created_schemas
from harness.termination import ends_with_this_process
from moorage import errors, ids
from moorage.db.database import Database
from moorage.model import Inventory, ProviderReport
from placement_store.db import names
from placement_store.schema import MAIN

#: The limits of requests for candidates.
LIMITS = (1, 10, 1000)

_HOST = "127.0.0.1"
_HEADERS = {
    "X-Auth-Token": "admin",
    "OpenStack-API-Version": "placement 1.39",
    "Accept": "application/json",
    "Content-Type": "application/json",
}
_RESOURCES = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
# Large enough that no measurement fills the cloud.
_HAS = {"VCPU": 100_000, "MEMORY_MB": 100_000_000, "DISK_GB": 1_000_000}
_REPORTED_AT_ONCE = 500
_START_SECONDS = 60.0


@dataclass(frozen=True)
class HttpResult:
    """The result of one kind of request; the field names are those of `moorage bench http -f json`."""

    request: str
    providers: int
    clients: int
    per_s: float
    p50_ms: float
    p99_ms: float


def measure(database_url: str, *, providers: int, clients: int, requests: int, workers: int) -> list[HttpResult]:
    """Fill an empty database with flat hosts, serve it, and measure ``requests`` requests of each kind.

    The database is empty again afterwards.

    :raises ConfigurationError: the database is not empty.
    :raises InternalError: a request got an unexpected answer.
    :raises StoreUnavailable: the database cannot be reached.
    """
    with (
        contextlib.closing(Database(database_url, MAIN.name)) as database,
        created_schemas(database, CloudSpec(hosts=0, cells=0)),
    ):
        uuids = _fill(database, providers)
        with _served(database_url, workers) as port:
            return list(_results(uuids, port, clients, requests))


def _results(uuids: list[str], port: int, clients: int, requests: int) -> Iterator[HttpResult]:
    providers, query = len(uuids), ",".join(f"{name}:{amount}" for name, amount in _RESOURCES.items())
    for asking in dict.fromkeys((1, clients)):
        for limit in LIMITS:
            path = f"/allocation_candidates?resources={query}&limit={limit}"
            kind = f"candidates, limit={limit}"
            yield _measured(kind, providers, port, asking, requests, lambda _, path=path: ("GET", path, None))  # type: ignore[misc]
    for writing in dict.fromkeys((1, clients)):
        yield _measured("allocation write", providers, port, writing, requests, lambda n: _write(uuids, n))


def _write(uuids: list[str], number: int) -> tuple[str, str, str]:
    """Return a write for a new consumer on the next host."""
    body = {
        "allocations": {uuids[number % len(uuids)]: {"resources": _RESOURCES}},
        "project_id": "bench",
        "user_id": "bench",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    return "PUT", f"/allocations/{ids.fresh()}", json.dumps(body)


# --- The server -----------------------------------------------------------------------------------------------------


def _fill(database: Database, providers: int) -> list[str]:
    names.sync(database)
    held = {name: Inventory(total=total) for name, total in _HAS.items()}
    uuids = [ids.fresh() for _ in range(providers)]
    for start in range(0, providers, _REPORTED_AT_ONCE):
        part = uuids[start : start + _REPORTED_AT_ONCE]
        store.report(database, [ProviderReport(uuid=uuid, name=f"bench-{uuid}", inventories=held) for uuid in part])
    return uuids


@contextlib.contextmanager
def _served(database_url: str, workers: int) -> Iterator[int]:
    """Run `moorage placement-api` and yield its port."""
    with socket.create_server((_HOST, 0)) as listening:
        port: int = listening.getsockname()[1]
    words = ["placement-api", "--host", _HOST, "--port", str(port), "--auth-strategy", "noauth2"]
    words += ["--database-url", database_url, "--workers", str(workers)]
    command = [*ends_with_this_process(), sys.executable, "-m", "moorage.cli.shell", *words]
    # Its log, a line for each request, is not part of the result.
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(server, port)
        yield port
    finally:
        server.terminate()
        server.wait()


def _await(server: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection((_HOST, port)).close()
            return
        time.sleep(0.1)
    raise errors.InternalError(kind="placement-api has not started")


# --- The clients ----------------------------------------------------------------------------------------------------

_Request = Callable[[int], tuple[str, str, str | None]]


def _send(port: int, make: _Request, numbers: range) -> list[float]:
    """Send requests over one connection, and return the seconds of each.

    :raises InternalError: a request got an unexpected answer.
    """
    connection = http.client.HTTPConnection(_HOST, port)
    seconds = []
    for number in numbers:
        method, path, body = make(number)
        began = time.perf_counter()
        connection.request(method, path, body, _HEADERS)
        reply = connection.getresponse()
        document = reply.read()
        seconds.append(time.perf_counter() - began)
        if reply.status not in (http.client.OK, http.client.NO_CONTENT):
            raise errors.InternalError(kind=f"{reply.status} {document[:500]!r}")
    return seconds


def _measured(kind: str, providers: int, port: int, clients: int, requests: int, make: _Request) -> HttpResult:
    """Measure requests, divided among threads; before them, a tenth as many requests are sent and not counted."""
    _send(port, make, range(max(1, requests // 10)))
    each = max(1, requests // clients)
    parts = [range(number * each, (number + 1) * each) for number in range(clients)]
    with ThreadPoolExecutor(clients) as threads:
        began = time.perf_counter()
        sent = list(threads.map(partial(_send, port, make), parts))
        lasted = time.perf_counter() - began
    seconds = np.concatenate(sent)
    return HttpResult(
        request=kind,
        providers=providers,
        clients=clients,
        per_s=round(len(seconds) / lasted, 1),
        p50_ms=round(float(np.percentile(seconds, 50)) * 1000, 2),
        p99_ms=round(float(np.percentile(seconds, 99)) * 1000, 2),
    )
