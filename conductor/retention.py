"""Prune ended operations, and with them the attempts and migrations of deleted instances."""

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
    """The ended operations of one schema; several conductors may prune at the same time.

    The record of a deleted instance itself is kept longer (:mod:`conductor.super.deleted_instances`).

    :param scope: the columns that restrict the table to one cell, with their values; empty for the super conductor.
    :param kept: seconds for which the record of an ended operation is kept.
    :param at_once: the most operations that one transaction deletes, so that none grows without bound.
    """

    def __init__(
        self, database: Database, table: Table, scope: Mapping[str, str], kept: float, at_once: int = 1000
    ) -> None:
        self._database = database
        self._table = table
        self._scope = dict(scope)
        self._kept = kept
        self._at_once = at_once

    def prune(self) -> int:
        """Delete all operations that ended more than ``kept`` seconds ago; return how many.

        :raises StoreUnavailable: the database cannot be reached.
        """
        forgotten = 0
        while part := self._database.write(self._prune_some):
            forgotten += part
        if forgotten:
            LOG.info("Forgot %d ended operations", forgotten)
        return forgotten

    def _prune_some(self, connection: Connection) -> int:
        # Delete by keys that were read without a lock: deleting by time would lock the range of the index into which
        # operations that end at this moment are inserted.
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
        # The due time of an ended operation is the time of its end, so that the index on due times serves this query.
        # It is null if a former version has ended it.
        return and_(
            ended.state.in_(("done", "failed")),
            or_(ended.due_at < until, and_(ended.due_at.is_(None), ended.updated_at < until)),
        )

    def _forgettable(self) -> list[ColumnElement[bool]]:
        """Return further conditions for the deletion of an ended operation."""
        return []

    def _with_them(self, connection: Connection, deleted: Collection[str]) -> None:
        """Delete the other records of instances whose ended deletion is pruned."""

    def _in(self, table: Table) -> list[ColumnElement[bool]]:
        return [table.c[name] == value for name, value in self._scope.items()]


class SuperEndedRecords(EndedRecords):
    """The ended operations of the super conductor, with the migrations of deleted instances."""

    def _with_them(self, connection: Connection, deleted: Collection[str]) -> None:
        super_migrations.delete(connection, deleted)


class CellEndedRecords(EndedRecords):
    """The ended operations of a cell, with the attempts and migrations of deleted instances.

    The record of an attempt stays as long as a host may have a guest of it: a host that returns destroys the guest
    because of that record.
    """

    def _forgettable(self) -> list[ColumnElement[bool]]:
        attempts, operation = cell_attempts.c, self._table.c
        left = exists().where(
            *self._in(cell_attempts),
            attempts.instance_uuid == as_uuid(operation.subject),
            attempts.claim_id.is_not(None),
            attempts.guest_gone.is_(False),
        )
        # The deletion stays as long as such an attempt: without it, the attempts would never be pruned.
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
