"""Operations, selections and instances on record, for the tests of conductors' records."""

from collections.abc import Callable

from conductor.cell.records.instances import CellRecords, NewInstance
from conductor.engine.operations import Operations, StepDone
from conductor.engine.steps import BUILD, CommitStep, NoPayload, Operation, Outcome
from moorage import context, ids
from moorage.db.database import Database
from moorage.messages import InstanceBuild
from moorage.model import AllocationRequest, Flavor, ProviderAmounts, RequestSpec, Selection

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024))
NODE = ids.derived("node", "a")
CELL_UUID = ids.fresh()
RECORDS = CellRecords(CELL_UUID)


def begin(database: Database, operations: Operations, subject: str = "s", kind: str = BUILD) -> Operation:
    """Start an operation at its first step."""
    new = Operation.new("req", uuid=ids.fresh(), kind=kind, subject=subject, step="one", payload=NoPayload())
    [begun] = database.write(lambda connection: operations.begin(connection, [new]))
    return begun


def advance(
    operations: Operations,
    operation: Operation,
    commit: CommitStep,
    note: Callable[[Outcome], None] = lambda _: None,
) -> Operation | None:
    """Commit the outcome of a step in the context of this thread."""
    return operations.commit(StepDone(operation, commit, context.current(), note))


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
