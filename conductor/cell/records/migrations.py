"""Records of a cell's migrations.

For the states and their order see :data:`moorage.model.states.MigrationState`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, select

from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.engine.rows import document, encoded, of_row, text
from conductor.engine.steps import Superseded
from conductor.schema import cell_migrations, cell_operations
from moorage.db.columns import now
from moorage.messages import MoveInCell, MovingGuest, PrepareMoveInCell
from moorage.model import AllocationRequest, Migration, MoveKind, RequestSpec, Selection
from moorage.model.states import InstanceState, MigrationState
from moorage.service.pruning import AT_ONCE

#: Migrations that stop the guest on its source; the guest is started again if they fail or are reverted.
STOPPING: tuple[MoveKind, ...] = ("cold-migration", "resize")
#: Migrations that are confirmed as soon as the guest runs, without an order.
SELF_CONFIRMING: tuple[MoveKind, ...] = ("live-migration", "evacuation")

#: The failed migrations of an instance that claimed nothing: so many are kept. Arbitrary.
_UNCLAIMED = 100

# Without the documents, which are not shown: a request may have half a megabyte.
_SHOWN = select(*(column for column in cell_migrations.c if column.name not in {"request_spec", "held", "selections"}))


@dataclass(frozen=True, slots=True)
class CellMigration:
    """The record of a migration."""

    uuid: str
    instance_uuid: str
    kind: MoveKind
    state: MigrationState
    #: The state of the instance before the migration; it is restored if the migration fails or is reverted.
    instance_state: InstanceState
    source_number: int
    #: When it was prepared, by the database's clock.
    created_at: float
    is_aborted: bool
    #: The request of the instance after the migration, the allocations that the migration holds on the source, and the
    #: destinations to try; null and empty until something is claimed.
    spec: RequestSpec | None
    held: AllocationRequest | None
    selections: tuple[Selection, ...]
    first_number: int

    @property
    def claimed_with(self) -> tuple[RequestSpec, AllocationRequest]:
        """The request of the instance after the migration, and the allocations that the migration holds on the source.

        :raises ValueError: nothing is claimed yet.
        """
        if self.spec is None or self.held is None:
            raise ValueError(f"nothing is claimed for migration {self.uuid}")
        return self.spec, self.held

    def guest(self, source: AttemptRecord) -> MovingGuest:
        """Return the description of the source that the destination's agent gets."""
        return MovingGuest(
            migration_uuid=self.uuid, kind=self.kind, source_host=source.host, source_attempt_id=source.attempt_id
        )


class MigrationRecords:
    """Reads and writes the migrations of one cell; each method is a part of the caller's transaction.

    The caller locks the instance before it changes a migration.
    """

    def __init__(self, records: CellRecords) -> None:
        self._cell_uuid = records.cell_uuid
        self._records = records

    def of(self, connection: Connection, instance: CellInstance) -> CellMigration:
        """Return the migration of an instance that is in progress, or waits to be confirmed or reverted.

        :raises Superseded: the instance has no such migration any more.
        """
        found = None if instance.migration_uuid is None else self.read(connection, instance.migration_uuid)
        if found is None:
            raise Superseded
        return found

    def expect(
        self, connection: Connection, uuid: str, *states: InstanceState, lock: bool = False
    ) -> tuple[CellInstance, CellMigration]:
        """Return the instance of an operation, in one of these states until the operation ends, and its migration.

        :raises Superseded: an order to delete the instance has ended the operation.
        """
        instance = self._records.expect(connection, uuid, *states, lock=lock)
        return instance, self.of(connection, instance)

    def source(self, connection: Connection, migration: CellMigration) -> AttemptRecord:
        """Return the attempt on the source of a migration."""
        return self._records.numbered(connection, migration.instance_uuid, migration.source_number)

    def read(self, connection: Connection, uuid: str) -> CellMigration | None:
        """Return one migration, or None if it is unknown."""
        row = connection.execute(select(cell_migrations).where(*self._one(uuid))).one_or_none()
        return None if row is None else _migration(row)

    def of_instances(
        self, connection: Connection, instance_uuids: Collection[str]
    ) -> dict[str, dict[str, CellMigration]]:
        """Return all migrations of these instances, keyed by instance and then by their own uuid."""
        table = cell_migrations.c
        of_these = (table.cell_uuid == self._cell_uuid, table.instance_uuid.in_(instance_uuids))
        found: dict[str, dict[str, CellMigration]] = {}
        for row in connection.execute(select(cell_migrations).where(*of_these)):
            found.setdefault(row.instance_uuid, {})[row.uuid] = _migration(row)
        return found

    def add(
        self,
        connection: Connection,
        message: PrepareMoveInCell,
        instance: CellInstance,
        source: AttemptRecord,
        request_id: str,
    ) -> None:
        """Insert a migration for which nothing is claimed yet; forget the oldest failed ones that claimed nothing."""
        self._forget_unclaimed(connection, instance.uuid)
        connection.execute(
            cell_migrations.insert().values(
                cell_uuid=self._cell_uuid,
                uuid=message.migration_uuid,
                instance_uuid=message.instance_uuid,
                request_id=request_id,
                kind=message.kind,
                state="placing",
                instance_state=instance.state,
                source_number=source.number,
                source_host=source.host,
                is_aborted=False,
                created_at=now(),
                updated_at=now(),
            )
        )

    def _forget_unclaimed(self, connection: Connection, instance_uuid: str) -> None:
        """Delete the failed migrations of an instance without a claim, except the newest.

        No operation prunes them. A late message that names one is refused by the number of its order.
        """
        # SELECT uuid FROM cell_migrations WHERE cell_uuid = ... AND instance_uuid = ... AND state = 'failed'
        #    AND first_number IS NULL ORDER BY created_at DESC LIMIT 1000 OFFSET 100
        table = cell_migrations.c
        of_instance = (table.cell_uuid == self._cell_uuid, table.instance_uuid == instance_uuid)
        query = select(table.uuid).where(*of_instance, table.state == "failed", table.first_number.is_(None))
        old = connection.scalars(query.order_by(table.created_at.desc()).offset(_UNCLAIMED).limit(AT_ONCE)).all()
        if old:
            connection.execute(cell_migrations.delete().where(table.cell_uuid == self._cell_uuid, table.uuid.in_(old)))

    def claim(self, connection: Connection, message: MoveInCell, first_number: int) -> None:
        """Record the claimed destination, the alternates and the allocations on the source; set state `moving`."""
        self.change(
            connection,
            message.migration_uuid,
            state="moving",
            destination_host=message.selections[0].service_host,
            request_spec=msgspec.json.encode(message.request_spec),
            held=msgspec.json.encode(message.held),
            selections=msgspec.json.encode(message.selections),
            first_number=first_number,
        )

    def change(self, connection: Connection, uuid: str, *, state: MigrationState | None = None, **values: Any) -> None:
        """Update columns of a migration; without a state it keeps its own."""
        if state is not None:
            values["state"] = state
        connection.execute(cell_migrations.update().where(*self._one(uuid)).values(**encoded(values), updated_at=now()))

    def show(self, connection: Connection, uuids: Collection[str]) -> list[Migration]:
        """Return migrations as they are shown to an operator, each with its attempts; an unknown one is left out.

        If a migration is stuck, its reason is that of its operation's step.
        """
        operations = cell_operations.c
        of_cell = cell_migrations.c.cell_uuid == self._cell_uuid
        rows = connection.execute(_SHOWN.where(of_cell, cell_migrations.c.uuid.in_(uuids))).all()
        attempts = self._records.attempts_shown(connection, "migration_uuid", uuids)
        pending = connection.execute(
            select(operations.subject, operations.reason).where(
                operations.cell_uuid == self._cell_uuid,
                operations.subject.in_([row.instance_uuid for row in rows]),
                operations.state == "pending",
                operations.reason.is_not(None),
            )
        )
        reasons = {row.subject: row.reason for row in pending}
        under_way: tuple[MigrationState, ...] = ("moving", "confirming", "reverting")
        shown = []
        for row in rows:
            reason = row.reason or (reasons.get(row.instance_uuid) if row.state in under_way else None)
            shown.append(of_row(Migration, row, reason=text(reason), attempts=attempts.get(row.uuid, ())))
        return shown

    def _one(self, uuid: str) -> tuple[Any, ...]:
        return cell_migrations.c.cell_uuid == self._cell_uuid, cell_migrations.c.uuid == uuid


def _migration(row: Row[Any]) -> CellMigration:
    return of_row(
        CellMigration,
        row,
        spec=document(row.request_spec, RequestSpec),
        held=document(row.held, AllocationRequest),
        selections=document(row.selections, tuple[Selection, ...]) or (),
        first_number=row.first_number or 0,
    )
