"""Prune the records of a conductor: ended operations, and deleted instances that nothing can name any more.

Operations are pruned first, after `record_retention`, with the attempts and migrations of deleted instances. With them
go the old attempts and migrations of instances that exist, except the newest ones of each. The deleted instances follow
after `deleted_instance_retention`. A cell prunes an instance only when no host can have a guest of it.
The super conductor prunes an instance after its cell: until then its record explains the allocations that the instance
may still have. Each method raises ``StoreUnavailable`` if the database cannot be reached.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, and_, exists, func, not_, or_, select

from conductor.cell.hosts import retired
from conductor.cell.records import unknown_guests
from conductor.cell.records.attempts import HAS_ENDED, MAY_HAVE_A_GUEST
from conductor.engine.rows import grouped
from conductor.engine.steps import DELETE, MOVE, UNSHELVE
from conductor.schema import cell_attempts, cell_instances, cell_migrations, cell_operations, conductor_migrations
from conductor.schema import conductor_instances as instances
from conductor.schema import conductor_operations as operations
from conductor.super.cell_clients import Cells
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from moorage import errors
from moorage.db.columns import as_uuid, now
from moorage.db.database import Database
from moorage.db.forced_index import by_index, has_row
from moorage.messages import MAX_INSTANCES, ShowInCell
from moorage.service.process import is_stopping
from moorage.service.pruning import in_parts

LOG = logging.getLogger(__name__)

#: The most instances that one transaction deletes: this bounds the transaction, and one message can name them all.
_AT_ONCE = MAX_INSTANCES

#: The newest attempts, and the newest migrations, of an instance that exists are kept however old they are: this many
#: that could be pruned. Arbitrary; thousands of them would not fit into the message that shows the instance.
_NEWEST = 100


class EndedRecords:
    """The ended operations of one schema; several conductors may prune at the same time.

    The record of a deleted instance itself is kept longer: see :class:`SuperDeletedInstances`.

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
        """Delete all operations that ended more than ``kept`` seconds ago; return how many."""
        if pruned := in_parts(lambda: self._database.write(self._prune_some), self._at_once):
            LOG.info("Forgot %d ended operations", pruned)
        return pruned

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
        self._of_existing(connection, sorted({row.subject for row in old if row.kind in (MOVE, UNSHELVE)}))
        connection.execute(table.delete().where(*self._in(table), table.c.uuid.in_(sorted(row.uuid for row in old))))
        return len(old)

    def _old(self) -> ColumnElement[bool]:
        ended = self._table.c
        until = now() - self._kept
        # The due time of an ended operation is the time of its end, so that the index on due times serves this query.
        # It is null if an earlier version has ended the operation.
        return and_(
            ended.state.in_(("done", "failed")),
            or_(ended.due_at < until, and_(ended.due_at.is_(None), ended.updated_at < until)),
        )

    def _forgettable(self) -> list[ColumnElement[bool]]:
        """Return further conditions for the deletion of an ended operation."""
        return []

    def _with_them(self, connection: Connection, deleted: Collection[str]) -> None:
        """Delete the other records of instances whose ended deletion is pruned."""

    def _of_existing(self, connection: Connection, moved: Collection[str]) -> None:
        """Delete old records of instances whose ended moves and unshelvings are pruned: only these add records."""

    def _forget_history(
        self,
        connection: Connection,
        uuids: Collection[str],
        key: Column[str],
        order: Column[Any],
        forgettable: Sequence[ColumnElement[bool]],
        still: Sequence[ColumnElement[bool]] = (),
    ) -> None:
        """Delete old rows of a table about instances, except the newest of each, and a bounded number of them.

        :param still: the conditions to compare again in the deletion: another transaction may have changed the row.
        """
        # SELECT instance_uuid FROM ... WHERE instance_uuid IN (...) GROUP BY instance_uuid HAVING COUNT(*) > 100
        table, instance, found = key.table, key.table.c.instance_uuid, list[str]()
        many = select(instance).where(*self._in(table), instance.in_(uuids)).group_by(instance)
        for uuid in sorted(connection.scalars(many.having(func.count() > _NEWEST))):
            is_old = (instance == uuid, table.c.updated_at < now() - self._kept, *forgettable)
            query = select(key).where(*self._in(table), *is_old).order_by(order.desc())
            found += connection.scalars(query.offset(_NEWEST).limit(self._at_once - len(found)))
        connection.execute(table.delete().where(*self._in(table), key.in_(sorted(found)), *still))

    def _in(self, table: Table) -> list[ColumnElement[bool]]:
        return [table.c[name] == value for name, value in self._scope.items()]


class SuperEndedRecords(EndedRecords):
    """The ended operations of the super conductor, with the migrations of deleted instances, and old migrations."""

    def _with_them(self, connection: Connection, deleted: Collection[str]) -> None:
        super_migrations.delete(connection, deleted)

    def _of_existing(self, connection: Connection, moved: Collection[str]) -> None:
        moves = conductor_migrations.c
        self._forget_history(connection, moved, moves.uuid, moves.id, [moves.state.in_(super_migrations.OVER)])


class CellEndedRecords(EndedRecords):
    """The ended operations of a cell, with the attempts and migrations of deleted instances.

    The record of an attempt stays as long as a host may have a guest of it: a host that returns destroys the guest
    because of that record. An empty host, and the unknown guests of a host, stay until it has been silent as long.

    :param deleted_hosts: returns those of some hosts that an operator has deleted: they cannot have a guest.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        scope: Mapping[str, str],
        kept: float,
        at_once: int = 1000,
        *,
        deleted_hosts: Callable[[Sequence[str]], Collection[str]] = lambda _hosts: (),
    ) -> None:
        super().__init__(database, table, scope, kept, at_once)
        self._deleted_hosts = deleted_hosts

    def prune(self) -> int:
        """Delete what the cell keeps for ``kept`` seconds; return the number of operations."""
        retired.note_deleted(self._database, self._scope["cell_uuid"], self._kept, self._deleted_hosts)
        if forgotten := unknown_guests.prune(self._database, self._scope["cell_uuid"], self._kept):
            LOG.info("Forgot %d unknown guests on silent hosts", forgotten)
        if gone := retired.prune(self._database, self._scope["cell_uuid"], self._kept):
            LOG.info("Forgot %d hosts that have been silent for long", gone)
        return super().prune()

    def _forgettable(self) -> list[ColumnElement[bool]]:
        operation = self._table.c
        is_its_own = cell_attempts.c.instance_uuid == as_uuid(operation.subject)
        left = has_row(select(cell_attempts.c.attempt_id).where(*self._in(cell_attempts), is_its_own, MAY_HAVE_A_GUEST))
        # Keep the deletion as long as such an attempt: the attempts are pruned only with the deletion.
        return [or_(operation.kind != DELETE, ~left)]

    def _with_them(self, connection: Connection, deleted: Collection[str]) -> None:
        attempts, moves = cell_attempts, cell_migrations
        of_these = attempts.c.instance_uuid.in_(deleted)
        connection.execute(attempts.delete().where(*self._in(attempts), of_these, not_(MAY_HAVE_A_GUEST)))
        connection.execute(moves.delete().where(*self._in(moves), moves.c.instance_uuid.in_(deleted)))

    def _of_existing(self, connection: Connection, moved: Collection[str]) -> None:
        attempt, move, instance = cell_attempts.c, cell_migrations.c, cell_instances.c
        of_instance = select(instance.uuid).where(*self._in(cell_instances))
        # Steps read the current attempt, and those of a move that has not ended, although they may have ended.
        named = or_(instance.attempt_number == attempt.number, instance.migration_uuid.is_not(None))
        is_named = has_row(of_instance.where(instance.uuid == attempt.instance_uuid, named))
        # The first step of a pending cleanup reads the attempt.
        cleanup = select(self._table.c.uuid).where(*self._in(self._table), self._table.c.state == "pending")
        is_cleaned = has_row(cleanup.where(self._table.c.subject == attempt.attempt_id))
        ended = [HAS_ENDED, not_(MAY_HAVE_A_GUEST), ~is_named, ~is_cleaned]
        still = [HAS_ENDED, not_(MAY_HAVE_A_GUEST)]
        self._forget_history(connection, moved, attempt.attempt_id, attempt.number, ended, still)
        is_open = has_row(of_instance.where(instance.migration_uuid == move.uuid))
        over = [move.state.in_(super_migrations.OVER), ~is_open]
        self._forget_history(connection, moved, move.uuid, move.created_at, over)


class CellDeletedInstances:
    """The deleted instances of a cell; several conductors may prune at the same time.

    :param kept: seconds for which the record of a deleted instance is kept.
    """

    def __init__(self, database: Database, cell_uuid: str, kept: float) -> None:
        self._database = database
        self._cell_uuid = cell_uuid
        self._kept = kept

    def prune(self) -> int:
        """Delete the records of instances that were deleted more than ``kept`` seconds ago; return how many."""
        return in_parts(lambda: self._database.write(self._prune_some), _AT_ONCE)

    def _prune_some(self, connection: Connection) -> int:
        # Delete by keys that were read without a lock: deleting by time would lock the range of the index into which
        # instances that are deleted at this moment are inserted.
        instance, attempt, operation = cell_instances.c, cell_attempts.c, cell_operations.c
        # A host that may have a guest destroys it because of the attempt's record: keep the record.
        its_own = (attempt.instance_uuid == instance.uuid, MAY_HAVE_A_GUEST)
        has_guest = has_row(select(attempt.attempt_id).where(self._in(cell_attempts), *its_own))
        pending = (operation.subject == instance.uuid, operation.state == "pending")
        is_worked_on = has_row(select(operation.uuid).where(self._in(cell_operations), *pending))
        old = (instance.state == "deleted", instance.updated_at < now() - self._kept)
        query = by_index(
            select(instance.uuid).where(self._in(cell_instances), *old, ~has_guest, ~is_worked_on),
            cell_instances,
            "ix_cell_instances_state",
        )
        uuids = sorted(connection.scalars(query.limit(_AT_ONCE)))
        for table, column in (
            (cell_attempts, cell_attempts.c.instance_uuid),
            (cell_migrations, cell_migrations.c.instance_uuid),
            (cell_operations, cell_operations.c.subject),
            (cell_instances, instance.uuid),
        ):
            connection.execute(table.delete().where(self._in(table), column.in_(uuids)))
        return len(uuids)

    def _in(self, table: Table) -> ColumnElement[bool]:
        return table.c.cell_uuid == self._cell_uuid


class SuperDeletedInstances:
    """The deleted instances of the super conductor; several conductors may prune and synchronize at the same time.

    :param kept: seconds for which the record of a deleted instance is kept.
    :param at_once: the most instances of one transaction and of one message.
    """

    def __init__(self, database: Database, cells: Cells, kept: float, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._database = database
        self._cells = cells
        self._kept = kept

    def sync_with_cells(self) -> None:
        """Poll the cells for the instances that are being deleted, and record those that are deleted.

        A cell without a record of an instance that it was ordered to delete has deleted and pruned it.
        """
        after = 0
        while not is_stopping() and (rows := self._database.read(partial(_deleting, after, self._at_once))):
            after = rows[-1].id
            deleted = self._of_cells(rows, lambda known, uuid: known.get(uuid, "deleted") == "deleted")
            if deleted:
                self._database.write(partial(super_records.note_deleted, uuids=deleted))

    def prune(self) -> int:
        """Delete the records of instances that their cells have pruned, after ``kept`` seconds; return how many."""
        last: Any = None
        pruned = 0
        while not is_stopping() and (rows := self._database.read(partial(self._old, last))):
            last = rows[-1]
            gone = [row.uuid for row in rows if row.cell_uuid is None]
            gone += self._of_cells(
                [row for row in rows if row.cell_uuid is not None], lambda known, uuid: uuid not in known
            )
            pruned += self._database.write(partial(_delete_records, sorted(gone)))
        if pruned:
            LOG.info("Forgot %d deleted instances", pruned)
        return pruned

    def _old(self, last: Any, connection: Connection) -> Sequence[Any]:
        """Return the next page of instances that were deleted long ago and have no operation on record."""
        subject = exists().where(operations.c.subject == instances.c.uuid)
        building = exists().where(operations.c.uuid == instances.c.operation_uuid, operations.c.state == "pending")
        query = _KNOWN.where(
            instances.c.state == "deleted", instances.c.updated_at < now() - self._kept, ~subject, ~building
        )
        if last is not None:
            later = and_(instances.c.updated_at == last.updated_at, instances.c.id > last.id)
            query = query.where(
                instances.c.updated_at >= last.updated_at, or_(instances.c.updated_at > last.updated_at, later)
            )
        return connection.execute(query.order_by(instances.c.updated_at, instances.c.id).limit(self._at_once)).all()

    def _of_cells(self, rows: Sequence[Any], wanted: Callable[[dict[str, str], str], bool]) -> list[str]:
        """Return the instances for which ``wanted`` is true of their cell's answer; skip cells that do not answer."""
        found: list[str] = []
        for cell_uuid, uuids in grouped((str(row.cell_uuid), row.uuid) for row in rows).items():
            try:
                answers = self._cells.read_of(cell_uuid, uuids, lambda part: ShowInCell(instance_uuids=part))
                known = {instance.uuid: instance.state for instance in answers}
            except errors.CellNotFound:
                known = {}  # an operator has deleted the cell, which had no hosts any more
            except errors.MoorageError as fault:
                LOG.info("Records of deleted instances of cell %s are kept: %s", cell_uuid, fault)
                continue
            found += [uuid for uuid in uuids if wanted(known, uuid)]
        return found


_KNOWN = select(instances.c.id, instances.c.uuid, instances.c.cell_uuid, instances.c.updated_at)


def _deleting(after: int, at_once: int, connection: Connection) -> Sequence[Any]:
    """Return the next page of instances whose cells have the order to delete them."""
    ordered = exists().where(operations.c.subject == instances.c.uuid, operations.c.state == "pending")
    query = _KNOWN.where(
        instances.c.state == "deleting", instances.c.cell_uuid.is_not(None), instances.c.id > after, ~ordered
    )
    return connection.execute(query.order_by(instances.c.id).limit(at_once)).all()


def _delete_records(uuids: Collection[str], connection: Connection) -> int:
    super_migrations.delete(connection, uuids)
    return connection.execute(
        instances.delete().where(instances.c.uuid.in_(uuids), instances.c.state == "deleted")
    ).rowcount
