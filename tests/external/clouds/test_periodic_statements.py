"""The cost of periodic tasks does not grow with a cloud's age: no statement of an idle cloud reads ended records."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Boolean, Engine, RowMapping, Table, event
from sqlalchemy.engine import Connection
from support.conductor.builders import wait_until

from conductor.schema import (
    cell_attempts,
    cell_disowned,
    cell_instances,
    cell_migrations,
    cell_operations,
    cell_requests,
    conductor_disowned,
    conductor_instances,
    conductor_migrations,
    conductor_operations,
    conductor_requests,
)
from harness.cloud import CloudSpec, RunningCloud
from moorage import ids
from moorage.messages import BuildInstances, DeleteInstance, MigrateInstance, ShowInstance
from moorage.model import Flavor, RequestSpec
from placement_store.schema import reconciled, requests, tombstones

ENDED = 1_000_000 if os.environ.get("DRILLS") == "long" else 20_000
#: Rows of one statement that fills a table: no statement may last longer than `[database] statement_timeout`.
_AT_ONCE = 20_000
#: The maximum number of rows that a statement may read from one table: far more than there are living records here, and
#: far fewer than ended ones.
MOST = 2_000
#: Seconds without a new statement after which all statements have been seen: as long as the longest interval set below.
QUIET = 4.0
SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512))

_YESTERDAY = "UNIX_TIMESTAMP() - 86400 + seq / 100"
#: The values of ended records, by column name; other columns that must have a value get one by their type.
_VALUES = {
    "cell_uuid": "'{cell}'",
    "cell_instances.state": "'deleted'",
    "conductor_instances.state": "'deleted'",
    "conductor_migrations.state": "'confirmed'",
    "cell_migrations.state": "'confirmed'",
    "conductor_operations.state": "'done'",
    "cell_operations.state": "'done'",
    "cell_attempts.state": "'ended'",
    "cell_attempts.claim_id": "NULL",
    "host": "CONCAT('host', seq % 100)",
    "kind": "'build'",
    "guest_gone": "1",
    "created_at": _YESTERDAY,
    "updated_at": _YESTERDAY,
    "due_at": _YESTERDAY,
    "acknowledged_at": _YESTERDAY,
    "looked_at": _YESTERDAY,
    "outcome": "'released'",
    "method": "'method'",
    "request_spec": "'{{}}'",
}
_FILLED = (
    conductor_instances,
    conductor_migrations,
    conductor_operations,
    conductor_requests,
    conductor_disowned,
    cell_instances,
    cell_attempts,
    cell_migrations,
    cell_operations,
    cell_requests,
    cell_disowned,
    requests,
    tombstones,
    reconciled,
)


def _value(table: Table, name: str, cell: str) -> str | None:
    """Return the value of a column of an ended record, as SQL; null if the database chooses it."""
    column = table.c[name]
    for key in (f"{table.name}.{name}", name):
        if key in _VALUES:
            return _VALUES[key].format(cell=cell)
    if column.autoincrement is True or column.nullable or column.server_default is not None:
        return None
    if isinstance(column.type, Boolean):
        return "1"
    kind = str(column.type)
    if "VARCHAR" in kind:
        # A number in the form of a uuid, in ascending order: in another order, a million rows would take an hour.
        return "CONCAT(LPAD(HEX(seq), 8, '0'), '-0000-4000-8000-', LPAD(seq, 12, '0'))"
    return "'x'" if "BLOB" in kind or "BINARY" in kind else "seq"


def fill(connection: Connection, table: Table, cell: str) -> None:
    """Insert ended records."""
    values = {column.name: _value(table, column.name, cell) for column in table.c}
    given = {name: value for name, value in values.items() if value is not None}
    for first in range(1, ENDED + 1, _AT_ONCE):
        connection.exec_driver_sql(
            f"INSERT INTO {table.name} ({', '.join(given)}) "
            f"SELECT {', '.join(given.values()).replace('%', '%%')} FROM seq_{first}_to_{first + _AT_ONCE - 1}"
        )
        connection.commit()
    connection.exec_driver_sql(f"ANALYZE TABLE {table.name}")


class OldCloud(RunningCloud):
    """A cloud with the records of many instances that were built, moved and deleted."""

    def _create_schemas(self) -> None:
        super()._create_schemas()
        cell = ids.derived("harness", self.plan.seed, "cell", self.cell_names[0])
        with self.database.engine.connect() as connection:
            for table in _FILLED:
                fill(connection, table, cell)
                connection.commit()


class Statements:
    """The statements that were sent to databases, each with the parameters of its first execution."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}
        self.last_new = time.monotonic()

    def __call__(
        self, _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
    ) -> None:
        if statement.split(None, 1)[0] in ("SELECT", "UPDATE", "DELETE") and statement not in self.parameters:
            self.parameters[statement] = parameters[0] if many else parameters
            self.last_new = time.monotonic()


@pytest.fixture
def executed() -> Iterator[Statements]:
    listener = Statements()
    event.listen(Engine, "before_cursor_execute", listener)
    yield listener
    event.remove(Engine, "before_cursor_execute", listener)


def _rows(row: RowMapping) -> float:
    """Return how many rows a line of a plan reads; with a filter, the plan has the form ``12 (5%)``.

    The plan of an executed statement has the number of rows that were read; other plans ignore that a LIMIT ends the
    statement early.
    """
    return float(str(row.get("r_rows") or row["rows"] or 0).split()[0])


def statements_that_read_too_much(cloud: RunningCloud, statements: Mapping[str, Any]) -> list[str]:
    """Return the statements whose plan reads more than :data:`MOST` rows of a table."""
    found: list[str] = []
    with cloud.database.engine.connect() as connection:
        for statement, parameters in statements.items():
            plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings().all()
            if statement.startswith("SELECT") and any(_rows(row) > MOST for row in plan):
                plan = connection.exec_driver_sql(f"ANALYZE {statement}", parameters).mappings().all()
            found += [
                f"{row['table']}: {row['type']} by {row['key']}, {_rows(row):g} rows: {statement}"
                for row in plan
                if _rows(row) > MOST
            ]
    return found


def becomes(cloud: RunningCloud, uuid: str, state: str) -> None:
    conductor = cloud.client("conductor")
    look: Callable[[], str] = lambda: conductor.call(ShowInstance(instance_uuid=uuid)).state  # noqa: E731
    wait_until(lambda: look() == state, look)


def test_no_periodic_statement_reads_ended_records(mariadb_url: str, executed: Statements) -> None:
    plan = CloudSpec(
        hosts=4,
        database_connection=mariadb_url,
        settings={
            "conductor": {"housekeeping_interval": 0.5, "reported_image_properties": ["os"], "record_retention": 9e7},
            "placement": {"reconcile_interval": 1.0, "reconcile_after": 1.0},
        },
    )
    with OldCloud(plan) as cloud:
        conductor = cloud.client("conductor")
        stays, goes, moves = uuids = tuple(ids.fresh() for _ in range(3))
        conductor.call(BuildInstances(request_id=ids.fresh(), request_spec=SPEC, instance_uuids=uuids))
        for uuid in uuids:
            becomes(cloud, uuid, "active")
        conductor.call(DeleteInstance(request_id=ids.fresh(), instance_uuid=goes))
        conductor.call(MigrateInstance(request_id=ids.fresh(), instance_uuid=moves))
        becomes(cloud, goes, "deleted")
        becomes(cloud, moves, "moved")
        becomes(cloud, stays, "active")
        wait_until(lambda: time.monotonic() - executed.last_new > QUIET, lambda: "new statements all the time")

        statements = dict(executed.parameters)
        found = statements_that_read_too_much(cloud, statements)
        assert not found, "\n".join(found)
        # A statement that reads a whole table is found.
        assert statements_that_read_too_much(cloud, {"SELECT * FROM cell_instances WHERE reason = %(r)s": {"r": b"x"}})
        named = " ".join(statements)
        assert all(table.name in named for table in _FILLED), "no statement of an idle cloud reads one of the tables"
