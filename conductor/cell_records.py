"""What a cell has on record of its instances and of every attempt to build them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Table, exc, select

from conductor.schema import cell_attempts, cell_instances
from moorage import errors
from moorage.columns import now
from moorage.messages import InstanceBuild
from moorage.model import Attempt, Flavor, Instance, RequestSpec, Selection

BUILDING = "building"
ACTIVE = "active"
ERROR = "error"
DELETING = "deleting"
DELETED = "deleted"

STARTING = "starting"
FAILED = "failed"
SKIPPED = "skipped"
ENDED = "ended"

#: Of an instance whose deletion came first nothing else is known; the super conductor knows it and shows its own.
_UNKNOWN_SPEC = RequestSpec(project_id="unknown", user_id="unknown", flavor=Flavor(vcpus=1, memory_mb=1))


@dataclass(frozen=True, slots=True)
class CellInstance:
    """An instance as its cell has it; ``attempt_number`` is that of the current attempt."""

    uuid: str
    state: str
    spec: RequestSpec
    selections: tuple[Selection, ...]
    attempt_number: int
    claim_id: str | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An attempt as its cell has it."""

    attempt_id: str
    instance_uuid: str
    number: int
    host: str
    agent: str
    claim_id: str | None
    state: str
    reason: str | None
    guest_gone: bool

    @property
    def claim(self) -> str:
        """The claim that the attempt is made under."""
        if self.claim_id is None:
            raise ValueError(f"attempt {self.attempt_id} was skipped")
        return self.claim_id

    @property
    def may_have_a_guest(self) -> bool:
        """Whether its host may have the guest: it may have been started, and is not known to be gone."""
        return self.claim_id is not None and not self.guest_gone

    @property
    def ended(self) -> bool:
        """Whether it passes no gate any more: the record on which a host destroys its guest."""
        return self.state not in (STARTING, BUILDING, ACTIVE)


@dataclass(frozen=True, slots=True)
class NewInstance:
    """An instance to be recorded with its first attempt."""

    build: InstanceBuild
    attempt_id: str


class CellRecords:
    """The records of one cell; each method is a part of the transaction that it is given."""

    def __init__(self, cell_uuid: str) -> None:
        self.cell_uuid = cell_uuid

    # --- Instances ----------------------------------------------------------------------------------------------------

    def known(self, connection: Connection, uuids: Collection[str]) -> set[str]:
        """Return those of the uuids that have a record, deleted ones included."""
        column = cell_instances.c.uuid
        return set(connection.scalars(select(column).where(self._in(cell_instances), column.in_(uuids))))

    def add(self, connection: Connection, new: Sequence[NewInstance], request_id: str) -> None:
        """Record instances, each with its first attempt on the host that is claimed for it.

        :raises RequestInProgress: another transaction has recorded one of them just now.
        """
        rows = [
            {
                "uuid": each.build.instance_uuid,
                "request_spec": msgspec.json.encode(each.build.request_spec),
                "selections": msgspec.json.encode(each.build.selections),
                "host": each.build.selections[0].service_host,
                "claim_id": each.build.selections[0].claim_id,
            }
            for each in new
        ]
        self._insert_instances(connection, rows, request_id, state=BUILDING, attempt_number=1)
        self._insert_attempts(
            connection,
            [
                {
                    "attempt_id": each.attempt_id,
                    "instance_uuid": each.build.instance_uuid,
                    "number": 1,
                    "host": each.build.selections[0].service_host,
                    "agent": each.build.selections[0].agent,
                    "claim_id": each.build.selections[0].claim_id,
                }
                for each in new
            ],
            state=STARTING,
            guest_gone=False,
        )

    def add_deleting(self, connection: Connection, uuid: str, request_id: str) -> None:
        """Record the deletion of an instance that has not arrived yet: when it does, it finds itself deleted.

        :raises RequestInProgress: another transaction has recorded it just now.
        """
        self._insert_instances(connection, [{"uuid": uuid}], request_id, state=DELETING, attempt_number=0)

    def lock(self, connection: Connection, uuid: str) -> CellInstance | None:
        """Lock and return an instance: first of all, in every transaction about it."""
        row = connection.execute(self._one(uuid).with_for_update()).one_or_none()
        return None if row is None else _instance(row)

    def read(self, connection: Connection, uuid: str) -> CellInstance | None:
        """Return an instance."""
        row = connection.execute(self._one(uuid)).one_or_none()
        return None if row is None else _instance(row)

    def change(self, connection: Connection, uuid: str, **values: Any) -> None:
        """Change an instance's record."""
        connection.execute(
            cell_instances.update()
            .where(self._in(cell_instances), cell_instances.c.uuid == uuid)
            .values(**_encoded(values), updated_at=now())
        )

    def show(self, connection: Connection, uuids: Collection[str]) -> list[Instance]:
        """Return those of the named instances that the cell knows, each with all its attempts."""
        attempts: dict[str, list[Attempt]] = {}
        for row in connection.execute(
            select(cell_attempts)
            .where(self._in(cell_attempts), cell_attempts.c.instance_uuid.in_(uuids))
            .order_by(cell_attempts.c.number)
        ):
            attempts.setdefault(row.instance_uuid, []).append(
                Attempt(
                    attempt_id=row.attempt_id,
                    number=row.number,
                    host=row.host,
                    state=row.state,
                    reason=_text(row.reason),
                    guest_left=row.claim_id is not None and not row.guest_gone,
                    created_at=row.created_at,
                    updated_at=row.updated_at,
                )
            )
        rows = connection.execute(
            select(cell_instances).where(self._in(cell_instances), cell_instances.c.uuid.in_(uuids))
        )
        return [self._shown(row, tuple(attempts.get(row.uuid, ()))) for row in rows]

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def attempts(self, connection: Connection, instance_uuid: str) -> list[AttemptRecord]:
        """Return all attempts of an instance in the order they were made."""
        rows = connection.execute(
            select(cell_attempts)
            .where(self._in(cell_attempts), cell_attempts.c.instance_uuid == instance_uuid)
            .order_by(cell_attempts.c.number)
        )
        return [_attempt(row) for row in rows]

    def attempt(self, connection: Connection, instance_uuid: str, attempt_id: str) -> AttemptRecord | None:
        """Return one attempt of an instance."""
        row = connection.execute(
            select(cell_attempts).where(
                self._in(cell_attempts),
                cell_attempts.c.attempt_id == attempt_id,
                cell_attempts.c.instance_uuid == instance_uuid,
            )
        ).one_or_none()
        return None if row is None else _attempt(row)

    def on_hosts(self, connection: Connection, hosts: Collection[str]) -> list[AttemptRecord]:
        """Return the attempts on these hosts that may have left a guest there, or have one."""
        rows = connection.execute(
            select(cell_attempts).where(
                self._in(cell_attempts),
                cell_attempts.c.host.in_(hosts),
                cell_attempts.c.claim_id.is_not(None),
                cell_attempts.c.guest_gone.is_(False),
            )
        )
        return [_attempt(row) for row in rows]

    def by_ids(self, connection: Connection, attempt_ids: Collection[str]) -> dict[str, AttemptRecord]:
        """Return the attempts of these ids that are on record."""
        rows = connection.execute(
            select(cell_attempts).where(self._in(cell_attempts), cell_attempts.c.attempt_id.in_(attempt_ids))
        )
        return {row.attempt_id: _attempt(row) for row in rows}

    def numbered(self, connection: Connection, instance_uuid: str, number: int) -> AttemptRecord:
        """Return the attempt of this number, which is on record."""
        [attempt] = [each for each in self.attempts(connection, instance_uuid) if each.number == number]
        return attempt

    def add_attempt(
        self,
        connection: Connection,
        instance_uuid: str,
        selection: Selection,
        *,
        attempt_id: str,
        number: int,
        claim_id: str | None = None,
        skipped: str | None = None,
    ) -> None:
        """Record an attempt that begins on a claimed host, or one that is ``skipped`` for this reason."""
        row = {
            "attempt_id": attempt_id,
            "instance_uuid": instance_uuid,
            "number": number,
            "host": selection.service_host,
            "agent": selection.agent,
            "claim_id": claim_id,
            "reason": None if skipped is None else skipped.encode(),
        }
        state = STARTING if skipped is None else SKIPPED
        self._insert_attempts(connection, [row], state=state, guest_gone=skipped is not None)

    def change_attempt(self, connection: Connection, attempt_id: str, **values: Any) -> None:
        """Change an attempt's record."""
        connection.execute(
            cell_attempts.update()
            .where(self._in(cell_attempts), cell_attempts.c.attempt_id == attempt_id)
            .values(**_encoded(values), updated_at=now())
        )

    # ------------------------------------------------------------------------------------------------------------------

    def _in(self, table: Table) -> ColumnElement[bool]:
        return table.c.cell_uuid == self.cell_uuid

    def _one(self, uuid: str) -> Any:
        return select(cell_instances).where(self._in(cell_instances), cell_instances.c.uuid == uuid)

    def _insert_instances(
        self, connection: Connection, rows: Sequence[dict[str, Any]], request_id: str, **same: Any
    ) -> None:
        try:
            connection.execute(
                cell_instances.insert().values(
                    cell_uuid=self.cell_uuid, request_id=request_id, created_at=now(), updated_at=now(), **same
                ),
                rows,
            )
        except exc.IntegrityError as fault:
            raise errors.RequestInProgress(request_id=request_id) from fault

    def _insert_attempts(self, connection: Connection, rows: Sequence[dict[str, Any]], **same: Any) -> None:
        connection.execute(
            cell_attempts.insert().values(cell_uuid=self.cell_uuid, created_at=now(), updated_at=now(), **same), rows
        )

    def _shown(self, row: Row[Any], attempts: tuple[Attempt, ...]) -> Instance:
        spec = _spec(row)
        return Instance(
            uuid=row.uuid,
            project_id=spec.project_id,
            user_id=spec.user_id,
            flavor=spec.flavor,
            state=row.state,
            cell_uuid=self.cell_uuid,
            host=row.host,
            claim_id=row.claim_id,
            reason=_text(row.reason),
            attempts=attempts,
            request_id=row.request_id,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _encoded(values: dict[str, Any]) -> dict[str, Any]:
    reason = values.get("reason")
    return values | {"reason": reason.encode()} if isinstance(reason, str) else values


def _spec(row: Row[Any]) -> RequestSpec:
    return _UNKNOWN_SPEC if row.request_spec is None else msgspec.json.decode(row.request_spec, type=RequestSpec)


def _instance(row: Row[Any]) -> CellInstance:
    selections = () if row.selections is None else msgspec.json.decode(row.selections, type=tuple[Selection, ...])
    return CellInstance(
        uuid=row.uuid,
        state=row.state,
        spec=_spec(row),
        selections=selections,
        attempt_number=row.attempt_number,
        claim_id=row.claim_id,
    )


def _attempt(row: Row[Any]) -> AttemptRecord:
    return AttemptRecord(
        attempt_id=row.attempt_id,
        instance_uuid=row.instance_uuid,
        number=row.number,
        host=row.host,
        agent=row.agent,
        claim_id=row.claim_id,
        state=row.state,
        reason=_text(row.reason),
        guest_gone=row.guest_gone,
    )
