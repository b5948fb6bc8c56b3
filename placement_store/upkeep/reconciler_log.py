"""What the reconciler finds to ask after, and its book of what became of each claim."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, exc, func, or_, select

from moorage.db.columns import now
from moorage.model.inspection import ReconcilerAction
from placement_store.db import bulk
from placement_store.db.retries import StaleRead
from placement_store.schema import consumers, reconciled

#: What becomes of a claim that has been asked after.
RELEASED, KEPT, UNKNOWN = "released", "kept", "unknown"

#: The most that one answer lists.
_LISTED = 1000
#: A reason is an error's text, of which this much says enough.
_LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A claim that no host has accepted for a while."""

    consumer_uuid: str
    claim_id: str
    owner: str
    age: float


def doubtful(connection: Connection, *, older_than: float, not_since: float, at_most: int) -> Sequence[Doubtful]:
    """Return claims that name an owner and that no host has accepted, those first that nobody has looked at longest.

    :param older_than: seconds since the claim was made.
    :param not_since: seconds since anybody has looked at it.
    """
    # SELECT ... FROM consumers c LEFT JOIN reconciled r ON r.claim_id = c.claim_id
    #  WHERE c.accepted_by IS NULL AND c.claimed_at <= :now - :age AND c.claim_id IS NOT NULL AND c.owner IS NOT NULL
    #    AND (r.looked_at IS NULL OR r.looked_at <= :now - :since)
    #  ORDER BY COALESCE(r.looked_at, 0), c.claimed_at LIMIT :n
    looked_at = reconciled.c.looked_at
    query = (
        select(consumers.c.uuid, consumers.c.claim_id, consumers.c.owner, (now() - consumers.c.claimed_at).label("age"))
        .select_from(consumers.outerjoin(reconciled, reconciled.c.claim_id == consumers.c.claim_id))
        .where(
            consumers.c.accepted_by.is_(None),
            consumers.c.claimed_at <= now() - older_than,
            consumers.c.claim_id.is_not(None),
            consumers.c.owner.is_not(None),
            or_(looked_at.is_(None), looked_at <= now() - not_since),
        )
        .order_by(func.coalesce(looked_at, 0.0), consumers.c.claimed_at)
        .limit(at_most)
    )
    return [Doubtful(row.uuid, row.claim_id, row.owner, row.age) for row in connection.execute(query)]


def record(connection: Connection, claim: Doubtful, outcome: str, reason: str = "") -> bool:
    """Note what became of a claim; return whether that is news.

    :raises StaleRead: somebody else has noted it for the first time at this moment; a new transaction succeeds.
    """
    said = reason[:_LONGEST_REASON].encode()
    before = connection.execute(
        select(reconciled.c.outcome, reconciled.c.reason).where(reconciled.c.claim_id == claim.claim_id)
    ).one_or_none()
    values = {"outcome": outcome, "reason": said}
    if before is not None:
        this = reconciled.c.claim_id == claim.claim_id
        connection.execute(reconciled.update().where(this).values(**values, looked_at=now()))
        return (before.outcome, before.reason) != (outcome, said)
    row = {"claim_id": claim.claim_id, "consumer_uuid": claim.consumer_uuid, "owner": claim.owner, **values}
    try:
        bulk.insert(connection, reconciled, [row], stamps=["looked_at"])
    except exc.IntegrityError as fault:
        raise StaleRead from fault
    return True


def forget_settled(connection: Connection) -> int:
    """Forget what was found of claims that have been accepted, released or replaced since; return of how many.

    What the reconciler has released itself stays in the book.
    """
    # SELECT r.claim_id FROM reconciled r LEFT JOIN consumers c ON c.claim_id = r.claim_id AND c.accepted_by IS NULL
    #  WHERE r.outcome <> 'released' AND c.id IS NULL
    in_doubt = and_(consumers.c.claim_id == reconciled.c.claim_id, consumers.c.accepted_by.is_(None))
    query = (
        select(reconciled.c.claim_id)
        .select_from(reconciled.outerjoin(consumers, in_doubt))
        .where(reconciled.c.outcome != RELEASED, consumers.c.id.is_(None))
    )
    settled = sorted(connection.scalars(query))
    for chunk in bulk.chunks(settled):
        connection.execute(reconciled.delete().where(reconciled.c.claim_id.in_(chunk)))
    return len(settled)


def actions(connection: Connection) -> list[ReconcilerAction]:
    """Return what was found, the newest first."""
    query = select(reconciled, (now() - reconciled.c.looked_at).label("age"))
    rows = connection.execute(query.order_by(reconciled.c.looked_at.desc(), reconciled.c.claim_id).limit(_LISTED))
    return [_action(row) for row in rows]


def prune(connection: Connection, older_than: float) -> int:
    """Forget what was found so many seconds ago and not looked at since; return how much."""
    return connection.execute(reconciled.delete().where(reconciled.c.looked_at < now() - older_than)).rowcount


def _action(row: Row[Any]) -> ReconcilerAction:
    return ReconcilerAction(
        consumer_uuid=row.consumer_uuid,
        claim_id=row.claim_id,
        owner=row.owner,
        outcome=row.outcome,
        reason=row.reason.decode(errors="replace"),
        age=max(0.0, row.age),
    )
