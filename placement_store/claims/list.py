"""List claims and residues for operators, with their hosts, owners and ages."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select

from moorage.db.columns import now
from moorage.db.forced_index import by_index
from moorage.messages import ListClaims
from moorage.model.inspection import ClaimState
from placement_store.claims.residues import IS_RESIDUE
from placement_store.db import bulk
from placement_store.db.store import reads
from placement_store.schema import UNKNOWN_TYPE, consumers, resource_providers

_AGE = now() - func.coalesce(consumers.c.claimed_at, consumers.c.created_at)

_CLAIMS = select(
    consumers.c.uuid.label("consumer_uuid"),
    func.coalesce(consumers.c.consumer_type, UNKNOWN_TYPE).label("consumer_type"),
    consumers.c.generation,
    consumers.c.claim_id,
    resource_providers.c.uuid.label("root_provider_uuid"),
    resource_providers.c.name.label("node"),
    consumers.c.owner,
    consumers.c.accepted_by,
    consumers.c.accepted_host,
    _AGE.label("age"),
).select_from(consumers.outerjoin(resource_providers, resource_providers.c.id == consumers.c.root_provider_id))


#: The most old claims that are found by the index on their times, and not along the uuids of all consumers. Arbitrary:
#: if there are more, a page is full before very many other consumers were read.
_FEW = 10_000


@reads(ListClaims)
def claims(connection: Connection, message: ListClaims) -> list[ClaimState]:
    """Return the requested consumers, or one page of them, the oldest claim first."""
    wanted: ColumnElement[bool] = consumers.c.claim_id.is_not(None)
    if message.unaccepted:
        wanted = and_(wanted, consumers.c.accepted_by.is_(None))
    if message.residues:
        wanted = or_(wanted, IS_RESIDUE)
    query = bulk.page(_CLAIMS.where(wanted), consumers.c.uuid, message.after, message.limit)
    if message.older_than:
        query = query.where(message.older_than <= _AGE)
    rows = _rows(connection, query, message)
    # The two readings of the clock may differ by the duration of a statement: a negative age is shown as 0.
    found = [ClaimState(**row._asdict() | {"age": max(0.0, row.age)}) for row in rows]
    return sorted(found, key=lambda claim: (-claim.age, claim.consumer_uuid))


def _rows(connection: Connection, page: Select[Any], message: ListClaims) -> Iterable[Row[Any]]:
    """Return the rows of a page, read along the index by which they are found soonest."""
    table, index = consumers.c, "ix_consumers_unaccepted"
    if message.consumer_uuids:
        return bulk.select_in(connection, page, table.uuid, sorted(message.consumer_uuids))
    # In the order of uuids, the database would read all consumers to find the few that no host has accepted, or few old
    # ones. Each claim has its time, and consumers without a claim, which may be very many, have none.
    is_old = table.claimed_at <= now() - message.older_than if message.older_than else table.claimed_at.is_not(None)
    if message.unaccepted and not message.residues:
        return connection.execute(by_index(page.where(is_old), consumers, index))
    if message.older_than:
        if message.residues:  # most of them have no such time
            is_old = or_(is_old, and_(table.claimed_at.is_(None), table.accepted_by.is_not(None)))
        # SELECT id FROM consumers FORCE INDEX (ix_consumers_unaccepted) WHERE claimed_at <= :now - :age LIMIT :n
        old = by_index(select(table.id).where(is_old), consumers, index)  # the index has all these columns
        ids = connection.scalars(old.limit(_FEW + 1)).all()
        if len(ids) <= _FEW:
            # Without LIMIT: for a short page, the database would read all consumers in the order of uuids again.
            found = bulk.select_in(connection, page.order_by(None).limit(None), table.id, ids)
            return sorted(found, key=lambda row: str(row.consumer_uuid))[: message.limit]
    return connection.execute(page)
