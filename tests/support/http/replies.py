"""A client of the HTTP API that returns whole replies, for tests of the replies themselves."""

from typing import Any

import requests

from moorage import ids
from placement_store.http.versions import MAX

NEWEST = str(MAX)


class Reply:
    """The reply to a request."""

    def __init__(self, response: requests.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.text = response.text
        is_json = response.headers.get("Content-Type") == "application/json"
        self.body: Any = response.json() if is_json and response.content else None

    @property
    def error(self) -> dict[str, Any]:
        """The only error of an error document."""
        error: dict[str, Any]
        [error] = self.body["errors"]
        assert error["status"] == self.status
        return error

    @property
    def code(self) -> str | None:
        return self.error.get("code")

    def __repr__(self) -> str:
        return f"{self.status} {self.text}"


class Http:
    """The API of one server; by default, requests are the administrator's in the newest version."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = requests.Session()

    def call(
        self, method: str, path: str, body: Any = None, version: str | None = NEWEST, token: str = "admin", **more: Any
    ) -> Reply:
        """Send one request; a header with the value null is not sent."""
        return Reply(self.send(method, path, body, version, token, **more))

    def send(
        self, method: str, path: str, body: Any = None, version: str | None = NEWEST, token: str = "admin", **more: Any
    ) -> requests.Response:
        headers = {"X-Auth-Token": token, **more.pop("headers", {})}
        if version is not None:
            headers.setdefault("OpenStack-API-Version", f"placement {version}")
        if body is not None:
            more["json"] = body
        return self._session.request(method, self.url + path, headers=headers, timeout=60, **more)

    def get(self, path: str, version: str | None = NEWEST, **more: Any) -> Reply:
        return self.call("GET", path, None, version, **more)

    def put(self, path: str, body: Any = None, version: str | None = NEWEST, **more: Any) -> Reply:
        return self.call("PUT", path, body, version, **more)

    def post(self, path: str, body: Any = None, version: str | None = NEWEST, **more: Any) -> Reply:
        return self.call("POST", path, body, version, **more)

    def delete(self, path: str, version: str | None = NEWEST, **more: Any) -> Reply:
        return self.call("DELETE", path, None, version, **more)

    # --- Preparations ---------------------------------------------------------------------------------------------

    def provider(self, name: str | None = None, parent: str | None = None, **inventories: Any) -> str:
        """Create a provider, with inventories given as a total or in full; return its uuid."""
        uuid = ids.fresh()
        described = {"name": name or f"provider {uuid}", "uuid": uuid, "parent_provider_uuid": parent}
        assert self.post("/resource_providers", described).status == 200
        if inventories:
            wanted = {name: {"total": one} if isinstance(one, int) else one for name, one in inventories.items()}
            self.done(
                self.put(
                    f"/resource_providers/{uuid}/inventories",
                    {"resource_provider_generation": 0, "inventories": wanted},
                )
            )
        return uuid

    def generation(self, provider: str) -> int:
        return int(self.get(f"/resource_providers/{provider}").body["generation"])

    def name(self) -> str:
        """A new custom name."""
        return f"CUSTOM_{ids.fresh().replace('-', '_').upper()}"

    def allocate(self, consumer: str, provider: str, generation: int | None = None, **resources: int) -> Reply:
        return self.put(
            f"/allocations/{consumer}",
            {
                "allocations": {provider: {"resources": resources}},
                "project_id": "project",
                "user_id": "user",
                "consumer_generation": generation,
                "consumer_type": "INSTANCE",
            },
        )

    @staticmethod
    def done(reply: Reply) -> Reply:
        assert reply.status in (200, 201, 204), reply
        return reply
