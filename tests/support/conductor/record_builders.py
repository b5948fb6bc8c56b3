"""Records of conductors on SQLite and on MariaDB, with test data."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor.cell.records.instances import CellRecords, NewInstance
from conductor.engine.operations import Operations
from conductor.engine.steps import BUILD, NewOperation, NoPayload, Operation
from conductor.schema import CELL, CONDUCTOR
from moorage import ids
from moorage.db.database import Database
from moorage.messages import InstanceBuild
from moorage.model import AllocationRequest, Flavor, ProviderAmounts, RequestSpec, Selection
from support.databases import migrated

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024))
NODE = ids.derived("node", "a")
CELL_UUID = ids.fresh()
RECORDS = CellRecords(CELL_UUID)


@pytest.fixture(name="database", params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def records_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with the records of both kinds of conductors."""
    if request.param == "mariadb":
        url = request.getfixturevalue("migrated_mariadb").url(CONDUCTOR, CELL)
    else:
        url = migrated.sqlite(tmp_path / "records.sqlite", CONDUCTOR, CELL)
    database = Database(url, "test")
    yield database
    database.close()


def begin(database: Database, operations: Operations, subject: str = "s", kind: str = BUILD) -> Operation:
    """Start an operation at its first step."""
    new = NewOperation(uuid=ids.fresh(), kind=kind, subject=subject, step="one", payload=NoPayload())
    [begun] = database.write(lambda connection: operations.begin(connection, [new], "req"))
    return begun


def selected(cell: str) -> Selection:
    """Return a selection with a host of a cell."""
    return Selection(
        service_host="a",
        nodename="a",
        compute_node_uuid=NODE,
        cell_uuid=cell,
        agent="agent",
        availability_zone="nova",
        allocation_request=AllocationRequest(allocations={NODE: ProviderAmounts(resources=SPEC.resources)}),
        claim_id=ids.fresh(),
    )


def built(database: Database) -> tuple[str, str]:
    """Record an instance of the cell whose first attempt holds a claim; return both ids."""
    uuid, attempt_id = ids.fresh(), ids.fresh()
    build = InstanceBuild(instance_uuid=uuid, request_spec=SPEC, selections=(selected(CELL_UUID),))
    database.write(lambda connection: RECORDS.add(connection, [NewInstance(attempt_id, build, "req")]))
    return uuid, attempt_id
