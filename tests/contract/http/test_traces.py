"""Test the traces of requests to the API."""

from pathlib import Path
from uuid import UUID

import requests
from support.http.api import served
from support.processes.collector import Collector

from harness.waiting import wait_until

THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_has_a_trace_named_by_its_request_id_and_resource(tmp_path: Path) -> None:
    collector = Collector()
    config_file = tmp_path / "moorage.conf"
    config_file.write_text(
        f"[placement_api]\nauth_strategy = noauth2\n[tracing]\notlp_endpoint = {collector.endpoint}\n"
    )
    url = f"sqlite:///{tmp_path}/main.sqlite"
    with served(url, tmp_path / "log", "--workers", "2", "--threads", "2", config_file=config_file) as api:
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39", "traceparent": THEIRS}
        reply = requests.get(f"{api.url}/resource_classes", headers=headers, timeout=60)
        assert reply.status_code == 200
        trace = UUID(reply.headers["x-openstack-request-id"].removeprefix("req-")).bytes
        wait_until(lambda: trace in collector.spans, lambda: collector.spans)
    collector.close()
    [(service, name, _, parent)] = collector.spans[trace]
    assert (service, name, parent) == ("moorage-placement-api", "GET /resource_classes", b"")
