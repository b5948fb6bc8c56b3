"""Read operations for operators: the next step, the owner of the lease, the age."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, Table, or_, select

from conductor.engine.rows import of_row, text
from moorage.db.columns import now
from moorage.db.forced_index import by_index
from moorage.model.inspection import OperationSummary

#: The most operations in an answer without a limit: the newest ones. Arbitrary: they fit into one message.
_MOST = 5000


def list_operations(
    connection: Connection,
    table: Table,
    scope: Mapping[str, str],
    *,
    ended: bool = True,
    subjects: Collection[str] | None = None,
    uuids: Collection[str] | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> list[OperationSummary]:
    """Return the operations of one schema, the oldest first.

    :param scope: the columns that restrict the table to one cell, with their values; empty for the super conductor.
    :param subjects: restrict the list to operations with one of these subjects or of ``uuids``.
    :param limit: return one page of at most this length, in the order of uuids, after the uuid ``after``.
    """
    mine = [table.c[name] == value for name, value in scope.items()]
    wanted = list(mine)
    if not ended:
        wanted.append(table.c.state == "pending")
    if subjects is not None or uuids is not None:
        wanted.append(or_(table.c.subject.in_(subjects or ()), table.c.uuid.in_(uuids or ())))
    if after is not None:
        wanted.append(table.c.uuid > after)
    statement = _operations(table)
    if limit is None:
        statement = statement.where(*wanted).order_by(table.c.created_at.desc(), table.c.uuid).limit(_MOST)
        rows = connection.execute(statement).all()[::-1]
    elif ended or subjects is not None or uuids is not None:
        rows = connection.execute(statement.where(*wanted).order_by(table.c.uuid).limit(limit)).all()
    else:
        # Along the primary key, the database would read the ended operations between those of a page. The index of the
        # pending ones has their uuids, so that it reads only the rows of the page.
        #
        # SELECT ... FROM operations o
        #   JOIN (SELECT uuid FROM operations WHERE state = 'pending' AND uuid > :after ORDER BY uuid LIMIT :n) page
        #     ON page.uuid = o.uuid ORDER BY o.uuid
        page = by_index(select(table.c.uuid).where(*wanted), table, f"ix_{table.name}_due")
        named = page.order_by(table.c.uuid).limit(limit).subquery()
        statement = statement.join(named, named.c.uuid == table.c.uuid).where(*mine)
        rows = connection.execute(statement.order_by(table.c.uuid)).all()
    # Show the owner of the lease without the suffix of its process.
    owners = [None if row.lease_owner is None else row.lease_owner.rpartition("/")[0] for row in rows]
    return [
        of_row(OperationSummary, row, reason=text(row.reason), lease_owner=owner)
        for row, owner in zip(rows, owners, strict=True)
    ]


@cache
def _operations(table: Table) -> Select[Any]:
    """Return the query for operations; it is cached, because SQLAlchemy takes long to build the time differences."""
    # Without the payloads, which are not shown.
    columns = [column for column in table.c if column.name != "payload"]
    return select(
        *columns,
        (table.c.lease_until - now()).label("lease_left"),
        (now() - table.c.created_at).label("age"),
        (now() - table.c.updated_at).label("idle"),
    )
