"""Find the claims in doubt for the reconciler, and record the outcome for each claim."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, or_, select

from moorage.db.columns import is_ahead, now
from moorage.db.database import Database
from moorage.db.forced_index import by_index
from moorage.messages import ListReconciled
from moorage.model.inspection import ReconcilerAction
from moorage.service.pruning import AT_ONCE, delete_expired
from placement_store.db import bulk
from placement_store.db.retries import stale_if_taken
from placement_store.db.store import reads
from placement_store.schema import consumers, reconciled

#: The outcomes for a claim whose owner was queried.
RELEASED, KEPT, UNKNOWN = "released", "kept", "unknown"

#: The most findings that one reply lists.
_LISTED = 1000
#: The most unaccepted claims that are counted.
_COUNTED = 1000
#: The length to which a reason, the text of an error, is cut.
_LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class Doubtful:
    """Hold a claim that no host has accepted for ``age`` seconds."""

    consumer_uuid: str
    claim_id: str
    owner: str
    age: float


def doubtful(connection: Connection, *, older_than: float, not_since: float, at_most: int) -> Sequence[Doubtful]:
    """Return claims with an owner that no host has accepted, ordered by the time at which they were last examined.

    :param older_than: the least age of the claim in seconds.
    :param not_since: the least number of seconds since it was last examined.
    """
    # SELECT ... FROM consumers c
    #  WHERE c.accepted_by IS NULL AND c.claimed_at <= :now - :age AND c.claim_id IS NOT NULL AND c.owner IS NOT NULL
    looked_at = reconciled.c.looked_at
    query = select(
        consumers.c.uuid, consumers.c.claim_id, consumers.c.owner, (now() - consumers.c.claimed_at).label("age")
    ).where(
        consumers.c.accepted_by.is_(None),
        # Age alone never releases a claim, so a claim whose time is ahead of the clock is examined too.
        or_(consumers.c.claimed_at <= now() - older_than, is_ahead(consumers.c.claimed_at)),
        consumers.c.claim_id.is_not(None),
        consumers.c.owner.is_not(None),
    )
    # First those that were never examined, in the order of an index: of a great many, the database reads a few.
    #
    # SELECT ... LEFT JOIN reconciled r ON r.claim_id = c.claim_id WHERE ... AND r.claim_id IS NULL
    #  ORDER BY c.claimed_at LIMIT :n
    never = query.outerjoin_from(consumers, reconciled, reconciled.c.claim_id == consumers.c.claim_id)
    never = never.where(reconciled.c.claim_id.is_(None)).order_by(consumers.c.claimed_at).limit(at_most)
    found = connection.execute(by_index(never, consumers, "ix_consumers_unaccepted")).all()
    if len(found) == at_most:
        return [Doubtful(*row) for row in found]
    # Then those that were examined longest ago. Of the findings, only the narrow columns are sorted, before the claims
    # are read.
    #
    # SELECT ... JOIN (SELECT claim_id, looked_at FROM reconciled WHERE outcome IN ('kept', 'unknown')
    #                     AND looked_at <= :now - :since ORDER BY looked_at LIMIT :n) r ON r.claim_id = c.claim_id ...
    due = select(reconciled.c.claim_id, looked_at).where(
        reconciled.c.outcome.in_((KEPT, UNKNOWN)), or_(looked_at <= now() - not_since, is_ahead(looked_at))
    )
    oldest = due.order_by(looked_at).limit(at_most - len(found)).subquery()
    before = query.join_from(oldest, consumers, consumers.c.claim_id == oldest.c.claim_id).order_by(oldest.c.looked_at)
    return [Doubtful(*row) for row in [*found, *connection.execute(before)]]


def unaccepted(connection: Connection, *, older_than: float) -> int:
    """Count the claims that no host has accepted, including those without an owner, up to a thousand.

    :param older_than: the least age of a claim in seconds.
    """
    # SELECT COUNT(*) FROM (SELECT c.id FROM consumers c
    #  WHERE c.accepted_by IS NULL AND c.claimed_at <= :now - :age AND c.claim_id IS NOT NULL LIMIT :n) some
    old = (
        consumers.c.accepted_by.is_(None),
        consumers.c.claimed_at <= now() - older_than,
        consumers.c.claim_id.is_not(None),
    )
    some = select(consumers.c.id).where(*old).limit(_COUNTED).subquery()
    return int(connection.scalar(select(func.count()).select_from(some)) or 0)


def record(connection: Connection, claim: Doubtful, outcome: str, reason: str = "") -> bool:
    """Record the outcome for a claim; return whether it differs from the one recorded before.

    A recorded release stays: a concurrent role may get its answer about the same claim later, or none.

    :raises StaleRead: a concurrent transaction has recorded it for the first time; a new transaction succeeds.
    """
    text = reason[:_LONGEST_REASON].encode()
    before = connection.execute(
        select(reconciled.c.outcome, reconciled.c.reason).where(reconciled.c.claim_id == claim.claim_id)
    ).one_or_none()
    values = {"outcome": outcome, "reason": text}
    if before is not None:
        this = and_(reconciled.c.claim_id == claim.claim_id, reconciled.c.outcome != RELEASED)
        updated = connection.execute(reconciled.update().where(this).values(**values, looked_at=now()))
        return updated.rowcount > 0 and (before.outcome, before.reason) != (outcome, text)
    row = {"claim_id": claim.claim_id, "consumer_uuid": claim.consumer_uuid, "owner": claim.owner, **values}
    with stale_if_taken():
        bulk.insert(connection, reconciled, [row], stamps=["looked_at"])
    return True


def forget_settled(connection: Connection) -> int:
    """Delete findings about claims that have been accepted, released or replaced since, at most ``AT_ONCE``.

    It returns their number. Findings about claims that the reconciler itself has released stay.
    """
    # SELECT r.claim_id FROM reconciled r LEFT JOIN consumers c ON c.claim_id = r.claim_id AND c.accepted_by IS NULL
    #  WHERE r.outcome IN ('kept', 'unknown') AND c.id IS NULL
    in_doubt = and_(consumers.c.claim_id == reconciled.c.claim_id, consumers.c.accepted_by.is_(None))
    query = (
        select(reconciled.c.claim_id)
        .select_from(reconciled.outerjoin(consumers, in_doubt))
        # Name the outcomes: the database then uses their index, and reads no finding about a released claim.
        .where(reconciled.c.outcome.in_((KEPT, UNKNOWN)), consumers.c.id.is_(None))
    )
    settled = sorted(connection.scalars(query.limit(AT_ONCE)))
    connection.execute(reconciled.delete().where(reconciled.c.claim_id.in_(settled)))
    return len(settled)


@reads(ListReconciled)
def actions(connection: Connection, _message: ListReconciled) -> list[ReconcilerAction]:
    """Return the findings, the newest first."""
    table = reconciled.c
    age = (now() - table.looked_at).label("age")
    query = select(table.consumer_uuid, table.claim_id, table.owner, table.outcome, table.reason, age)
    query = by_index(query, reconciled, "ix_reconciled_looked_at")
    # Both columns in one direction: then the index on the time has this order, and only the listed findings are read.
    rows = connection.execute(query.order_by(table.looked_at.desc(), table.claim_id.desc()).limit(_LISTED))
    return [
        ReconcilerAction(**row._asdict() | {"reason": row.reason.decode(errors="replace"), "age": max(0.0, row.age)})
        for row in rows
    ]


def prune(database: Database, older_than: float) -> int:
    """Delete findings about claims last examined more than this many seconds ago; return their number."""
    return delete_expired(database, reconciled.c.claim_id, reconciled.c.looked_at < now() - older_than)
