"""Test how a cell computes the load of its hosts, on SQLite and on MariaDB."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection
from support.databases.statements import statements_of

from conductor.cell.hosts.image_counts import ImageCounts
from conductor.cell.hosts.loads import CellLoads
from conductor.cell.records import failed_builds
from conductor.schema import (
    cell_attempts,
    cell_failed_builds,
    cell_hosts,
    cell_instances,
    cell_migrations,
    cell_operations,
)
from moorage import ids
from moorage.config import options
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.model import Flavor, HostLoad, Image, RequestSpec

CELL_UUID, OTHER_CELL = ids.derived("loads", "cell"), ids.derived("loads", "other cell")
DAY = 86400.0


class Records:
    """Writes the records that the operations of a cell leave."""

    def __init__(self, database: Database, cell: str = CELL_UUID) -> None:
        self.database = database
        self.cell = cell

    def insert(self, table: Any, **values: Any) -> None:
        self.database.write(
            lambda connection: connection.execute(
                table.insert().values(cell_uuid=self.cell, created_at=now(), updated_at=now(), **values)
                if "created_at" in table.c
                else table.insert().values(cell_uuid=self.cell, **values)
            )
        )

    def host(self, name: str) -> None:
        self.insert(
            cell_hosts,
            service_host=name,
            nodename=name,
            agent="agent",
            description=b"{}",
            description_number=1,
            acknowledged_number=1,
            last_seen=0.0,
        )

    def instance(
        self, host: str | None, state: str = "active", image: Mapping[str, str] | None = None, **more: Any
    ) -> str:
        uuid = ids.fresh()
        spec = RequestSpec(
            project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1), image=Image(properties=dict(image or {}))
        )
        values: dict[str, Any] = {
            "uuid": uuid,
            "request_id": "r",
            "request_spec": msgspec.json.encode(spec),
            "first_number": 1,
            "state": state,
            "attempt_number": 1,
            "claim_id": ids.fresh() if host else None,
            "host": host,
        }
        self.insert(cell_instances, **values | more)
        if host:
            self.attempt(uuid, host)
        return uuid

    def attempt(self, instance_uuid: str, host: str) -> None:
        self.insert(
            cell_attempts,
            attempt_id=ids.fresh(),
            instance_uuid=instance_uuid,
            number=1,
            host=host,
            agent="agent",
            state="active",
            guest_gone=False,
        )

    def operation(self, kind: str, subject: str, state: str = "pending", ended_ago: float = 0.0) -> None:
        self.insert(
            cell_operations,
            uuid=ids.fresh(),
            kind=kind,
            request_id="r",
            subject=subject,
            step="start",
            step_number=1,
            payload=b"{}",
            tries=0,
            state=state,
            due_at=now() - ended_ago,
            lease_number=1,
        )

    def moving(self, source: str, destination: str) -> str:
        migration = ids.fresh()
        uuid = self.instance(source, "moving", migration_uuid=migration)
        self.insert(
            cell_migrations,
            uuid=migration,
            instance_uuid=uuid,
            request_id="r",
            kind="resize",
            state="moving",
            instance_state="active",
            source_number=1,
            source_host=source,
            destination_host=destination,
            is_aborted=False,
        )
        return uuid

    def loads(self, **settings: Any) -> Mapping[str, HostLoad]:
        conf = options.new({"conductor": settings})
        found = CellLoads(conf, self.database, self.cell).now()
        assert found is not None
        return found[0]


@pytest.fixture
def records(database: Database) -> Records:
    return Records(database)


# --- Operations under way ---------------------------------------------------------------------------------------------


def test_an_operation_that_starts_rebuilds_or_moves_a_server_counts_once_on_each_of_its_hosts(records: Records) -> None:
    records.operation("build", records.instance("a", "building"))
    records.operation("unshelve", records.instance("a", "unshelving"))
    records.operation("rebuild", records.instance("b", "rebuilding"))
    records.operation("move", records.moving("b", "c"))
    records.operation("move", records.moving("c", "c"))
    assert {host: load.io_ops for host, load in records.loads().items()} == {"a": 2, "b": 2, "c": 2}


def test_ended_operations_deletions_and_operations_of_other_cells_do_not_count(records: Records) -> None:
    records.operation("build", records.instance("a"), state="done")
    records.operation("delete", records.instance("b", "deleting"))
    records.operation("build", records.instance(None, "deleting"))
    elsewhere = Records(records.database, OTHER_CELL)
    elsewhere.operation("build", elsewhere.instance("a", "building"))
    assert records.loads() == {}
    assert elsewhere.loads() == {"a": HostLoad(io_ops=1)}


# --- Failed builds ----------------------------------------------------------------------------------------------------


class Failures:
    """The failed builds of a cell, and the passage of time."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def fail(self, host: str, attempt_id: str | None = None) -> str:
        attempt_id = attempt_id or ids.fresh()
        self.records.database.write(
            lambda connection: failed_builds.add(connection, self.records.cell, attempt_id, host)
        )
        return attempt_id

    def fail_often(self, host: str, times: int) -> None:
        failed = {"cell_uuid": self.records.cell, "host": host, "weight": 1.0, "failed_at": 0.0}
        rows = [{**failed, "attempt_id": ids.fresh()} for _ in range(times)]
        self.records.database.write(lambda connection: connection.execute(cell_failed_builds.insert(), rows))
        self.records.database.write(
            lambda connection: connection.execute(cell_failed_builds.update().values(failed_at=now()))
        )

    def succeed(self, host: str) -> None:
        self.records.database.write(lambda connection: failed_builds.halve(connection, self.records.cell, [host]))

    def pass_(self, seconds: float) -> None:
        table = cell_failed_builds
        older = table.update().values(failed_at=table.c.failed_at - seconds)
        self.records.database.write(lambda connection: connection.execute(older))

    def by_host(self) -> dict[str, float]:
        loads = self.records.loads(failed_build_half_life=DAY)
        return {host: load.failed_builds for host, load in loads.items()}

    def rows(self) -> int:
        def work(connection: Connection) -> int:
            return len(connection.execute(cell_failed_builds.select()).all())

        return self.records.database.read(work)


@pytest.fixture
def failures(records: Records) -> Failures:
    return Failures(records)


def test_each_failed_attempt_counts_once_for_its_host(failures: Failures) -> None:
    first = failures.fail("a")
    failures.fail("a", first)
    assert failures.by_host() == {"a": 1.0}
    failures.fail("a")
    failures.fail("b")
    assert failures.by_host() == {"a": 2.0, "b": 1.0}


def test_a_started_guest_halves_the_failures_of_its_host_as_a_half_life_does(failures: Failures) -> None:
    for _ in range(4):
        failures.fail("a")
    for _ in range(2):
        failures.fail("b")
    failures.succeed("a")
    assert failures.by_host() == {"a": 2.0, "b": 2.0}
    failures.pass_(DAY)
    assert failures.by_host() == {"a": 1.0, "b": 1.0}


def test_failures_decay_with_time_and_are_deleted_in_the_end(failures: Failures) -> None:
    for _ in range(8):
        failures.fail("a")
    seen = []
    for _ in range(10):
        seen.append(failures.by_host().get("a", 0.0))
        failures.pass_(DAY / 2)
    assert seen == sorted(seen, reverse=True)
    assert (seen[0], seen[-1]) == (8.0, 0.0)
    assert failures.rows() == 8
    failures.pass_(20 * DAY)
    assert failures.by_host() == {}
    assert failures.rows() == 0


def test_a_failure_counts_no_more_than_once_after_the_clock_was_set_back(failures: Failures) -> None:
    failures.fail("a")
    failures.pass_(-3 * DAY)
    assert failures.by_host() == {"a": 1.0}


def test_old_failures_are_deleted_in_transactions_of_a_bounded_size(failures: Failures) -> None:
    failures.fail_often("a", 1100)
    failures.pass_(20 * DAY)
    failures.fail("b")
    left = []
    for _ in range(3):
        assert failures.by_host() == {"b": 1.0}
        left.append(failures.rows())
    assert left == [101, 1, 1]


def test_failures_of_other_cells_do_not_count(failures: Failures) -> None:
    elsewhere = Failures(Records(failures.records.database, OTHER_CELL))
    attempt = failures.fail("a")
    elsewhere.fail("a", attempt)
    elsewhere.succeed("a")
    elsewhere.succeed("a")
    assert (failures.by_host(), elsewhere.by_host()) == ({"a": 1.0}, {})


# --- Images -----------------------------------------------------------------------------------------------------------

LINUX, WINDOWS = {"os_distro": "debian", "secret": "x"}, {"os_distro": "windows", "hw_vif": "e1000"}


def test_image_properties_of_placed_servers_are_counted_if_they_are_configured(records: Records) -> None:
    for host in "abc":
        records.host(host)
    for state in ("active", "moving", "moved", "rebuilding", "shelving", "error"):
        records.instance("a", state, LINUX)
    records.instance("a", "active", WINDOWS)
    records.instance("b", "active", {"os_distro": "x" * 300})
    for state in ("deleted", "deleting", "building", "unshelving"):
        records.instance("b", state, LINUX)
    records.instance("b", "error", LINUX, claim_id=None)
    records.instance("c", "active", request_spec=None)

    loads = records.loads(reported_image_properties=["os_distro", "hw_vif"])

    expected = {"os_distro=debian": 6, "os_distro=windows": 1, "hw_vif=e1000": 1}
    assert loads == {"a": HostLoad(image_properties=expected)}
    assert records.loads() == {}


def test_few_requests_are_read_at_a_time(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conductor.cell.hosts.image_counts.SPECS_AT_ONCE", 3)
    records.host("a")
    for _ in range(7):
        records.instance("a", image=LINUX)
    counts = ImageCounts(records.database, records.cell, ["os_distro"])
    with statements_of(records.database) as sent:
        assert counts.now() == {"a": {"os_distro=debian": 7}}
    assert (
        sum(statement.startswith("SELECT cell_instances.host, cell_instances.request_spec") for statement in sent) == 3
    )


def test_a_call_counts_hosts_for_a_few_seconds_and_nothing_is_reported_before_all_were_counted(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conductor.cell.hosts.image_counts._COUNTED_FOR", 0.0)
    monkeypatch.setattr("conductor.cell.hosts.image_counts._AT_ONCE", 2)
    for host in "abcde":
        records.host(host)
        records.instance(host, image=LINUX)
    loads = CellLoads(
        options.new({"conductor": {"reported_image_properties": ["os_distro"]}}), records.database, records.cell
    )
    assert [loads.now(), loads.now()] == [None, None]
    for host in "abe":
        records.operation("build", records.instance(host, image=LINUX), state="done")
    expected = dict.fromkeys("abcde", 1)
    # Those that have waited longest come first, and those that were counted before are not waited for.
    for counted in ({"e": 2, "a": 2}, {"b": 2}):
        found = loads.now()
        assert found is not None
        expected |= counted
        assert {host: load.image_properties["os_distro=debian"] for host, load in found[0].items()} == expected


def test_only_hosts_on_which_an_operation_has_ended_are_counted_again(records: Records) -> None:
    for host in "ab":
        records.host(host)
    counts = ImageCounts(records.database, records.cell, ["os_distro"])
    assert counts.now() == {}

    on_a, on_b = records.instance("a", image=LINUX), records.instance("b", image=LINUX)
    records.operation("build", on_a, state="done")
    records.operation("build", on_b)
    assert counts.now() == {"a": {"os_distro=debian": 1}}
    expected = {"os_distro=debian": 1}
    assert ImageCounts(records.database, records.cell, ["os_distro"]).now() == {"a": expected, "b": expected}

    gone = cell_instances.update().where(cell_instances.c.uuid == on_a).values(state="deleted", host=None)
    records.database.write(lambda connection: connection.execute(gone))
    records.operation("delete", on_a, state="done")
    assert counts.now() == {}


def test_hosts_on_which_an_operation_ended_after_the_clock_was_set_back_are_counted_again(records: Records) -> None:
    records.host("a")
    counts = ImageCounts(records.database, records.cell, ["os_distro"])
    records.operation("build", records.instance("a", image=LINUX), state="done")
    assert counts.now() == {"a": {"os_distro=debian": 1}}

    # After the clock was set back by an hour, the time of the last count is an hour ahead.
    assert counts._looked_at is not None
    counts._looked_at += 3600.0
    records.operation("build", records.instance("a", image=LINUX), state="done")

    assert counts.now() == {"a": {"os_distro=debian": 2}}


def test_at_most_64_properties_of_a_host_are_reported_the_most_frequent_first(records: Records) -> None:
    records.host("a")
    records.instance("a", image={"build": "often"})
    for number in range(100):
        records.instance("a", image={"build": str(number)})
    records.instance("a", image={"build": "often"})
    [load] = records.loads(reported_image_properties=["build"]).values()
    assert len(load.image_properties) == 64
    assert load.image_properties["build=often"] == 2
