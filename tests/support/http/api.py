"""Builders for the tests of the HTTP API: a server process, and a short client."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from harness.servers import free_ports
from harness.waiting import wait_until
from moorage.db.database import Database
from placement_store.db import names
from placement_store.schema import MAIN, METADATA, resource_classes, resource_providers, traits
from support.databases import migrated
from support.http.replies import NEWEST, Http, Reply
from support.placement_store.builders import Store


class Api:
    """A client of a running server, and the store of that server for direct calls."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store
        self._http = Http(url)

    def ask(
        self, method: str, path: str, body: Any = None, version: str | None = NEWEST, **headers: str
    ) -> requests.Response:
        """Send a request as the administrator, unless ``headers`` (with ``_`` for ``-``) say otherwise."""
        sent = {"Accept": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        return self._http.send(method, path, body, version, headers=sent)

    def get(self, path: str, version: str = NEWEST) -> Any:
        """Return the document at a path."""
        return Http.done(Reply(self.ask("GET", path, version=version))).body

    def does(self, method: str, path: str, body: Any = None, version: str = NEWEST, **headers: str) -> None:
        """Send a request that must succeed."""
        Http.done(Reply(self.ask(method, path, body, version, **headers)))

    def refused(
        self, status: int, method: str, path: str, body: Any = None, version: str = NEWEST, **headers: str
    ) -> str:
        """Send a request that must be refused; return the code of the error document."""
        reply = Reply(self.ask(method, path, body, version, **headers))
        assert reply.status == status, reply
        assert reply.error["request_id"] == reply.headers["X-Openstack-Request-Id"]
        return (reply.code or "none").removeprefix("placement.")

    def provider(self, name: str, parent: str | None = None, **inventories: int | Mapping[str, Any]) -> str:
        """Create a provider with inventories, each a total or a document; return its uuid."""
        return self._http.provider(name, parent, **inventories)

    def empty(self) -> None:
        """Delete everything but names, because the server caches their numbers."""
        kept = {resource_classes.name, traits.name}
        with self.store.database.engine.connect() as connection, connection.begin():
            for table in METADATA.sorted_tables:
                if table.name == resource_providers.name:
                    connection.execute(table.update().values(root_provider_id=None, parent_provider_id=None))
                if table.name not in kept:
                    connection.execute(table.delete())


@contextmanager
def served(url: str, log: Path, *more: str, config_file: Path | None = None) -> Iterator[Api]:
    """Run ``moorage placement-api`` on a database whose tables are created; a file may configure authentication."""
    migrated.give_tables(url, MAIN)
    database = Database(url, MAIN.name)
    names.sync(database)
    [port] = free_ports(1)
    command = [sys.executable, "-m", "moorage.cli.shell"]
    command += ["--config-file", str(config_file)] if config_file else []
    command += ["placement-api", "--host", "127.0.0.1", "--port", str(port), "--database-url", url, *more]
    command += [] if config_file else ["--auth-strategy", "noauth2"]
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=_environment())
    try:
        _await(f"http://127.0.0.1:{port}/", server, log)
        yield Api(f"http://127.0.0.1:{port}", Store(database))
    finally:
        server.terminate()
        server.wait(60)
        database.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "MOORAGE_CONFIG"}


def _await(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    def is_served() -> bool:
        assert server.poll() is None, log.read_text()
        return answers(url)

    wait_until(is_served, log.read_text)


def answers(url: str) -> bool:
    """Call an HTTP API that may not listen yet; return whether it has answered."""
    try:
        requests.get(url, timeout=5)
    except (requests.ConnectionError, requests.Timeout):
        return False
    return True
