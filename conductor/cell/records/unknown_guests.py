"""Records of unknown guests: guests on a cell's hosts for which the cell has no attempt.

They are shown to the operator and left running: a guest is destroyed only because of the record of an ended attempt.
"""

from collections.abc import Collection, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, or_, select

from conductor.schema import cell_guests
from moorage.db.columns import now
from moorage.messages import ListStrangersInCell
from moorage.model import Guest
from moorage.model.inspection import UnknownGuest


class UnknownGuests:
    """Reads and replaces the unknown guests of one cell; each method is a part of the caller's transaction."""

    def __init__(self, cell_uuid: str) -> None:
        self._cell_uuid = cell_uuid

    def replace(self, connection: Connection, agent: str, hosts: Collection[str], unknown: Sequence[Guest]) -> None:
        """Replace the unknown guests of these hosts with those of a new list."""
        connection.execute(cell_guests.delete().where(self._of_this_cell(), cell_guests.c.host.in_(hosts)))
        rows = [
            {"host": guest.host, "attempt_id": guest.attempt_id, "guest": msgspec.json.encode(guest)}
            for guest in unknown
        ]
        if rows:
            connection.execute(cell_guests.insert().values(cell_uuid=self._cell_uuid, agent=agent, seen_at=now()), rows)

    def list_all(self, connection: Connection, message: ListStrangersInCell) -> list[UnknownGuest]:
        """Return unknown guests in the order of host and attempt, all or a page of them."""
        table = cell_guests.c
        query = select(table.guest, table.agent, (now() - table.seen_at).label("age")).where(self._of_this_cell())
        if message.after is not None:
            host, attempt_id, cell_uuid = message.after
            of_host = table.attempt_id >= attempt_id if self._cell_uuid > cell_uuid else table.attempt_id > attempt_id
            query = query.where(or_(table.host > host, and_(table.host == host, of_host)))
        rows = connection.execute(query.order_by(table.host, table.attempt_id).limit(message.limit))
        return [
            UnknownGuest(
                guest=msgspec.json.decode(row.guest, type=Guest),
                cell_uuid=self._cell_uuid,
                agent=row.agent,
                age=row.age,
            )
            for row in rows
        ]

    def _of_this_cell(self) -> ColumnElement[bool]:
        return cell_guests.c.cell_uuid == self._cell_uuid
