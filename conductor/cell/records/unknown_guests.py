"""Records of unknown guests: guests on a cell's hosts for which the cell has no attempt.

They are shown to the operator and left running: a guest is destroyed only because of the record of an ended attempt.
"""

from collections.abc import Collection, Sequence

import msgspec
from sqlalchemy import Connection, and_, exists, or_, select

from conductor.engine.rows import document, of_row
from conductor.schema import cell_guests, cell_hosts
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.messages import ListStrangersInCell
from moorage.model import Guest
from moorage.model.inspection import UnknownGuest
from moorage.service.pruning import delete_expired


def replace(
    connection: Connection, cell_uuid: str, agent: str, hosts: Collection[str], unknown: Sequence[Guest]
) -> None:
    """Replace the unknown guests of these hosts with those of a new list."""
    table = cell_guests
    connection.execute(table.delete().where(table.c.cell_uuid == cell_uuid, table.c.host.in_(hosts)))
    rows = [
        {"host": guest.host, "attempt_id": guest.attempt_id, "guest": msgspec.json.encode(guest)} for guest in unknown
    ]
    if rows:
        connection.execute(table.insert().values(cell_uuid=cell_uuid, agent=agent, seen_at=now()), rows)


def prune(database: Database, cell_uuid: str, silent_for: float) -> int:
    """Delete the unknown guests of hosts that have been silent for more than so many seconds; return their number.

    A host that was deleted never lists its guests again. If it returns after all, it lists them before it is up.
    """
    # SELECT attempt_id FROM cell_guests WHERE cell_uuid = ... AND seen_at < ...
    #    AND NOT EXISTS (SELECT * FROM cell_hosts WHERE ... AND (last_seen >= ... OR withheld_at >= ...))
    guest, host, since = cell_guests.c, cell_hosts.c, now() - silent_for
    was_heard = exists().where(
        host.cell_uuid == guest.cell_uuid,
        host.service_host == guest.host,
        or_(host.last_seen >= since, host.withheld_at >= since),
    )
    return delete_expired(database, guest.attempt_id, guest.cell_uuid == cell_uuid, guest.seen_at < since, ~was_heard)


def list_all(connection: Connection, cell_uuid: str, message: ListStrangersInCell) -> list[UnknownGuest]:
    """Return a cell's unknown guests in the order of host and attempt, all or a page of them."""
    table = cell_guests.c
    query = select(table.guest, table.agent, (now() - table.seen_at).label("age")).where(table.cell_uuid == cell_uuid)
    if message.after is not None:
        host, attempt_id, of_cell = message.after
        of_host = table.attempt_id >= attempt_id if cell_uuid > of_cell else table.attempt_id > attempt_id
        query = query.where(or_(table.host > host, and_(table.host == host, of_host)))
    rows = connection.execute(query.order_by(table.host, table.attempt_id).limit(message.limit))
    return [of_row(UnknownGuest, row, guest=document(row.guest, Guest), cell_uuid=cell_uuid) for row in rows]
