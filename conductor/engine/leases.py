"""Leases on operations: if a conductor dies, another one takes over its operations when their leases have expired."""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    func,
    null,
    or_,
    select,
    tuple_,
)

from conductor.engine.rows import batches, of_row
from conductor.engine.steps import Operation
from moorage import ids
from moorage.db.columns import CLOCK_SET_BACK, is_ahead, now
from moorage.db.database import Database

LOG = logging.getLogger(__name__)

#: Seconds after which this conductor takes an operation again whose lease it has, but which is not in its queue: the
#: connection was lost after the commit of the order or the last step. Longer than the time from commit to queue.
_OWN_GRACE_SECONDS = 1.0
#: The columns of a lease that is freed.
FREED: Mapping[str, None] = {"lease_owner": None, "lease_until": None}


class Leases:
    """The leases of one schema's operations: owner, expiry, number.

    The owner renews its leases while it is alive (:meth:`renew`), however long a step takes. The lease number is raised
    each time the lease is taken, and the write that records a step names it: it is a fencing token. Each method raises
    ``StoreUnavailable`` if the records cannot be reached.

    :param name: the name of the conductor. The owner of a lease is this name with a suffix that is new in each process,
        so that two conductors with the same name do not take each other's operations.
    """

    def __init__(self, database: Database, table: Table, name: str, scope: Mapping[str, str], seconds: float) -> None:
        self._database = database
        self._table = table
        self._prefix = f"{name}/"
        self._owner = self._prefix + ids.fresh()
        self._scope = dict(scope)
        self.lease_seconds = seconds
        # Built once: it takes SQLAlchemy longer to build a query than to run it.
        self._mine = [table.c[name] == value for name, value in self._scope.items()]
        self._in_progress = [*self._mine, table.c.state == "pending"]
        self._allow()
        self._restarted_at = float("-inf")

    def restrict_to(self, steps: Collection[tuple[str, str]]) -> None:
        """Take only operations whose next step is one of these pairs of kind and name.

        Any other step was recorded by a newer release, and is left to a conductor of that release.
        """
        self._allow(tuple_(self._table.c.kind, self._table.c.step).in_(sorted(steps)))

    def _allow(self, *steps: ColumnElement[bool]) -> None:
        table, lease = self._table, self._table.c
        pending = (*self._in_progress, *steps, lease.due_at <= now())
        free = or_(lease.lease_owner.is_(None), lease.lease_until < now())
        orphaned = and_(lease.lease_owner == self._owner, lease.updated_at < now() - _OWN_GRACE_SECONDS)
        # Skip a locked row: another transaction is changing it, perhaps that of a conductor that hangs.
        self._takable: Select[Any] = (
            select(table)
            .where(*pending, or_(free, orphaned), table.c.uuid == bindparam("of_uuid"))
            .with_for_update(skip_locked=True)
        )
        # Both comparisons of the time: the first one finds the place in the index.
        further = (
            lease.due_at >= bindparam("seen_at"),
            or_(lease.due_at > bindparam("seen_at"), lease.uuid > bindparam("seen_uuid")),
        )
        due = select(lease.due_at, lease.uuid).where(*pending, *further)
        due = due.order_by(lease.due_at, lease.uuid).limit(bindparam("most"))
        self._due, self._due_or_orphaned = due.where(free), due.where(or_(free, orphaned))

    def release(self, operation: Operation) -> None:
        """Release one lease, so that another conductor need not wait for it to expire."""
        self._free([operation.uuid], self._table.c.lease_number == operation.lease_number)

    def take(self, uuid: str) -> Operation | None:
        """Take the lease of an operation that is due, unless another conductor has it, and return the operation."""
        return self._take(self._takable, {"of_uuid": uuid}, resumed=True)

    def take_again(self, operation: Operation) -> Operation | None:
        """Take the lease of this conductor's operation again; return null if another conductor has taken it."""
        query = select(self._table).where(*self._still(operation)).with_for_update()
        return self._take(query, {}, resumed=operation.resumed)

    def is_stale(self, operation: Operation) -> bool:
        """Return whether an operation must be taken again (:meth:`take_again`) before its step is done.

        This process may have been paused, and another conductor may have taken the operation meanwhile.
        """
        return time.monotonic() - operation.taken_at > self.lease_seconds / 3

    def renew(self, uuids: Collection[str]) -> None:
        """Renew the leases on these operations, except those that other conductors have taken."""
        table = self._table
        statement = (
            table.update()
            .where(*self._in_progress, table.c.uuid.in_(sorted(uuids)), table.c.lease_owner == self._owner)
            .values(lease_until=now() + self.lease_seconds)
        )
        self._database.write(lambda connection: connection.execute(statement))

    def due(self, limit: int, *, or_orphaned: bool = True) -> Iterator[str]:
        """Yield the uuids of the operations that this conductor may take now, the longest due first.

        :param limit: the most operations to read at a time.
        :param or_orphaned: also yield operations whose leases this conductor has, perhaps those in its queue.
        """
        query = self._due_or_orphaned if or_orphaned else self._due
        place: dict[str, Any] = {"seen_at": -1.0, "seen_uuid": "", "most": limit}
        while True:
            rows = self._database.read(lambda connection: connection.execute(query, place).all())
            yield from (row.uuid for row in rows)
            if len(rows) < limit:
                return
            place.update(seen_at=rows[-1].due_at, seen_uuid=rows[-1].uuid)

    def restart_waits(self) -> None:
        """Restart the waits, leases and ages that were recorded before the database's clock was set back.

        Otherwise they would last until the clock reaches the old time. All pending operations are checked, but seldom.
        """
        if time.monotonic() - self._restarted_at < CLOCK_SET_BACK:
            return
        # Check both times: if a step was repeated since, only the time of the beginning is still ahead of the clock.
        ahead = or_(is_ahead(self._table.c.updated_at), is_ahead(self._table.c.created_at))
        query = select(self._table.c.uuid).where(*self._in_progress, ahead)
        uuids = self._database.read(lambda connection: connection.scalars(query).all())
        for part in batches(sorted(uuids)):
            self._restart(part)
        self._restarted_at = time.monotonic()

    def _restart(self, uuids: Sequence[str]) -> None:
        LOG.warning("The database's clock was set back: the waits and leases of %s operations begin again", len(uuids))
        table = self._table
        # UPDATE operations SET due_at = due_at - updated_at + :now, lease_until = …, updated_at = :now WHERE …
        # In this order: MySQL lets a later assignment see the result of an earlier one.
        lease_until = case((table.c.lease_owner.is_(None), null()), else_=now() + self.lease_seconds)
        these = table.update().where(*self._in_progress, table.c.uuid.in_(uuids))
        waits = these.where(is_ahead(table.c.updated_at)).ordered_values(
            (table.c.due_at, table.c.due_at - table.c.updated_at + now()),
            (table.c.lease_until, lease_until),
            (table.c.updated_at, now()),
        )
        # The age measures how long the operation waits for a host.
        ages = these.where(is_ahead(table.c.created_at)).values(created_at=now())

        def work(connection: Connection) -> None:
            connection.execute(waits)
            connection.execute(ages)

        self._database.write(work)

    def release_former(self) -> None:
        """Release the leases of earlier processes with this name, without waiting for them to expire.

        If another process with this name is alive, it loses only its leases.
        """
        owner = self._table.c.lease_owner
        # The name of another conductor may begin with this name and a slash.
        process = func.substr(owner, len(self._prefix) + 1)
        self._free_all(owner.startswith(self._prefix, autoescape=True) & ~process.contains("/"))

    def release_all(self) -> None:
        """Release all leases of this conductor, so that another one need not wait for them to expire."""
        self._free_all(self._table.c.lease_owner == self._owner)

    def _free_all(self, owned: ColumnElement[bool]) -> None:
        query = select(self._table.c.uuid).where(*self._in_progress, owned)
        uuids = self._database.read(lambda connection: connection.scalars(query).all())
        for part in batches(sorted(uuids)):
            self._free(part, owned)

    def _free(self, uuids: Sequence[str], owned: ColumnElement[bool]) -> None:
        table = self._table
        these = table.update().where(*self._in_progress, table.c.uuid.in_(uuids), owned)
        statement = these.values(**FREED)
        self._database.write(lambda connection: connection.execute(statement))

    def _take(self, query: Select[Any], parameters: dict[str, str], *, resumed: bool) -> Operation | None:
        """Take the lease of the operation that a query finds and locks, if it finds one."""
        table = self._table

        def work(connection: Connection) -> Operation | None:
            row = connection.execute(query, parameters).one_or_none()
            if row is None:
                return None
            taken = operation_of(row, row.lease_number + 1, resumed=resumed)
            lease = {"lease_owner": self._owner, "lease_until": now() + self.lease_seconds}
            its_row = table.update().where(*self._mine, table.c.uuid == taken.uuid)
            connection.execute(its_row.values(**lease, lease_number=taken.lease_number, updated_at=now()))
            return taken

        return self._database.write(work)

    def _still(self, operation: Operation) -> list[ColumnElement[bool]]:
        """Return the conditions that an operation is at the same step, and that its lease was not taken since."""
        table = self._table.c
        return [
            *self._in_progress,
            table.uuid == operation.uuid,
            table.step_number == operation.step_number,
            table.lease_number == operation.lease_number,
        ]


def operation_of(row: Row[Any], lease_number: int, *, resumed: bool = False) -> Operation:
    """Return the operation of a row."""
    return of_row(Operation, row, lease_number=lease_number, resumed=resumed)
