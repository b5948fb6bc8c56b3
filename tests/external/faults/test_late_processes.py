"""Late hosts, unknown guests and lost records, with each service as a separate process."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs
from support.processes.building_client import SPEC, built
from support.processes.forked_cloud import ForkedCloud

from conductor.schema import CONDUCTOR_METADATA
from harness.audit import judge
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import BuildInstances, DeleteInstance, ListClaims, ListReconciled, ListStrangers, ShowInstance

SETTINGS = {
    "rpc": {"call_timeout": 5.0},
    "scheduler": {"host_down_after": 5.0},
    "placement": {"reconcile_interval": 0.5, "reconcile_after": 1.0},
    "conductor": {"build_timeout": 6.0, "report_interval": 0.5, "retry_backoff": 0.2},
    "compute": {"report_interval": 0.5},
}


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    database = Database(migrated_url, "main")
    yield database
    database.close()


@pytest.fixture
def cloud(migrated_url: str, rabbitmq_url: str) -> Iterator[ForkedCloud]:
    with ForkedCloud(rabbitmq_url, migrated_url, SETTINGS) as cloud:
        cloud.run("cell", "create", "cell1")
        cloud.start("scheduler", "scheduler")
        cloud.start("conductor-cell1", "conductor", "--cell", "cell1")
        yield cloud


def agent(cloud: ForkedCloud, name: str, armed: str = "", **fake_driver: object) -> None:
    words = ("compute", "--cell", "cell1", "--agent", name, "--fake-hosts", "1")
    cloud.start(name, *words, settings={"fake_driver": fake_driver} if fake_driver else None, armed=armed)


def guests(folder: Path) -> list[tuple[str, str]]:
    """Return the host and the instance of each guest in the agents' files."""
    found = []
    for file in sorted(folder.glob("moorage-fake-*.sqlite")):
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        try:
            found += connection.execute("SELECT host, instance_uuid FROM guests").fetchall()
        finally:
            connection.close()
    return found


def false_if_unavailable(check: Callable[[], bool]) -> Callable[[], bool]:
    """Return a check that returns False while a service is unavailable."""

    def checked() -> bool:
        try:
            return check()
        except errors.Unavailable:
            return False

    return checked


def order(cloud: ForkedCloud, *hosts: str) -> str:
    uuid, spec = ids.fresh(), structs.replace(SPEC, force_hosts=hosts)
    cloud.client("conductor").call(BuildInstances(request_spec=spec, instance_uuids=(uuid,), request_id=ids.fresh()))
    return uuid


def test_a_host_that_finishes_after_its_attempt_timed_out_destroys_its_guest_and_one_guest_remains(
    cloud: ForkedCloud, database: Database
) -> None:
    cloud.start("conductor", "conductor")
    # The larger host has the higher weight, so it is tried first.
    agent(cloud, "late", memory_mb=65536, late_hosts="late-0001", late_seconds=12.0)
    agent(cloud, "fine")
    cloud.wait_for_hosts(2)

    began = time.monotonic()
    uuid = order(cloud)
    instance = built(cloud.client("conductor"), uuid)

    assert instance.state == "active", instance
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [
        ("late-0001", "failed"),
        ("fine-0001", "active"),
    ]
    wait_until(lambda: time.monotonic() > began + 12.5, "the late host to finish")
    wait_until(lambda: guests(cloud.folder) == [("fine-0001", uuid)], "the late guest to be destroyed", 90)
    wait_until(lambda: judge(database, [uuid]).clean, "the residue to be released", 90)


def assert_nothing_is_left(cloud: ForkedCloud, database: Database) -> None:
    assert guests(cloud.folder) == []
    verdict = judge(database, [])
    assert (verdict.overcommitted, verdict.leaked) == (0, 0)


def test_an_instance_deleted_before_or_after_a_gate_leaves_no_guest_and_no_allocation(
    cloud: ForkedCloud, database: Database
) -> None:
    cloud.start("conductor", "conductor")
    gates = {
        "before-the-first": "*send*accept_claim=wait:9",
        "after-the-first": "*answered*accept_claim=wait:9",
        "before-the-second": "*send*build_finished=wait:9",
        "after-the-second": "*answered*build_finished=wait:9",
    }
    for name, armed in gates.items():
        agent(cloud, name, armed)
    cloud.wait_for_hosts(len(gates))
    conductor = cloud.client("conductor")

    uuids = [order(cloud, f"{name}-0001") for name in gates]

    def states() -> list[str]:
        return [conductor.call(ShowInstance(instance_uuid=uuid)).state for uuid in uuids]

    at_their_gates = ["building", "building", "building", "active"]
    wait_until(lambda: states() == at_their_gates, "each instance to be at its gate")
    time.sleep(0.7)  # in this time, an instance that is not held at its gate would pass it
    assert states() == at_their_gates
    for uuid in uuids:
        conductor.call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))

    wait_until(lambda: states() == ["deleted"] * len(uuids), "all to be deleted", 60)
    assert_nothing_is_left(cloud, database)
    time.sleep(6.5)  # until the failpoints have let all late messages through
    assert_nothing_is_left(cloud, database)


def test_a_host_that_returns_with_an_unknown_guest_leaves_it_running_and_reports_it(cloud: ForkedCloud) -> None:
    cloud.start("conductor", "conductor")
    agent(cloud, "host", stranger_guests=1)
    cloud.wait_for_hosts(1)
    [unknown] = guests(cloud.folder)

    cloud.kill("host")
    agent(cloud, "host")
    conductor = cloud.client("conductor")

    def reported() -> bool:
        return [one.guest.instance_uuid for one in conductor.call(ListStrangers())] == [unknown[1]]

    wait_until(false_if_unavailable(reported), "the guest to be reported", 90)
    cloud.wait_for_hosts(1)

    assert built(conductor, order(cloud)).state == "active"
    assert unknown in guests(cloud.folder)


def test_a_claim_whose_owner_has_lost_its_records_is_kept_and_reported(cloud: ForkedCloud, database: Database) -> None:
    # The conductor is killed when it has received the claim and not recorded it yet.
    cloud.start("conductor", "conductor", armed="step.build.select.answered.scheduler.select_destinations=kill")
    agent(cloud, "host")
    cloud.wait_for_hosts(1)
    uuid = order(cloud)
    killed = cloud.processes["conductor"]
    wait_until(lambda: killed.poll() is not None, "the conductor to be killed", 90)
    placement = cloud.client("placement")
    [claim] = placement.call(ListClaims(unaccepted=True))

    database.write(lambda connection: [connection.execute(t.delete()) for t in CONDUCTOR_METADATA.sorted_tables])
    cloud.start("conductor", "conductor")

    def reported() -> bool:
        found = {action.consumer_uuid: action for action in placement.call(ListReconciled())}
        return uuid in found and found[uuid].outcome == "unknown" and "no instance" in found[uuid].reason

    wait_until(false_if_unavailable(reported), "the claim to be reported", 90)
    assert [one.claim_id for one in placement.call(ListClaims(unaccepted=True))] == [claim.claim_id]
    assert claim.consumer_uuid == uuid
