"""Test the commands of operators on whole clouds, without servers and with RabbitMQ and MariaDB."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from conductor.service import CellConductor
from harness.cloud import CloudSpec, RunningCloud
from harness.commands import FLAVOR, build_all
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.cli.shell import main
from moorage.messages import (
    BuildInstances,
    DeleteAllocations,
    DeleteInstance,
    GetAllocations,
    ListInstances,
    PutAllocations,
    ShowInstance,
)
from moorage.model import ConsumerAllocations, ProviderAmounts, RequestSpec
from placement_store.schema import consumers, inventories

Types = Callable[..., tuple[int, Any]]


@pytest.fixture(params=["embedded", pytest.param("servers", marks=pytest.mark.servers)], scope="module")
def cloud(request: pytest.FixtureRequest) -> Iterator[RunningCloud]:
    """A cloud of two cells with six instances."""
    urls: dict[str, Any] = {}
    if request.param == "servers":
        urls = {
            "transport_url": request.getfixturevalue("rabbitmq").add_vhost("operator"),
            "database_connection": request.getfixturevalue("mariadb").create_database("operator"),
        }
    settings = {"service": {"report_interval": 1.0, "silent_after": 5.0}, "rpc": {"call_timeout": 10.0}}
    with RunningCloud(CloudSpec(hosts=4, cells=2, settings=settings, **urls)) as running:
        assert all(instance.state == "active" for instance in build_all(running, 6))
        yield running


@pytest.fixture
def types(cloud: RunningCloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Types:
    file = tmp_path / "moorage.conf"
    # A dollar sign would begin a reference to another option.
    connection = cloud.database_connection.replace("$", "$$")
    file.write_text(
        f"[DEFAULT]\ntransport_url = {cloud.transport_url}\n[database]\nconnection = {connection}\n"
        "[service]\nreport_interval = 1\nsilent_after = 5\n[rpc]\ncall_timeout = 10\n"
    )

    def typed(*words: str) -> tuple[int, Any]:
        status = main(["--config-file", str(file), *words, "-f", "json"])
        return status, json.loads(capsys.readouterr().out)

    return typed


def test_every_service_of_a_cloud_is_listed(types: Types) -> None:
    expected = {
        ("scheduler", "scheduler1", None),
        ("placement", "scheduler1", None),
        ("conductor", "conductor", None),
        ("cell conductor", "conductor-cell1", "cell1"),
        ("cell conductor", "conductor-cell2", "cell2"),
        ("compute", "agent-cell1", "cell1"),
        ("compute", "agent-cell2", "cell2"),
    }

    def all_listed() -> bool:
        return {(line["kind"], line["name"], line["cell"]) for line in types("service", "list")[1]} == expected

    wait_until(all_listed, "every service to have reported itself")
    assert {line["state"] for line in types("service", "list")[1]} == {"up"}


def test_the_status_of_a_running_cloud_is_ok(types: Types) -> None:
    status, lines = types("status")
    assert [line for line in lines if line["state"] != "ok"] == []
    assert status == 0


def test_the_status_and_the_audit_name_the_role_of_a_stopped_conductor(cloud: RunningCloud, types: Types) -> None:
    stopped = cloud.services.pop("conductor-cell2")
    stopped.stop()
    try:
        status, lines = types("status", "--timeout", "5")
        assert status == 1
        wrong = {line["part"] for line in lines if line["state"] != "ok"}
        # After a while, its agents are silent as well.
        assert {"role conductor of cell2"} <= wrong <= {"role conductor of cell2", "agents of cell2"}
        status, rows = types("audit", "--timeout", "3")
        assert status == 2
        assert {row["subject"] for row in rows} >= {"guests of cell2"}
    finally:
        cloud.add("conductor-cell2", CellConductor(cloud.configuration(), "conductor-cell2", "cell2"))
        # The super conductor notices the restart by its next probe.
        wait_until(lambda: types("audit", "--settle", "0.1")[0] != 2, "the audit to reach the cell again")


def test_the_audit_of_a_running_cloud_is_clean_and_finds_each_inconsistency(cloud: RunningCloud, types: Types) -> None:
    assert types("audit", "--settle", "0.5") == (0, [])

    node = cloud.hosts()[0].compute_node_uuid
    consumer = ids.fresh()
    wanted = ConsumerAllocations(
        allocations={node: ProviderAmounts(resources={"VCPU": 1})},
        project_id="p",
        user_id="u",
        consumer_generation=None,
    )
    placement = cloud.client("placement")
    placement.call(PutAllocations(request_id=ids.fresh(), consumer_uuid=consumer, wanted=wanted))
    assert types("audit", "--settle", "0.1") == (0, []), "allocations without a claim are not leaked"

    _add_to_used(cloud, 1)
    status, rows = types("audit", "--settle", "0.1")
    _add_to_used(cloud, -1)
    assert status == 1
    assert {row["finding"] for row in rows} == {"drifted"}
    assert types("audit", "--settle", "0.1") == (0, [])

    placement.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=consumer, for_good=True, keep_extras=True))
    status, [row] = types("audit", "--settle", "0.1")
    assert (status, row["finding"], row["subject"]) == (1, "foreign", consumer)
    assert row["detail"].endswith(f"1 VCPU of provider {node}")
    placement.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=consumer))
    assert types("audit", "--settle", "0.1") == (0, [])


def test_the_audit_heals_lost_allocations_only_if_it_is_told_to(cloud: RunningCloud, types: Types) -> None:
    [instance, *_] = cloud.client("conductor").call(ListInstances())
    before = cloud.client("placement").call(GetAllocations(consumer_uuid=instance.uuid))
    cloud.database.write(
        lambda connection: connection.execute(delete(consumers).where(consumers.c.uuid == before.uuid))
    )

    status, rows = types("audit", "--settle", "0.1", "--heal")
    assert status == 1
    assert {(row["finding"], row["remedy"]) for row in rows} == {
        ("unheld", "set it to what its cell has on record (active)"),
        ("leaked", "count again what is used of the provider"),
    }
    with pytest.raises(errors.ConsumerNotFound):
        cloud.client("placement").call(GetAllocations(consumer_uuid=instance.uuid))

    status, rows = types("audit", "--settle", "0.1", "--heal", "--apply")
    assert (status, {row["remedy"] for row in rows}) == (0, {"healed"})
    after = cloud.client("placement").call(GetAllocations(consumer_uuid=instance.uuid))
    assert (after.claim_id, after.accepted_by) == (before.claim_id, before.accepted_by)
    assert {uuid: part.resources for uuid, part in after.allocations.items()} == {
        uuid: part.resources for uuid, part in before.allocations.items()
    }
    assert types("audit", "--settle", "0.1") == (0, [])


def test_an_audit_during_builds_and_deletions_is_clean(cloud: RunningCloud, types: Types) -> None:
    ended = threading.Event()
    with ThreadPoolExecutor(3) as threads:
        clients = [threads.submit(_build_and_delete, cloud, ended) for _ in range(3)]
        try:
            answers = [types("audit", "--settle", "1") for _ in range(8)]
        finally:
            ended.set()
        built = sum(client.result() for client in clients)
    assert answers == [(0, [])] * 8
    assert built, "no instance was built meanwhile"


def _build_and_delete(cloud: RunningCloud, ended: threading.Event) -> int:
    """Build instances and delete them again, one after the other; return how many."""
    conductor = cloud.client("conductor")
    built = 0
    while not ended.is_set():
        uuid = ids.fresh()
        spec = RequestSpec(project_id="p", user_id="u", flavor=FLAVOR)
        conductor.call(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,)))
        _wait_for(cloud, uuid, "active")
        conductor.call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))
        _wait_for(cloud, uuid, "deleted")
        built += 1
    return built


def _wait_for(cloud: RunningCloud, uuid: str, state: str) -> None:
    show = ShowInstance(instance_uuid=uuid)
    wait_until(lambda: cloud.client("conductor").call(show).state == state, f"{uuid} to be {state}", 30, 0.1)


def _add_to_used(cloud: RunningCloud, amount: int) -> None:
    statement = inventories.update().values(used=inventories.c.used + amount)
    cloud.database.write(lambda connection: connection.execute(statement))


def test_hosts_are_listed_with_their_usage_and_sorted_by_it(types: Types) -> None:
    _, hosts = types("host", "list", "--sort", "vcpus:desc", "--sort", "host")
    shares = [host["vcpus"]["used"] / host["vcpus"]["total"] for host in hosts]
    assert shares == sorted(shares, reverse=True)
    assert sum(host["vcpus"]["used"] for host in hosts) == 6 * FLAVOR.vcpus
    assert sum(host["memory_mb"]["used"] for host in hosts) == 6 * FLAVOR.memory_mb
    assert all(host["disk_gb"]["total"] > 0 for host in hosts)
    _, first = types("host", "list", "--sort", "host:desc", "--limit", "1")
    assert first[0]["host"] == max(host["host"] for host in hosts)


def test_an_instance_is_found_by_its_name_if_the_name_is_unique(
    types: Types, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--vcpus", "1", "--memory-mb", "64")
    status, built = types("instance", "build", *size, "--name", "web", "--count", "2", "--wait")
    assert (status, [one["name"] for one in built]) == (0, ["web-1", "web-2"])
    assert types("instance", "show", "web-2")[1]["uuid"] == built[1]["uuid"]
    assert [one["uuid"] for one in types("instance", "list", "--name", "web-1")[1]] == [built[0]["uuid"]]
    assert [one["name"] for one in types("instance", "list")[1]][-2:] == ["web-1", "web-2"]
    assert types("operation", "list", "--all", "--instance", "web-1")[0] == 0

    _, twin = types("instance", "build", *size, "--name", "web-1", "--wait")
    for refused in (("instance", "show", "web-1"), ("instance", "delete", "web-2", "web-1")):
        with pytest.raises(json.JSONDecodeError):
            types(*refused)
        said = caplog.text + capsys.readouterr().err
        assert built[0]["uuid"] in said
        assert twin[0]["uuid"] in said
    with pytest.raises(json.JSONDecodeError):
        types("instance", "show", "nobody")
    assert "There is no instance nobody" in caplog.text + capsys.readouterr().err

    # A command with an ambiguous name does nothing for its other names.
    assert types("instance", "show", "web-2")[1]["state"] == "active"
    _, deleted = types("instance", "delete", "web-2", built[0]["uuid"], twin[0]["uuid"], "--wait")
    assert {one["state"] for one in deleted} == {"deleted"}
    # A deleted instance is not found by its name.
    with pytest.raises(json.JSONDecodeError):
        types("instance", "show", "web-2")


def test_a_build_needs_one_name_for_each_instance_and_no_uuids(cloud: RunningCloud) -> None:
    conductor = cloud.client("conductor")
    spec = RequestSpec(project_id="p", user_id="u", flavor=FLAVOR)
    uuids = (ids.fresh(), ids.fresh())
    for names, reason in ((("one",), "1 names for 2 instances"), (("one", ids.fresh()), "is a uuid, and no name")):
        with pytest.raises(errors.InvalidRequest, match=reason):
            conductor.call(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=uuids, names=names))
