"""The instances of the super conductor: the request, the selections of the scheduler, the cell, the state."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, exc, select, union_all

from conductor.engine.rows import (
    SPECS_AT_ONCE,
    ShownSpec,
    batches,
    document,
    encoded,
    grouped,
    of_row,
    text,
    whole_list,
)
from conductor.engine.steps import MOVE, UNSHELVE
from conductor.schema import conductor_instances as instances
from conductor.schema import conductor_operations as operations
from moorage import errors
from moorage.db.columns import now
from moorage.db.forced_index import by_index
from moorage.db.new_rows import NewRows
from moorage.messages import InstanceBuild, ListInstances
from moorage.model import Explanation, Instance, RequestSpec, Selection
from moorage.model.states import InstanceState

_NEW = NewRows(instances, created_at=0.0, updated_at=0.0)
# Built once: it takes SQLAlchemy longer to build a statement than to run it.
_LOCKED = (
    select(instances.c.uuid, instances.c.state, instances.c.cell_uuid, instances.c.operation_uuid)
    .where(instances.c.uuid.in_(bindparam("uuids", expanding=True)))
    .order_by(instances.c.id)
    .with_for_update()
)
_SELECTED = (
    instances.update()
    .where(instances.c.uuid == bindparam("instance"))
    .values(cell_uuid=bindparam("to_cell"), selections=bindparam("to_selections"), updated_at=now())
)
_HANDED_OVER = (
    instances.update()
    .where(
        instances.c.operation_uuid.in_(bindparam("operation_uuids", expanding=True)),
        instances.c.cell_uuid == bindparam("cell"),
        instances.c.selections.is_not(None),
    )
    .values(handed_over=True, selections=None, reason=None, updated_at=now())
)
# Restricted to the instances: very many other operations may be pending while a cell is unavailable.
_BEING_PLACED = select(operations.c.subject, operations.c.kind, operations.c.uuid).where(
    operations.c.subject.in_(bindparam("uuids", expanding=True)),
    operations.c.state == "pending",
    operations.c.kind.in_((MOVE, UNSHELVE)),
)
_NUMBERED = select(instances).where(instances.c.id.in_(bindparam("numbers", expanding=True))).order_by(instances.c.id)

#: The states of existing instances in this record; a newer release may have more.
_EXISTING: tuple[InstanceState, ...] = ("building", "error", "deleting")


class NewInstances(NamedTuple):
    """Instances to be built by one operation."""

    uuids: Sequence[str]
    spec: RequestSpec
    operation_uuid: str
    request_id: str
    #: One name for each instance, or no names.
    names: Sequence[str] = ()


def add(connection: Connection, new: Collection[NewInstances]) -> None:
    """Record instances to be built.

    :raises AlreadyExists: one of the uuids is on record, deleted instances included.
    """
    rows = []
    for each in new:
        same = {
            "operation_uuid": each.operation_uuid,
            "request_id": each.request_id,
            "project_id": each.spec.project_id,
            "user_id": each.spec.user_id,
            "request_spec": msgspec.json.encode(each.spec),
        }
        names: Sequence[str | None] = each.names or [None] * len(each.uuids)
        rows += [{"uuid": uuid, "name": name, **same} for uuid, name in zip(each.uuids, names, strict=True)]
    try:
        _NEW.insert(connection, rows, state="building", handed_over=False)
    except exc.IntegrityError as fault:
        uuids = [uuid for each in new for uuid in each.uuids]
        raise errors.AlreadyExists(kind="instance", name=_first_known(connection, uuids)) from fault


def _first_known(connection: Connection, uuids: Collection[str]) -> str:
    """Return the uuid that was recorded first, for an error message; its record may be deleted by now."""
    # SQLite keeps the rows of a refused statement that precede the refused row: these have the greater ids.
    known = select(instances.c.uuid).where(instances.c.uuid.in_(uuids)).order_by(instances.c.id).limit(1)
    return connection.scalars(known).one_or_none() or "of this request"


def spec_of(connection: Connection, operation_uuid: str) -> RequestSpec:
    """Return the request of the instances that an operation builds."""
    spec = connection.scalars(
        select(instances.c.request_spec).where(instances.c.operation_uuid == operation_uuid).limit(1)
    ).one()
    return msgspec.json.decode(spec, type=RequestSpec)


def number_order(connection: Connection, uuid: str, last_order: int | None = None) -> int:
    """Take the next order number of an instance that the caller has locked, and return it.

    :param last_order: the number of the last order that the operator has seen, if known.
    :raises StaleOrder: another order has been given since.
    """
    last: int = connection.scalars(select(instances.c.order_number).where(instances.c.uuid == uuid)).one()
    if last_order is not None and last_order != last:
        raise errors.StaleOrder(
            instance_uuid=uuid, reason=f"it was given after order {last_order}, and the last one is {last} by now"
        )
    connection.execute(instances.update().where(instances.c.uuid == uuid).values(order_number=last + 1))
    return last + 1


class LockedInstance(NamedTuple):
    """The columns of an instance that orders depend on, read with a lock."""

    state: InstanceState
    cell_uuid: str | None
    #: The operation that builds it or has built it.
    operation_uuid: str


def lock(connection: Connection, uuids: Collection[str]) -> dict[str, LockedInstance]:
    """Lock instances in the order of their ids, so that no two transactions deadlock, and return them by uuid."""
    rows = connection.execute(_LOCKED, {"uuids": list(uuids)})
    return {row.uuid: LockedInstance(row.state, row.cell_uuid, row.operation_uuid) for row in rows}


def lock_building(connection: Connection, uuids: Collection[str]) -> set[str]:
    """Lock instances, and return those that are still being built."""
    return {uuid for uuid, row in lock(connection, uuids).items() if row.state == "building"}


def lock_known(connection: Connection, uuid: str) -> LockedInstance:
    """Lock an instance and return it.

    :raises InstanceNotFound: there is no such instance.
    """
    row = lock(connection, [uuid]).get(uuid)
    if row is None:
        raise errors.InstanceNotFound(name=uuid)
    return row


def is_deleted(connection: Connection, uuid: str) -> bool:
    """Lock an instance, and return whether its deletion has been ordered."""
    row = lock(connection, [uuid]).get(uuid)
    return row is None or row.state in ("deleting", "deleted")


def explain(connection: Connection, uuid: str, explanation: Mapping[str, Any] | None) -> None:
    """Record why the last placement of an instance failed; null clears the explanation."""
    _change(connection, instances.c.uuid == uuid, explanation=explanation)


def select_for(connection: Connection, chosen: Mapping[str, Sequence[Selection]]) -> None:
    """Record the selections of instances, and their cells: from now on the instances may be sent there."""
    if not chosen:
        return
    rows = [
        {"instance": uuid, "to_cell": found[0].cell_uuid, "to_selections": msgspec.json.encode(list(found))}
        for uuid, found in chosen.items()
    ]
    connection.execute(_SELECTED, rows)


def fail(
    connection: Connection,
    uuids: Collection[str],
    reason: str,
    explanation: Mapping[str, Any] | None = None,
    *,
    by_cell: bool = False,
) -> None:
    """Set instances that are still being built to error, with the reason. No cell has them.

    :param by_cell: a cell has refused them, so they have claims.
    """
    still = (instances.c.uuid.in_(uuids), instances.c.state == "building")
    values = {"state": "error", "reason": reason, "explanation": explanation, "cell_uuid": None, "selections": None}
    _change(connection, *still, **values, handed_over=by_cell)


def add_to_reasons(connection: Connection, further: Mapping[str, str]) -> None:
    """Add texts to the reasons of those instances that are in error."""
    locked = lock(connection, further)
    for uuid in [uuid for uuid in further if uuid in locked and locked[uuid].state == "error"]:
        reason = connection.scalar(select(instances.c.reason).where(instances.c.uuid == uuid))
        _change(connection, instances.c.uuid == uuid, reason="; ".join(filter(None, [text(reason), further[uuid]])))


def refused(connection: Connection, operation_uuid: str) -> dict[str, str]:
    """Return the instances of a build that a cell has refused, each with its reason."""
    query = select(instances.c.uuid, instances.c.reason).where(
        instances.c.operation_uuid == operation_uuid,
        instances.c.state == "error",
        instances.c.cell_uuid.is_(None),
        # Only these have claims of this build.
        instances.c.handed_over.is_(True),
    )
    return {row.uuid: text(row.reason) or "" for row in connection.execute(query)}


def to_hand_over(connection: Connection, operation_uuid: str) -> dict[str, tuple[InstanceBuild, ...]]:
    """Return the builds to hand over to each cell, in the order of the request.

    The result stays the same until the cell has the builds. It includes instances whose deletion was ordered meanwhile:
    the cell may have them already, and a repeated request id must have the same content.
    """
    rows = connection.execute(
        select(instances.c.uuid, instances.c.cell_uuid, instances.c.request_spec, instances.c.selections)
        .where(instances.c.operation_uuid == operation_uuid, instances.c.selections.is_not(None))
        .order_by(instances.c.id)
    )
    return _by_cell(
        (
            row.cell_uuid,
            InstanceBuild(
                instance_uuid=row.uuid,
                request_spec=msgspec.json.decode(row.request_spec, type=RequestSpec),
                selections=msgspec.json.decode(row.selections, type=tuple[Selection, ...]),
            ),
        )
        for row in rows
    )


def builds_of(spec: RequestSpec, chosen: Mapping[str, Sequence[Selection]]) -> dict[str, tuple[InstanceBuild, ...]]:
    """Return the same as :func:`to_hand_over`, for the instances that :func:`select_for` has just recorded.

    :param chosen: the selections of each instance, in the order of the request.
    """
    return _by_cell(
        (found[0].cell_uuid, InstanceBuild(instance_uuid=uuid, request_spec=spec, selections=tuple(found)))
        for uuid, found in chosen.items()
    )


def _by_cell(builds: Iterable[tuple[str, InstanceBuild]]) -> dict[str, tuple[InstanceBuild, ...]]:
    return {cell_uuid: tuple(of_cell) for cell_uuid, of_cell in grouped(builds).items()}


def handed_over(connection: Connection, operation_uuids: Collection[str], cell_uuid: str) -> None:
    """Record that a cell has the builds of operations."""
    connection.execute(_HANDED_OVER, {"operation_uuids": sorted(operation_uuids), "cell": cell_uuid})


def note(connection: Connection, operation_uuid: str, cell_uuid: str, reason: str) -> None:
    """Record why a cell does not have the builds of an operation yet; the instances are still being built."""
    its_builds = (instances.c.operation_uuid == operation_uuid, instances.c.cell_uuid == cell_uuid)
    _change(connection, *its_builds, instances.c.selections.is_not(None), reason=reason)


def note_deleted(connection: Connection, uuids: Collection[str]) -> None:
    """Record that the cells of instances have deleted them."""
    not_yet = instances.c.state != "deleted"
    _change(connection, instances.c.uuid.in_(uuids), not_yet, state="deleted", reason=None, explanation=None)


def set_state(connection: Connection, uuids: Collection[str], state: InstanceState, reason: str | None = None) -> None:
    """Record the state of instances, with a reason for the operator, and clear the explanation."""
    _change(connection, instances.c.uuid.in_(uuids), state=state, reason=reason, explanation=None)


def read(connection: Connection, uuid: str, *, with_request: bool = False) -> Instance:
    """Return one instance as recorded here, without its cell's record.

    :raises InstanceNotFound: there is no such instance.
    """
    row = connection.execute(select(instances).where(instances.c.uuid == uuid)).one_or_none()
    if row is None:
        raise errors.InstanceNotFound(name=uuid)
    return _instance(row, with_request=with_request)


def being_placed(connection: Connection, uuids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the kind and the uuid of each pending move or unshelving of these instances, by instance uuid.

    No cell carries it out yet.
    """
    rows = [row for part in batches(uuids) for row in connection.execute(_BEING_PLACED, {"uuids": part})]
    return {row.subject: (row.kind, row.uuid) for row in rows}


def built_by(connection: Connection, uuid: str) -> Sequence[str]:
    """Return the uuid of the operation that builds an instance, in a list that is empty if there is no instance."""
    return connection.scalars(select(instances.c.operation_uuid).where(instances.c.uuid == uuid)).all()


def list_all(connection: Connection, message: ListInstances) -> list[Instance]:
    """Return instances as recorded here, in the order of their requests; with a limit, one page of them.

    The transaction must read one snapshot: otherwise a page may lack instances that are deleted meanwhile, and the
    client takes a short page for the last one.

    :raises ReplyTooLarge: no limit is given, and one message cannot have all of them.
    """
    if message.limit is None:
        return whole_list(message, partial(list_all, connection))
    # A request may have half a megabyte, and nearly all of it is not shown: a few requests are in memory at a time.
    return [
        _instance(row)
        for numbers in batches(connection.scalars(_page(message)).all(), SPECS_AT_ONCE)
        for row in connection.execute(_NUMBERED, {"numbers": numbers})
    ]


def _page(message: ListInstances) -> Select[tuple[int]]:
    """Return the query for the numbers of a page, without the rows, which a union would copy with their requests."""
    statement = select(instances.c.id).order_by(instances.c.id).limit(message.limit)
    if message.after is not None:
        statement = statement.where(instances.c.id > message.after)
    for column in (instances.c.request_id, instances.c.project_id, instances.c.name):
        if (wanted := getattr(message, column.name)) is not None:
            statement = statement.where(column == wanted)
    is_of_few = message.request_id is not None or message.name is not None
    if not is_of_few and not (message.deleted and message.project_id is None):
        index = "state_id" if message.project_id is None else "project"
        statement = _by_states(statement, f"ix_conductor_instances_{index}", message)
    elif not message.deleted:
        statement = statement.where(instances.c.state != "deleted")
    return statement


def _by_states(page: Select[tuple[int]], index: str, message: ListInstances) -> Select[tuple[int]]:
    """Return the query for a page of instances whose index ends with the state and the id: it reads one page per state.

    Otherwise a database would read all deleted instances before the next existing one, or sort a whole project.
    """
    # SELECT id FROM (SELECT id FROM (SELECT id ... WHERE state = 'building' AND id > :after ORDER BY id LIMIT :n)
    #   UNION ALL ...) ORDER BY id LIMIT :n
    # The optimizer would expect to find a page sooner along the primary key.
    each = [instances.c.state == state for state in (*_EXISTING, *(("deleted",) if message.deleted else ()))]
    each.append(instances.c.state.not_in((*_EXISTING, "deleted")))
    forced = by_index(page, instances, index)
    parts = union_all(*(select(forced.where(one).subquery()) for one in each)).subquery()
    return select(parts.c.id).order_by(parts.c.id).limit(message.limit)


def _change(connection: Connection, *where: ColumnElement[bool], **values: Any) -> None:
    connection.execute(instances.update().where(*where).values(**encoded(values), updated_at=now()))


def _instance(row: Row[Any], *, with_request: bool = False) -> Instance:
    request = document(row.request_spec, RequestSpec) if with_request else None
    spec = request or msgspec.json.decode(row.request_spec, type=ShownSpec)
    return of_row(
        Instance,
        row,
        flavor=spec.flavor,
        reason=text(row.reason),
        explanation=document(row.explanation, Explanation),
        last_order=row.order_number,
        request_spec=request,
        number=row.id,
    )
