"""A Keystone with a few tokens: a real HTTP server with the API of the real one."""

import importlib.util
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.processes.private_servers import absent

#: The user whose password is accepted, and the token that this user gets.
SERVICE_USER, PASSWORD, SERVICE_TOKEN = "placement", "secret", "token-of-the-service-user"
_DOMAIN = {"id": "default", "name": "Default"}


def require_middleware() -> None:
    """Skip tests that need the extra `keystone` if it is missing; fail them if CI=true."""
    if importlib.util.find_spec("keystonemiddleware") is None:
        absent("keystonemiddleware is not installed (pip install 'moorage[keystone]' does it)")


@dataclass(frozen=True, slots=True)
class Token:
    """The identity of a token; without a project its scope is the whole system."""

    roles: Sequence[str]
    project: str | None = "project"
    user: str = "user"
    valid_for: timedelta = timedelta(hours=1)

    def document(self, catalog: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the token as Keystone's document."""
        now = datetime.now(UTC)
        scope: dict[str, Any] = (
            {"system": {"all": True}}
            if self.project is None
            else {"project": {"id": self.project, "name": self.project, "domain": _DOMAIN}}
        )
        return {
            "methods": ["password"],
            "user": {"id": self.user, "name": self.user, "domain": _DOMAIN, "password_expires_at": None},
            "roles": [{"id": role, "name": role} for role in self.roles],
            "issued_at": _stamp(now - timedelta(hours=2)),
            "expires_at": _stamp(now + self.valid_for),
            "audit_ids": ["audit"],
            "is_domain": False,
            "catalog": catalog,
            **scope,
        }


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Keystone:
    """The tokens of a Keystone, and the requests that it has received."""

    tokens: dict[str, Token]
    port: int = 0
    #: The tokens that were validated, in order.
    asked_about: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def catalog(self) -> list[dict[str, Any]]:
        """The catalog, whose only entry is this server."""
        endpoints = [
            {"id": interface, "interface": interface, "region": "one", "region_id": "one", "url": f"{self.url}/v3"}
            for interface in ("public", "internal", "admin")
        ]
        return [{"id": "keystone", "type": "identity", "name": "keystone", "endpoints": endpoints}]

    @property
    def version(self) -> dict[str, Any]:
        """Return the version document for discovery."""
        links = [{"rel": "self", "href": f"{self.url}/v3/"}]
        return {"id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z", "links": links}

    @property
    def options(self) -> str:
        """The options of Moorage for this Keystone."""
        return f"""[keystone_authtoken]
www_authenticate_uri = {self.url}
auth_type = password
auth_url = {self.url}
username = {SERVICE_USER}
password = {PASSWORD}
project_name = service
user_domain_id = default
project_domain_id = default
http_request_max_retries = 0
"""


@contextmanager
def running(keystone: Keystone) -> Iterator[Keystone]:
    """Let the server answer, on its previous port if it had one."""
    server = _Server(keystone)
    keystone.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield keystone
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def __init__(self, keystone: Keystone) -> None:
        super().__init__(("127.0.0.1", keystone.port), _Handler)
        self.keystone = keystone


class _Handler(BaseHTTPRequestHandler):
    # The thread of a persistent connection would continue to serve it after the server has stopped.
    protocol_version = "HTTP/1.0"
    server: _Server

    def do_GET(self) -> None:
        keystone = self.server.keystone
        if self.path == "/":
            self._answer(300, {"versions": {"values": [keystone.version]}})
        elif self.path.rstrip("/") == "/v3":
            self._answer(200, {"version": keystone.version})
        elif self.path.partition("?")[0] == "/v3/auth/tokens":
            self._validate(keystone)
        else:
            self._refuse(404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        who = asked["auth"]["identity"]["password"]["user"]
        if self.path == "/v3/auth/tokens" and (who["name"], who["password"]) == (SERVICE_USER, PASSWORD):
            document = Token(["service"], "service", SERVICE_USER).document(self.server.keystone.catalog)
            self._answer(201, {"token": document}, {"X-Subject-Token": SERVICE_TOKEN})
        else:
            self._refuse(401)

    def _validate(self, keystone: Keystone) -> None:
        """Answer with the token's document; for an unknown or expired token, answer that it was not found."""
        subject = self.headers.get("X-Subject-Token", "")
        keystone.asked_about.append(subject)
        if self.headers.get("X-Auth-Token") != SERVICE_TOKEN:
            self._refuse(401)
        elif (token := keystone.tokens.get(subject)) is None:
            self._refuse(404)
        else:
            self._answer(200, {"token": token.document(keystone.catalog)}, {"X-Subject-Token": subject})

    def _refuse(self, status: int) -> None:
        self._answer(status, {"error": {"code": status, "title": HTTPStatus(status).phrase, "message": self.path}})

    def _answer(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
