"""List claims and residues for operators, with their hosts, owners and ages."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

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


@reads(ListClaims)
def claims(connection: Connection, message: ListClaims) -> list[ClaimState]:
    """Return the requested consumers, or one page of them, the oldest claim first."""
    wanted: ColumnElement[bool] = consumers.c.claim_id.is_not(None)
    if message.unaccepted:
        wanted = and_(wanted, consumers.c.accepted_by.is_(None))
    if message.residues:
        wanted = or_(wanted, IS_RESIDUE)
    uuids = sorted(message.consumer_uuids)
    query = _CLAIMS.where(wanted)
    if message.unaccepted and not message.residues and not uuids:
        # In the order of uuids, the database would read all claims to find the few that no host has accepted.
        query = by_index(query, consumers, "ix_consumers_unaccepted")
    if message.older_than:
        query = query.where(message.older_than <= _AGE)
    query = bulk.page(query, consumers.c.uuid, message.after, message.limit)
    rows: Iterable[Any] = (
        bulk.select_in(connection, query, consumers.c.uuid, uuids) if uuids else connection.execute(query)
    )
    # The two readings of the clock may differ by the duration of a statement: a negative age is shown as 0.
    found = [ClaimState(**row._asdict() | {"age": max(0.0, row.age)}) for row in rows]
    return sorted(found, key=lambda claim: (-claim.age, claim.consumer_uuid))
