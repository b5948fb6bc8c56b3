"""Read instances, each with one of its attempts: the columns that decide whether the attempt passes a gate."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, func, select

from conductor.schema import cell_attempts, cell_hosts, cell_instances, cell_migrations
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
_EVACUATED = select(cell_migrations.c.instance_uuid, cell_migrations.c.source_host).where(
    cell_migrations.c.cell_uuid == bindparam("cell_uuid"),
    cell_migrations.c.instance_uuid.in_(bindparam("uuids", expanding=True)),
    cell_migrations.c.kind == "evacuation",
    cell_migrations.c.state == "moving",
)


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
    #: The host that must be forced down when the attempt passes the first gate: the source of an evacuation. Null for
    #: other attempts, and if this was not read.
    evacuated: str | None = None


class AtGate(NamedTuple):
    """An instance, and the attempt that a message names, if the instance has it."""

    instance: InstanceAtGate
    attempt: AttemptAtGate | None
    #: The attempt's host is returning; false if this was not read.
    is_returning: bool = False


Found = dict[AttemptName, AtGate]


def look(connection: Connection, cell_uuid: str, named: Collection[AttemptName]) -> Found:
    """Return known instances with their attempts, without locks.

    Return also whether the attempts' hosts are returning, and the hosts that are evacuated.
    """
    found = _found(connection, _SEEN, cell_uuid, named)
    # Builds have no migration, and need no second statement.
    moving = sorted({at_gate.instance.uuid for at_gate in found.values() if at_gate.instance.state == "moving"})
    if not moving:
        return found
    rows = connection.execute(_EVACUATED, {"cell_uuid": cell_uuid, "uuids": moving})
    sources = {row.instance_uuid: row.source_host for row in rows}
    return {name: _with_source(at_gate, sources) for name, at_gate in found.items()}


def lock(connection: Connection, cell_uuid: str, named: Collection[AttemptName]) -> Found:
    """Lock instances and their attempts, and return those that are known.

    This statement does not read whether a host is returning, because it would lock the host too. The caller reads that
    without a lock, but only after this statement has its locks.
    """
    return _found(connection, _LOCKED, cell_uuid, named)


def _with_source(at_gate: AtGate, sources: Mapping[str, str]) -> AtGate:
    attempt = at_gate.attempt
    # An attempt that has passed the first gate may have its guest: the second gate decides.
    if attempt is None or attempt.state != "starting":
        return at_gate
    return at_gate._replace(attempt=attempt._replace(evacuated=sources.get(attempt.instance_uuid)))


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
