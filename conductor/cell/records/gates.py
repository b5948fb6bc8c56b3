"""Read instances, each with one of its attempts: the columns that decide whether the attempt passes a gate."""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, func, select

from conductor.schema import cell_attempts, cell_hosts, cell_instances
from moorage.model.states import AttemptState, InstanceState

# SELECT … FROM cell_instances LEFT OUTER JOIN cell_attempts ON … AND attempt_id IN (…)
#  WHERE cell_uuid = :cell_uuid AND uuid IN (…) [FOR UPDATE]
# The instance comes first, so it is locked first, as in every other transaction. Read only the columns that a gate
# needs: reading a column costs as much as finding a row.
_JOINED = (
    select(
        cell_instances.c.uuid,
        cell_instances.c.state,
        cell_instances.c.attempt_number,
        cell_attempts.c.attempt_id,
        cell_attempts.c.number,
        cell_attempts.c.host,
        cell_attempts.c.claim_id,
        cell_attempts.c.state,
    )
    .select_from(
        cell_instances.outerjoin(
            cell_attempts,
            and_(
                cell_attempts.c.cell_uuid == cell_instances.c.cell_uuid,
                cell_attempts.c.instance_uuid == cell_instances.c.uuid,
                cell_attempts.c.attempt_id.in_(bindparam("attempt_ids", expanding=True)),
            ),
        )
    )
    .where(
        cell_instances.c.cell_uuid == bindparam("cell_uuid"),
        cell_instances.c.uuid.in_(bindparam("uuids", expanding=True)),
    )
)
_LOCKED = _JOINED.with_for_update()
_RETURNING = (
    select(func.max(cell_hosts.c.is_returning))
    .where(cell_hosts.c.cell_uuid == cell_attempts.c.cell_uuid, cell_hosts.c.service_host == cell_attempts.c.host)
    .scalar_subquery()
)
_SEEN = _JOINED.add_columns(_RETURNING.label("is_returning"))


class AttemptName(NamedTuple):
    """The attempt that a message names."""

    instance_uuid: str
    attempt_id: str


class InstanceAtGate(NamedTuple):
    """The columns of an instance that a gate needs."""

    uuid: str
    state: InstanceState
    attempt_number: int


class AttemptAtGate(NamedTuple):
    """The columns of an attempt that a gate needs."""

    attempt_id: str
    instance_uuid: str
    number: int
    host: str
    claim_id: str | None
    state: AttemptState


class AtGate(NamedTuple):
    """An instance, and the attempt that a message names, if the instance has it."""

    instance: InstanceAtGate
    attempt: AttemptAtGate | None
    #: The attempt's host is returning; false if this was not read.
    is_returning: bool = False


Found = dict[AttemptName, AtGate]


def look(connection: Connection, cell_uuid: str, named: Collection[AttemptName]) -> Found:
    """Return known instances with their attempts, without locks, and whether the attempts' hosts are returning."""
    return _found(connection, _SEEN, cell_uuid, named)


def lock(connection: Connection, cell_uuid: str, named: Collection[AttemptName]) -> Found:
    """Lock instances and their attempts, and return those that are known.

    This statement does not read whether a host is returning, because it would lock the host too. The caller reads that
    without a lock, but only after this statement has its locks.
    """
    return _found(connection, _LOCKED, cell_uuid, named)


def _found(connection: Connection, query: Select[Any], cell_uuid: str, named: Collection[AttemptName]) -> Found:
    uuids, attempt_ids = sorted({name.instance_uuid for name in named}), sorted({name.attempt_id for name in named})
    rows = connection.execute(query, {"cell_uuid": cell_uuid, "uuids": uuids, "attempt_ids": attempt_ids})
    known: dict[str, AtGate] = {}
    attempts: Found = {}
    # If several attempts of an instance are named, the instance has several rows.
    for uuid, state, attempt_number, attempt_id, number, host, claim_id, attempt_state, *returning in rows:
        instance = InstanceAtGate(uuid, state, attempt_number)
        known[uuid] = AtGate(instance, None)
        if attempt_id is not None:
            attempt = AttemptAtGate(attempt_id, uuid, number, host, claim_id, attempt_state)
            attempts[AttemptName(uuid, attempt_id)] = AtGate(instance, attempt, any(returning))
    return {name: attempts.get(name, known[name.instance_uuid]) for name in named if name.instance_uuid in known}
