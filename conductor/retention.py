"""What the conductors forget in time: operations that have ended, and the attempts of instances that are deleted."""

import logging
from collections.abc import Collection, Mapping

from sqlalchemy import ColumnElement, Connection, Table, and_, exists, or_, select

from conductor.engine.steps import DELETE
from conductor.schema import cell_attempts, cell_migrations
from conductor.super.records import migrations as super_migrations
from moorage.db.columns import as_uuid, now
from moorage.db.database import Database

LOG = logging.getLogger(__name__)


class EndedRecords:
    """The ended operations of one schema; several conductors may forget at once.

    The record of an instance itself stays longer, and with it the word that it was deleted
    (:mod:`conductor.super.deleted_instances`).

    :param scope: columns that narrow the table down, with their values: the cell.
    :param kept: seconds for which the record of an ended operation is kept.
    :param at_once: the most operations that one transaction forgets, so that none grows without bound.
    """

    def __init__(
        self, database: Database, table: Table, scope: Mapping[str, str], kept: float, at_once: int = 1000
    ) -> None:
        self._database = database
        self._table = table
        self._scope = dict(scope)
        self._kept = kept
        self._at_once = at_once

    def forget(self) -> int:
        """Forget all that has reached its age; return how many operations.

        :raises StoreUnavailable: the database cannot be reached.
        """
        forgotten = 0
        while part := self._database.write(self._forget_some):
            forgotten += part
        if forgotten:
            LOG.info("Forgot %d ended operations", forgotten)
        return forgotten

    def _forget_some(self, connection: Connection) -> int:
        # By their keys, which were read without a lock: deleting by time would lock the index that operations which
        # end at this moment are entered in.
        table = self._table
        old = connection.execute(
            select(table.c.uuid, table.c.kind, table.c.subject)
            .where(*self._in(table), self._old(), *self._forgettable())
            .limit(self._at_once)
        ).all()
        self._with_them(connection, sorted({row.subject for row in old if row.kind == DELETE}))
        connection.execute(table.delete().where(*self._in(table), table.c.uuid.in_(sorted(row.uuid for row in old))))
        return len(old)

    def _old(self) -> ColumnElement[bool]:
        ended = self._table.c
        until = now() - self._kept
        # Where an operation has ended, its due time is when that was: the index of what is due serves this too. It is
        # null where a version that did not know of this has ended it.
        return and_(
            ended.state.in_(("done", "failed")),
            or_(ended.due_at < until, and_(ended.due_at.is_(None), ended.updated_at < until)),
        )

    def _forgettable(self) -> list[ColumnElement[bool]]:
        """Return what else must be so before an ended operation is forgotten."""
        return []

    def _with_them(self, connection: Connection, deleted: Collection[str]) -> None:
        """Forget what goes with the record that these instances were deleted."""

    def _in(self, table: Table) -> list[ColumnElement[bool]]:
        return [table.c[name] == value for name, value in self._scope.items()]


class SuperEndedRecords(EndedRecords):
    """Those of the super conductor, with the migrations of the instances that were deleted."""

    def _with_them(self, connection: Connection, deleted: Collection[str]) -> None:
        super_migrations.forget(connection, deleted)


class CellEndedRecords(EndedRecords):
    """Those of a cell, with the attempts and the moves of the instances that were deleted.

    As long as a host may have a guest of an attempt, the record of it stays: it is what a host that returns destroys
    the guest upon.
    """

    def _forgettable(self) -> list[ColumnElement[bool]]:
        attempts, operation = cell_attempts.c, self._table.c
        left = exists().where(
            *self._in(cell_attempts),
            attempts.instance_uuid == as_uuid(operation.subject),
            attempts.claim_id.is_not(None),
            attempts.guest_gone.is_(False),
        )
        # The order to delete goes last: it is what leads here to the attempts.
        return [or_(operation.kind != DELETE, ~left)]

    def _with_them(self, connection: Connection, deleted: Collection[str]) -> None:
        attempts = cell_attempts.c
        connection.execute(
            cell_attempts.delete().where(
                *self._in(cell_attempts),
                attempts.instance_uuid.in_(deleted),
                or_(attempts.claim_id.is_(None), attempts.guest_gone.is_(True)),
            )
        )
        moves = cell_migrations
        connection.execute(moves.delete().where(*self._in(moves), moves.c.instance_uuid.in_(deleted)))
