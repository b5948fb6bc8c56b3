"""Test the answers and refusals of the dashboard's JSON API, in front of a whole cloud."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import falcon.testing
import pytest
from support.dashboard import ADMIN, Viewer
from support.http.fake_keystone import require_middleware

from dashboard.api import RESOURCES
from dashboard.application import application
from dashboard.sources import Sources
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.config import options
from moorage.messages import AddAggregateHost, CreateHostAggregate, SetHost
from moorage.messages.wire import Message, R
from moorage.model import Flavor
from placement_store.in_process import InProcessPlacement

HUGE = Flavor(vcpus=2, memory_mb=1_000_000, root_gb=1)
#: No instance has this uuid. Names of tests are the same in each process that runs some of them.
ABSENT = ids.derived("absent", "instance", 0)
PATHS = [resource.path.replace("{uuid}", ABSENT) for resource in RESOURCES]


def built(viewer: Viewer) -> dict[str, Any]:
    """Build an instance, and return its history from the dashboard."""
    uuid = viewer.order()
    wait_until(lambda: viewer.state(uuid) == "active", "the instance to be active")
    history: dict[str, Any] = viewer.get(f"instances/{uuid}")
    return history


def refused(viewer: Viewer) -> str:
    uuid = viewer.order(HUGE)
    wait_until(lambda: viewer.state(uuid) == "error", "the instance to be refused")
    return uuid


def rows(answer: Any) -> dict[str, list[Any]]:
    return {row[1]: row for row in answer["hosts"]["rows"]}


# --- Hosts ----------------------------------------------------------------------------------------------------------


def test_the_first_answer_has_all_hosts_and_a_later_one_only_changed_hosts(viewer: Viewer) -> None:
    whole = viewer.get("hosts")
    assert whole["hosts"]["whole"]
    assert whole["hosts"]["count"] == len(rows(whole)) == 6
    assert set(whole["cell_names"].values()) == {"cell1", "cell2"}
    assert {"VCPU", "MEMORY_MB", "DISK_GB"} <= set(whole["hosts"]["classes"])

    host = built(viewer)["host"]
    vcpu = whole["hosts"]["classes"].index("VCPU")

    def later() -> Any:
        return viewer.get("hosts", since=whole["hosts"]["version"])

    wait_until(lambda: host in rows(later()), "the change of its host")
    changed = later()
    assert not changed["hosts"]["whole"]
    assert len(rows(changed)) < 6
    before, after = rows(whole)[host], rows(changed)[host]
    assert (after[8], after[11][vcpu]) == (before[8] + 1, before[11][vcpu] + 2)
    assert after[12] == before[12], "the capacity does not change"


@pytest.mark.parametrize("version", ["", "nonsense", "00000000.5", "1.2.3", "-4"])
def test_the_answer_to_an_unknown_version_has_all_hosts(viewer: Viewer, version: str) -> None:
    assert viewer.get("hosts", since=version)["hosts"]["whole"]


def test_the_answer_to_a_version_with_thousands_of_digits_has_all_hosts(viewer: Viewer) -> None:
    epoch, _, _ = viewer.get("hosts")["hosts"]["version"].partition(".")
    assert viewer.get("hosts", since=f"{epoch}.{'9' * 5_000}")["hosts"]["whole"]


def test_the_zone_aggregates_and_state_of_a_host_are_shown(viewer: Viewer) -> None:
    scheduler = viewer.cloud.client("scheduler")
    # A host with servers of other tests cannot change its zone.
    host = next(one for one in viewer.cloud.hosts() if not viewer.get("host", name=one.service_host)["consumers"])
    named: dict[str, Any] = {"service_host": host.service_host, "cell_uuid": host.cell_uuid}
    scheduler.call(CreateHostAggregate(request_id=ids.fresh(), name="fast", metadata={"availability_zone": "north"}))
    scheduler.call(AddAggregateHost(request_id=ids.fresh(), aggregate="fast", **named))
    scheduler.call(SetHost(request_id=ids.fresh(), disabled=True, **named))
    try:
        wait_until(lambda: rows(viewer.get("hosts"))[host.service_host][7] == 3, "the host to be disabled")
        answer = viewer.get("hosts")
        row = rows(answer)[host.service_host]
        hosts = answer["hosts"]
        assert hosts["zones"][row[4]] == "north"
        assert "COMPUTE_STATUS_DISABLED" in hosts["trait_sets"][row[5]]
        wait_until(lambda: "fast" in viewer.get("hosts")["aggregate_names"].values(), "the name of the aggregate", 60)
        names = viewer.get("hosts")["aggregate_names"]
        assert [names[uuid] for uuid in hosts["aggregate_sets"][row[6]]] == ["fast"]
    finally:
        scheduler.call(SetHost(request_id=ids.fresh(), disabled=False, **named))


def test_a_host_is_shown_with_its_providers_and_guests(viewer: Viewer) -> None:
    history = built(viewer)
    shown = viewer.get("host", name=history["host"].upper())

    assert shown["host"] == history["host"]
    [root] = [provider for provider in shown["providers"] if provider["parent"] is None]
    assert root["inventories"]["VCPU"]["used"] >= 2
    guest = {one["uuid"]: one for one in shown["consumers"]}[history["uuid"]]
    assert guest["held"][root["uuid"]] == {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}
    assert guest["claim"]["claim_id"] == history["claim_id"]


def test_an_unknown_host_is_404(viewer: Viewer) -> None:
    assert "no host nowhere" in viewer.refused(404, "/api/host", name="nowhere")
    known = viewer.cloud.hosts()[0].service_host
    viewer.refused(404, "/api/host", name=known, cell=ids.fresh())


# --- Requests -------------------------------------------------------------------------------------------------------


def test_the_newest_instances_come_first_with_their_attempts_or_the_reason_of_their_refusal(viewer: Viewer) -> None:
    uuid, host = (history := built(viewer))["uuid"], history["host"]
    wrong = refused(viewer)
    wait_until(lambda: [one["uuid"] for one in viewer.get("instances")["instances"][:2]] == [wrong, uuid], "both")

    second, first = viewer.get("instances")["instances"][:2]
    assert [attempt["host"] for attempt in first["attempts"]] == [host]
    assert first["refused"] is None
    assert "MEMORY_MB" in second["refused"]


def test_the_history_of_an_instance_has_its_attempts_operations_and_claims(viewer: Viewer) -> None:
    history = built(viewer)

    assert [attempt["state"] for attempt in history["attempts"]] == ["active"]
    assert {operation["kind"] for operation in history["operations"]} == {"build"}
    [claim] = history["claims"]
    assert claim["claim_id"] == history["claim_id"]
    host = next(one for one in viewer.cloud.hosts() if one.service_host == history["host"])
    assert claim["at"] == {"host": host.service_host, "node": host.nodename, "cell_uuid": host.cell_uuid}
    assert history["created_at"] <= history["attempts"][0]["created_at"] <= history["now"] + 1


def test_an_unknown_instance_is_404_and_a_malformed_uuid_400(viewer: Viewer) -> None:
    viewer.refused(404, f"/api/instances/{ids.fresh()}")
    viewer.refused(400, "/api/instances/nonsense")


# --- Explanations ---------------------------------------------------------------------------------------------------


def test_a_refused_request_is_explained_by_its_stored_funnel(viewer: Viewer) -> None:
    explained = viewer.get("explain", instance=refused(viewer))

    assert explained["asked"] == "when it was refused"
    assert explained["chosen"] is None
    assert explained["filters"][0]["hosts"] == explained["hosts"] == 6
    left = [each["left"] for each in explained["filters"]]
    assert left == sorted(left, reverse=True)
    [resources] = [each for each in explained["filters"] if each["name"] == "resources"]
    assert resources["left"] == 0
    assert sum(reason["hosts"] for reason in resources["reasons"]) == resources["hosts"]


def test_a_named_host_is_explained_by_a_new_decision(viewer: Viewer) -> None:
    host = viewer.cloud.hosts()[0].service_host
    explained = viewer.get("explain", instance=refused(viewer), host=host)

    assert explained["asked"] == "now"
    assert "MEMORY_MB" in explained["named_hosts"][host]


def test_a_size_is_explained_and_nothing_is_claimed(viewer: Viewer) -> None:
    hosts = [host.service_host for host in viewer.cloud.hosts()]

    # All hosts together are shown as they were some seconds ago, with or without the last servers of other tests.
    def consumers() -> dict[str, set[str]]:
        return {name: {one["uuid"] for one in viewer.get("host", name=name)["consumers"]} for name in hosts}

    before = consumers()
    explained = viewer.get("explain", vcpus=1, memory_mb=64, host=hosts[0])

    assert explained["chosen"] in hosts
    assert explained["top_hosts"][0]["rank"] == 1
    assert consumers() == before


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "must be given"),
        ({"instance": ABSENT, "vcpus": 1}, "must be given"),
        ({"vcpus": "many", "memory_mb": 1}, "vcpus"),
        ({"vcpus": 1}, "memory_mb"),
        ({"vcpus": -1, "memory_mb": 1}, "vcpus"),
        ({"vcpus": 1, "memory_mb": 1, "host": [f"h{number}" for number in range(21)]}, "At most 20 hosts"),
        ({"instance": ABSENT, "colour": "red"}, "colour"),
    ],
)
def test_an_invalid_query_for_an_explanation_is_400(viewer: Viewer, query: dict[str, Any], words: str) -> None:
    assert words in viewer.refused(400, "/api/explain", **query)


# --- Operations and audits ------------------------------------------------------------------------------------------


@contextmanager
def build_under_way(viewer: Viewer) -> Iterator[str]:
    """Stop all agents, so that a build waits in its cell; yield its instance."""
    agents = [name for name in viewer.cloud.services if name.startswith("compute-")]
    viewer.cloud.stop_agents()
    try:
        uuid = viewer.order()
        wait_until(lambda: of_cells(viewer.get("operations"), uuid), "the operation of the cell")
        yield uuid
    finally:
        for name in agents:
            cell = name.removeprefix("compute-")
            viewer.cloud.add(name, viewer.cloud.compute(cell, 3))
    wait_until(lambda: viewer.state(uuid) in ("active", "error"), "the build to end")


def of_cells(answer: Any, subject: str) -> list[Any]:
    return [one for one in answer["operations"] if one["subject"] == subject and one["cell"]]


def test_operations_under_way_are_listed_with_their_step_and_age(viewer: Viewer) -> None:
    with build_under_way(viewer) as uuid:
        [operation] = of_cells(viewer.get("operations"), uuid)
        assert (operation["kind"], operation["state"]) == ("build", "pending")
        assert operation["cell"] in ("cell1", "cell2")
        assert operation["age"] >= operation["idle"] >= 0


class AwayPlacement(InProcessPlacement):
    """A store whose database cannot be reached."""

    away = True

    def call(self, message: Message[R]) -> R:
        if self.away:
            raise errors.StoreUnavailable(schema="main", reason="gone")
        return super().call(message)


def test_while_the_main_database_is_away_operations_have_the_uuids_of_their_cells(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.sources.InProcessPlacement", AwayPlacement)
    with build_under_way(viewer) as uuid, closing(Sources(viewer.cloud.configuration())) as sources:
        [operation] = of_cells(sources.operations(), uuid)
        assert operation["cell"] == operation["cell_uuid"]


def test_hosts_are_shown_with_the_last_known_names_of_cells_that_cannot_be_read(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.sources.InProcessPlacement", AwayPlacement)
    monkeypatch.setattr("dashboard.sources._NAMES_SECONDS", 0.0)
    monkeypatch.setattr(AwayPlacement, "away", False)
    with closing(Sources(viewer.cloud.configuration())) as sources:
        names = sources.hosts(None)["cell_names"]
        assert set(names.values()) == {"cell1", "cell2"}
        monkeypatch.setattr(AwayPlacement, "away", True)
        # An answer is kept for twenty times as long as it took.
        wait_until(lambda: cells_are_away(sources), "the names to be read again")
        assert sources.hosts(None)["cell_names"] == names


def cells_are_away(sources: Sources) -> bool:
    try:
        sources._cells.get()
    except errors.StoreUnavailable:
        return True
    return False


def test_a_post_begins_an_audit_and_each_viewer_gets_its_findings(viewer: Viewer) -> None:
    wait_until(lambda: not viewer.get("operations")["operations"], "all operations to end")
    assert viewer.get("audit")["state"] == "none"
    begun = viewer.ask("/api/audit", "POST")
    assert (begun.status_code, begun.json["state"]) == (202, "running")
    wait_until(lambda: viewer.get("audit")["state"] != "running", "the audit to end")

    found = viewer.get("audit")
    assert (found["state"], found["findings"], found["unseen"]) == ("done", [], {})


# --- Access -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_a_token_or_without_a_role_is_refused(viewer: Viewer, path: str) -> None:
    assert viewer.ask(path, headers={}).status_code == 401
    assert viewer.ask(path, headers={"X-Auth-Token": "somebody"}).status_code == 403
    assert viewer.ask(path, headers={"X-Auth-Token": "admin", "X-Roles": "reader"}).status_code == 403
    assert viewer.ask(path, headers={"X-Auth-Token": "monitor", "X-Roles": "service"}).status_code != 403


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", [path for path in PATHS if path != "/api/audit"])
def test_only_get_is_served(viewer: Viewer, path: str, method: str) -> None:
    answer = viewer.ask(path, method)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")


def test_an_unknown_path_is_404_and_an_unknown_parameter_400(viewer: Viewer) -> None:
    viewer.refused(404, "/api/nothing")
    assert "'speed'" in viewer.refused(400, "/api/hosts", speed="high")


def client(viewer: Viewer, tmp_path: Path, text: str) -> Any:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = inproc://unused/\n[database]\nconnection = sqlite://\n{text}")
    served = application(options.new(files=[file]), viewer.sources)
    return falcon.testing.TestClient(lambda environ, start_response: served(environ, start_response))


def test_a_policy_file_changes_the_roles_for_reading_and_for_audits(viewer: Viewer, tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text('"dashboard:read": "role:looker"\n"dashboard:audit": "role:auditor"\n')
    text = f"[placement_api]\nauth_strategy = noauth2\n[oslo_policy]\npolicy_file = {rules}\n"
    page = client(viewer, tmp_path, text)

    def status(method: str, role: str) -> int:
        return int(page.simulate_request(method, "/api/audit", headers={**ADMIN, "X-Roles": role}).status_code)

    assert (status("GET", "looker"), status("POST", "looker")) == (200, 403)
    assert (status("GET", "auditor"), status("POST", "auditor")) == (403, 202)


def test_with_keystone_headers_of_clients_are_ignored_and_the_page_stays_open(viewer: Viewer, tmp_path: Path) -> None:
    require_middleware()
    auth = "[keystone_authtoken]\nwww_authenticate_uri = http://127.0.0.1:1\nauth_type = none\n"
    page = client(viewer, tmp_path, f"[placement_api]\nauth_strategy = keystone\n{auth}")
    claimed = {"X-User-Id": "me", "X-Project-Id": "mine", "X-Roles": "admin", "X-Identity-Status": "Confirmed"}

    assert page.simulate_get("/").status_code == 200
    for headers in ({}, claimed):
        assert page.simulate_get("/api/hosts", headers=headers).status_code == 401
    # No token is accepted while Keystone cannot be reached.
    assert page.simulate_get("/api/hosts", headers=ADMIN).status_code == 503


# --- Parts that are away ----------------------------------------------------------------------------------------------


def test_while_the_super_conductor_is_away_requests_are_503_and_hosts_are_still_shown(viewer: Viewer) -> None:
    conf = viewer.cloud.configuration(dashboard={"call_timeout": 0.5}, DEFAULT={"transport_url": "inproc://nobody/"})
    sources = Sources(conf)
    served = application(conf, sources)
    page = falcon.testing.TestClient(lambda environ, start_response: served(environ, start_response))
    try:
        refusal = page.simulate_get("/api/instances", headers=ADMIN)
        assert refusal.status_code == 503
        assert "conductor" in refusal.json["errors"][0]["detail"]
        assert page.simulate_get("/api/operations", headers=ADMIN).status_code == 503
        assert page.simulate_get("/api/hosts", headers=ADMIN).json["hosts"]["count"] == 6
    finally:
        sources.close()


def test_while_the_super_conductor_is_silent_a_thread_remains_for_the_hosts(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Barrier(7), threading.Event()

    def silent(*_asked: object) -> dict[str, Any]:
        asked.wait(60)
        answered.wait(60)
        return {}

    monkeypatch.setattr("dashboard.recent_requests.life", silent)
    with closing(Sources(viewer.cloud.configuration(dashboard={"threads": 8}))) as sources:
        with ThreadPoolExecutor(6) as threads:
            lives = [threads.submit(sources.instance, ids.fresh()) for _ in range(6)]
            asked.wait(60)
            try:
                with pytest.raises(errors.Overloaded, match="ask again"):
                    sources.instance(ids.fresh())
                with pytest.raises(errors.Overloaded, match="ask again"):
                    sources.explain_instance(ids.fresh(), (), now=True)
                with pytest.raises(errors.Overloaded, match="ask again"):
                    sources.explain_size(Flavor(vcpus=1, memory_mb=1), ())
            finally:
                answered.set()
        assert [each.result() for each in lives] == [{}] * 6
        assert sources.explain_size(Flavor(vcpus=1, memory_mb=1), ())["top_hosts"]
