"""Who works on which operation: by lease, so that the work of a conductor which has died is gone on with by another."""

import time
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, and_, or_, select, tuple_

from conductor.engine.steps import Operation
from moorage import ids
from moorage.db.columns import now
from moorage.db.database import Database

#: Seconds after which this conductor takes an operation of its own that it has not in hand: its order or its last step
#: was committed and the connection lost before that was known. Longer than from a commit to the worker's queue.
_OWN_GRACE_SECONDS = 1.0


class Leases:
    """The leases of one schema's operations: owner, until, number.

    A lease is renewed for as long as its owner lives (:meth:`renew`), however long a step takes; its number is raised
    whenever it changes hands, and whoever records a step names that number.

    :param name: the conductor's. It takes operations under an owner of its own in each of its lives, so that two
        conductors which were given one name do not take each other's work.
    """

    def __init__(self, database: Database, table: Table, name: str, scope: Mapping[str, str], seconds: float) -> None:
        self._database = database
        self._table = table
        self._lives = f"{name}/"
        self._owner = self._lives + ids.fresh()
        self._scope = dict(scope)
        self.lease_seconds = seconds
        self._known_steps: list[tuple[str, str]] | None = None

    def take_only(self, steps: Collection[tuple[str, str]]) -> None:
        """Take no operation from now on whose next step is none of these, by kind and name.

        A newer release has written such a step, and a conductor of that release goes on with it.
        """
        self._known_steps = sorted(steps)

    def leave(self, operation: Operation) -> None:
        """Give one operation back: another conductor need not wait for the lease to run out.

        :raises StoreUnavailable: the records cannot be reached.
        """
        table = self._table
        statement = (
            table.update()
            .where(
                *self._mine(),
                table.c.uuid == operation.uuid,
                table.c.state == "pending",
                table.c.lease_number == operation.lease_number,
            )
            .values(**self._lease(False))
        )
        self._database.write(lambda connection: connection.execute(statement))

    def take(self, uuid: str) -> Operation | None:
        """Take an operation that is due, unless another conductor has it; return it with the step to be done."""
        table = self._table

        def work(connection: Connection) -> Operation | None:
            # One that is locked is being moved at this moment, or is held by a conductor that was stopped in the
            # middle of a transaction: nothing that could be waited for.
            row = connection.execute(
                select(table)
                .where(*self._mine(), table.c.uuid == uuid, self._free(), table.c.due_at <= now())
                .with_for_update(skip_locked=True)
            ).one_or_none()
            return None if row is None else self._take(connection, found(row, row.lease_number + 1, resumed=True))

        return self._database.write(work)

    def keep(self, operation: Operation) -> Operation | None:
        """Take an operation in hand once more, before its step is done; return nothing if it has changed hands."""
        table = self._table

        def work(connection: Connection) -> Operation | None:
            row = connection.execute(
                select(table)
                .where(
                    *self._mine(),
                    table.c.uuid == operation.uuid,
                    table.c.state == "pending",
                    table.c.step_number == operation.step_number,
                    table.c.lease_number == operation.lease_number,
                )
                .with_for_update()
            ).one_or_none()
            if row is None:
                return None
            return self._take(connection, found(row, row.lease_number + 1, resumed=operation.resumed))

        return self._database.write(work)

    def is_old(self, operation: Operation) -> bool:
        """Tell whether it must be kept before its step is done, because others may have taken it meanwhile.

        A conductor that was stopped for a while does not know of it.
        """
        return time.monotonic() - operation.taken_at > self.lease_seconds / 3

    def renew(self, uuids: Collection[str]) -> None:
        """Say that this conductor lives, and still works on these; what others have taken stays theirs.

        :raises StoreUnavailable: the records cannot be reached.
        """
        # UPDATE operations SET lease_until = :later WHERE uuid IN (...) AND state = 'pending' AND lease_owner = :me
        table = self._table
        statement = (
            table.update()
            .where(
                *self._mine(),
                table.c.uuid.in_(sorted(uuids)),
                table.c.state == "pending",
                table.c.lease_owner == self._owner,
            )
            .values(lease_until=now() + self.lease_seconds)
        )
        self._database.write(lambda connection: connection.execute(statement))

    def due(self, held: Collection[str], limit: int) -> list[str]:
        """Return the uuids of operations that this conductor may take now, the longest due first."""
        table = self._table
        uuids = self._database.read(
            lambda connection: connection.scalars(
                select(table.c.uuid)
                .where(*self._mine(), self._free(), table.c.due_at <= now())
                .order_by(table.c.due_at)
                .limit(limit + len(held))
            ).all()
        )
        return [uuid for uuid in uuids if uuid not in held][:limit]

    def adopt(self) -> None:
        """Free what a conductor of this name has left when it died: nobody need wait for those leases to run out.

        One that lives and was given the same name loses nothing but its leases.
        """
        self._free_all(self._table.c.lease_owner.startswith(self._lives, autoescape=True))

    def let_go(self) -> None:
        """Give back all that this conductor has taken: another one need not wait for the leases to run out."""
        self._free_all(self._table.c.lease_owner == self._owner)

    def _free_all(self, owned: ColumnElement[bool]) -> None:
        table = self._table
        self._database.write(
            lambda connection: connection.execute(
                table.update().where(*self._mine(), table.c.state == "pending", owned).values(**self._lease(False))
            )
        )

    def _take(self, connection: Connection, operation: Operation) -> Operation:
        table = self._table
        connection.execute(
            table.update()
            .where(*self._mine(), table.c.uuid == operation.uuid)
            .values(**self._lease(True), lease_number=operation.lease_number, updated_at=now())
        )
        return operation

    def _lease(self, taken: bool) -> dict[str, Any]:
        return {
            "lease_owner": self._owner if taken else None,
            "lease_until": now() + self.lease_seconds if taken else None,
        }

    def _mine(self) -> list[ColumnElement[bool]]:
        return [self._table.c[name] == value for name, value in self._scope.items()]

    def _free(self) -> ColumnElement[bool]:
        lease = self._table.c
        left = and_(lease.lease_owner == self._owner, lease.updated_at < now() - _OWN_GRACE_SECONDS)
        free = and_(lease.state == "pending", or_(lease.lease_owner.is_(None), left, lease.lease_until < now()))
        if self._known_steps is None:
            return free
        return and_(free, tuple_(lease.kind, lease.step).in_(self._known_steps))


def found(row: Row[Any], lease_number: int, *, resumed: bool = False) -> Operation:
    """Return an operation as its row has it."""
    return Operation(
        uuid=row.uuid,
        kind=row.kind,
        subject=row.subject,
        request_id=row.request_id,
        step=row.step,
        step_number=row.step_number,
        payload=row.payload,
        tries=row.tries,
        lease_number=lease_number,
        resumed=resumed,
    )
