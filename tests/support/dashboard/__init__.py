"""A viewer of the dashboard, with the administrator's token, and the settings of a cloud with a dashboard."""

from typing import Any

import falcon.testing

from dashboard.sources import Sources
from harness.cloud import RunningCloud
from harness.commands import FLAVOR
from moorage import ids
from moorage.messages import BuildInstances, ShowInstance
from moorage.model import Flavor, RequestSpec

ADMIN = {"X-Auth-Token": "admin"}
SETTINGS: dict[str, dict[str, Any]] = {
    "placement_api": {"auth_strategy": "noauth2"},
    # No answer is cached for long, so that a viewer sees recent changes.
    "dashboard": {"refresh_interval": 0.5, "call_timeout": 60.0},
}


class Viewer:
    """Sends requests to the dashboard of a cloud."""

    def __init__(self, cloud: RunningCloud, sources: Sources, served: Any) -> None:
        self.cloud = cloud
        self.sources = sources
        # A function, because the test client cannot determine the arguments of other callables.
        self._client = falcon.testing.TestClient(lambda environ, start_response: served(environ, start_response))

    def ask(self, path: str, method: str = "GET", headers: dict[str, str] | None = None, **query: Any) -> Any:
        """Return the response, with any status."""
        return self._client.simulate_request(method, path, headers=ADMIN if headers is None else headers, params=query)

    def get(self, path: str, **query: Any) -> Any:
        """Return the document at a path of the API."""
        answer = self.ask(f"/api/{path}", **query)
        assert answer.status_code == 200, answer.text
        return answer.json

    def refused(self, status: int, path: str, method: str = "GET", **query: Any) -> str:
        """Send a request that is refused; return the sentence with the reason."""
        answer = self.ask(path, method, **query)
        assert answer.status_code == status, answer.text
        [error] = answer.json["errors"]
        assert error["request_id"] == answer.headers["X-Openstack-Request-Id"]
        return str(error["detail"])

    def order(self, flavor: Flavor = FLAVOR) -> str:
        """Order an instance, and return its uuid."""
        request_id = ids.fresh()
        uuid = ids.derived(request_id, "instance", 0)
        spec = RequestSpec(project_id="demo", user_id="demo", flavor=flavor)
        message = BuildInstances(request_id=request_id, request_spec=spec, instance_uuids=(uuid,))
        self.cloud.client("conductor").call(message)
        return uuid

    def state(self, uuid: str) -> str:
        """Return the state of an instance."""
        return self.cloud.client("conductor").call(ShowInstance(instance_uuid=uuid)).state
