"""Test the probes of the API, and the metrics of all its processes."""

import re
from collections.abc import Iterator

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from support.http.api import Api, served


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server of two processes that serves its metrics."""
    folder = tmp_path_factory.mktemp("measured")
    config_file = folder / "moorage.conf"
    config_file.write_text("[placement_api]\nauth_strategy = noauth2\nserve_metrics = true\n")
    url = f"sqlite:///{folder}/main.sqlite"
    with served(url, folder / "log", "--workers", "2", "--threads", "2", config_file=config_file) as api:
        yield api


def _samples(api: Api, name: str) -> dict[tuple[str, ...], float]:
    reply = requests.get(f"{api.url}/metrics", timeout=60)
    assert reply.status_code == 200, reply.text
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
        if sample.name == name
    }


def test_the_probes_need_no_token_and_report_health(api: Api) -> None:
    for path in ("/healthz", "/readyz"):
        reply = requests.get(api.url + path, timeout=60)
        assert (reply.status_code, reply.json()) == (200, {"status": "ok", "reasons": {}})


def test_metrics_are_not_served_by_default(api: Api) -> None:
    assert requests.get(f"{api.url}/metrics", timeout=60).status_code == 401
    assert api.ask("GET", "/metrics").status_code == 404


def test_each_process_serves_the_counts_of_all_processes(measured: Api) -> None:
    requests_before = sum(_samples(measured, "moorage_http_requests_total").values())
    asked = 40
    for _ in range(asked):
        # Each on a new connection, so that both processes get some.
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"}
        assert requests.get(f"{measured.url}/resource_classes", headers=headers, timeout=60).status_code == 200
    for _ in range(10):
        assert sum(_samples(measured, "moorage_http_requests_total").values()) == requests_before + asked
    assert _samples(measured, "moorage_http_requests_total")["GET", "/resource_classes", "200"] == asked
    assert _samples(measured, "moorage_http_seconds_count")["GET", "/resource_classes"] == asked


def test_unknown_paths_and_methods_are_counted_together(measured: Api) -> None:
    before = _samples(measured, "moorage_http_requests_total")
    for number in range(5):
        measured.ask("GET", f"/nothing/{number}")
        measured.ask(f"METHOD{number}", "/resource_classes")
    found = _samples(measured, "moorage_http_requests_total")
    new = {labels for labels in found if found[labels] != before.get(labels)}
    assert {(method, path) for method, path, _status in new} <= {("other", "other"), ("other", "/resource_classes")}
    assert sum(found.values()) == sum(before.values()) + 10


def test_the_pool_metrics_have_the_schema_as_their_only_label(measured: Api) -> None:
    measured.does("GET", "/traits")
    assert set(_samples(measured, "moorage_database_pool_size")) == {("main",)}
    assert _samples(measured, "moorage_database_connections_in_use")["main",] >= 0


def test_the_metrics_include_the_readiness_of_the_answering_process(measured: Api) -> None:
    assert _samples(measured, "moorage_ready") == {("database",): 1.0, ("started",): 1.0}


def test_a_failing_check_is_named_without_the_address_of_the_database(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("away")
    path = folder / "main.sqlite"
    with served(f"sqlite:///{path}", folder / "log", "--workers", "1", "--threads", "1") as api:
        for file in folder.glob("main.sqlite*"):
            file.unlink()
        path.mkdir()
        reply = requests.get(f"{api.url}/readyz", timeout=60)
        assert (reply.status_code, reply.json()["reasons"]) == (503, {"database": "failed"})
        assert not re.search(r"sqlite|/", reply.text)
        assert requests.get(f"{api.url}/healthz", timeout=60).status_code == 200
