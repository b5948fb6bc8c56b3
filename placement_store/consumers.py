"""Consumers as rows: read with all they hold, moved by compare and swap, and buried for good."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, exc, func, or_, select, tuple_

from moorage import errors
from moorage.columns import now
from moorage.messages import AcceptClaim
from moorage.model import Consumer, ProviderAmounts
from placement_store import bulk
from placement_store.names import ResourceClassNames
from placement_store.races import Moved
from placement_store.schema import allocations, consumers, resource_providers, tombstones

#: Provider id and resource class id.
Pair = tuple[int, int]


class HeldRow(NamedTuple):
    """An allocation as the store has it."""

    id: int
    amount: int


@dataclass(frozen=True, slots=True)
class Holding:
    """A consumer as it was read, without a lock, with all that it held at that moment."""

    id: int
    uuid: str
    generation: int
    claim_id: str | None
    root_provider_id: int | None
    accepted_by: str | None
    owner: str | None
    #: Whether anything but HTTP has ever written it.
    known_over_rpc: bool
    consumer_group_id: int | None
    #: The instance that this migration moves.
    migration_of: str | None
    rows: Mapping[Pair, HeldRow]

    @property
    def amounts(self) -> dict[Pair, int]:
        """What it held, by provider and resource class."""
        return {pair: row.amount for pair, row in self.rows.items()}


#: The columns of a consumer that no claim places.
UNCLAIMED: Mapping[str, Any] = {
    "claim_id": None,
    "root_provider_id": None,
    "accepted_by": None,
    "accepted_host": None,
    "accepted_at": None,
    "owner": None,
    "claimed_at": None,
}


# --- Reading --------------------------------------------------------------------------------------------------------

# One statement, which sees one moment: a consumer with the allocations of that generation.
_HOLDINGS = (
    select(
        consumers.c.id,
        consumers.c.uuid,
        consumers.c.generation,
        consumers.c.claim_id,
        consumers.c.root_provider_id,
        consumers.c.accepted_by,
        consumers.c.owner,
        consumers.c.known_over_rpc,
        consumers.c.consumer_group_id,
        consumers.c.migration_of,
        allocations.c.id,
        allocations.c.resource_provider_id,
        allocations.c.resource_class_id,
        allocations.c.used,
    )
    .select_from(consumers.outerjoin(allocations, allocations.c.consumer_id == consumers.c.id))
    .where(consumers.c.uuid.in_(bindparam("uuids", expanding=True)))
)


def holdings(connection: Connection, uuids: Collection[str]) -> dict[str, Holding]:
    """Return those of these consumers that exist, with all that they hold."""
    found: dict[str, Holding] = {}
    held: dict[str, dict[Pair, HeldRow]] = {}
    for chunk in bulk.chunks(sorted(uuids)):
        for row in connection.execute(_HOLDINGS, {"uuids": chunk}):
            *described, row_id, provider_id, class_id, amount = row
            uuid = row.uuid
            if uuid not in found:
                found[uuid] = Holding(*described, rows=held.setdefault(uuid, {}))  # type: ignore[misc]
            if row_id is not None:
                held[uuid][provider_id, class_id] = HeldRow(row_id, amount)
    return found


def require_unburied(connection: Connection, uuid: str, holding: Holding | None) -> None:
    """Refuse a consumer that has been deleted for good, to everybody but HTTP.

    One that is there has been deleted before only if HTTP, which sees no tombstones, has brought it back.

    :raises ConsumerDeleted: it has been.
    """
    if (holding is None or not holding.known_over_rpc) and buried(connection, [uuid]):
        raise errors.ConsumerDeleted(consumer_uuid=uuid)


def buried(connection: Connection, uuids: Collection[str]) -> set[str]:
    """Return those of these consumers that have been deleted for good."""
    query = select(tombstones.c.consumer_uuid)
    return {row.consumer_uuid for row in bulk.select_in(connection, query, tombstones.c.consumer_uuid, sorted(uuids))}


_HOST, _HELD_OF = resource_providers.alias(), resource_providers.alias()
# One statement, for the same reason.
_SHOWN = (
    select(
        consumers,
        _HOST.c.uuid.label("root_provider_uuid"),
        _HELD_OF.c.uuid.label("provider_uuid"),
        _HELD_OF.c.generation.label("provider_generation"),
        allocations.c.resource_class_id,
        allocations.c.used,
    )
    .select_from(
        consumers.outerjoin(_HOST, _HOST.c.id == consumers.c.root_provider_id)
        .outerjoin(allocations, allocations.c.consumer_id == consumers.c.id)
        .outerjoin(_HELD_OF, _HELD_OF.c.id == allocations.c.resource_provider_id)
    )
    .where(consumers.c.uuid == bindparam("uuid"))
    .order_by(_HELD_OF.c.id, allocations.c.resource_class_id)
)


def get(connection: Connection, uuid: str, names: ResourceClassNames) -> Consumer:
    """Return one consumer with all that it holds; a consumer that holds nothing any more is shown as such.

    :raises ConsumerNotFound: there is none of that uuid.
    """
    return get_stored(connection, uuid, names).consumer


class Stored(NamedTuple):
    """A consumer, with what only the store itself tells of it."""

    consumer: Consumer
    #: Null where it was written before types were known; then ``consumer`` has a name for that.
    consumer_type: str | None
    #: In seconds since 1970.
    updated_at: float


def get_stored(connection: Connection, uuid: str, names: ResourceClassNames) -> Stored:
    """Return one consumer; see :func:`get`.

    :raises ConsumerNotFound: there is none of that uuid.
    """
    found = connection.execute(_SHOWN, {"uuid": uuid}).all()
    if not found:
        raise not_found(uuid)
    held: dict[str, dict[str, int]] = {}
    generations: dict[str, int] = {}
    for row in found:
        if row.provider_uuid is not None:
            held.setdefault(row.provider_uuid, {})[names.name_of(row.resource_class_id, connection)] = row.used
            generations[row.provider_uuid] = row.provider_generation
    row = found[0]
    consumer = Consumer(
        uuid=uuid,
        # Only a consumer from before types were known has none; Placement calls it unknown.
        consumer_type=row.consumer_type or "UNKNOWN",
        project_id=row.project_id,
        user_id=row.user_id,
        generation=row.generation,
        allocations={
            provider_uuid: ProviderAmounts(resources=resources, generation=generations[provider_uuid])
            for provider_uuid, resources in held.items()
        },
        claim_id=row.claim_id,
        accepted_by=row.accepted_by,
        root_provider_uuid=row.root_provider_uuid,
        owner=row.owner,
    )
    return Stored(consumer, row.consumer_type, row.updated_at)


# --- Writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewConsumer:
    """The row of a consumer that is not there yet; ``claimed`` sets the time of its claim."""

    columns: Mapping[str, Any]
    claimed: bool


def move(
    connection: Connection, holding: Holding, columns: Mapping[str, Any], *, claimed: bool, unaccepted: bool
) -> None:
    """Compare and swap one consumer's generation, and set ``columns`` with it.

    :param claimed: whether ``columns`` bring a new claim, made now.
    :param unaccepted: whether it may move only as long as no host has accepted its claim.
    :raises Moved: it is no longer as it was read.
    """
    # UPDATE consumers SET generation = generation + 1, updated_at = :now, ...
    #  WHERE id = :id AND generation = :generation [AND accepted_by IS NULL]
    statement = _as_read(consumers.update(), holding, unaccepted=unaccepted)
    values = {**columns, "generation": holding.generation + 1, "updated_at": now()}
    if claimed:
        values["claimed_at"] = now()
    if connection.execute(statement.values(values)).rowcount != 1:
        raise Moved


def move_all(connection: Connection, holdings: Sequence[Holding]) -> None:
    """Compare and swap the generations of consumers of whose rows nothing else changes, in the order of their ids.

    :raises Moved: one of them is no longer as it was read.
    """
    # UPDATE consumers SET generation = generation + 1, updated_at = :now
    #  WHERE id IN (...) AND (id, generation) IN ((..., ...), ...)
    table = consumers.c
    for chunk in bulk.chunks(sorted((holding.id, holding.generation) for holding in holdings)):
        # By id alone first: for a pair of columns the database would look at every row there is.
        these = (table.id.in_([id_ for id_, _ in chunk]), tuple_(table.id, table.generation).in_(chunk))
        statement = consumers.update().where(*these).values(generation=table.generation + 1, updated_at=now())
        if connection.execute(statement).rowcount != len(chunk):
            raise Moved


def create(connection: Connection, rows: Mapping[str, NewConsumer]) -> dict[str, int]:
    """Insert consumers at generation 1; return their ids by uuid.

    :raises Moved: one of them is there already.
    :raises ConsumerDeleted: one of them has been deleted for good, and is not written over HTTP.
    """
    uuids = sorted(rows)
    number: int | None = None
    try:
        # One statement takes rows that name the same columns.
        for claimed, columns in sorted({(row.claimed, tuple(sorted(row.columns))) for row in rows.values()}):
            new = [
                {"uuid": uuid, "generation": 1, **rows[uuid].columns}
                for uuid in uuids
                if rows[uuid].claimed is claimed and rows[uuid].columns.keys() == set(columns)
            ]
            number = bulk.insert(
                connection, consumers, new, stamps=["created_at", "updated_at", *["claimed_at"] * claimed]
            )
    except exc.IntegrityError as fault:
        raise Moved from fault
    if len(rows) == 1 and number is not None and not rows[uuids[0]].columns.get("known_over_rpc", True):
        # No tombstone keeps HTTP from bringing a consumer back.
        return {uuids[0]: number}
    # Written first, then looked for, with a lock: whoever buries this consumer writes its tombstone first and then
    # looks for the consumer, with a lock. Each waits for what the other has written, so one of the two sees the other,
    # or the database ends one of them as a deadlock; both cannot win.
    #
    # SELECT ... FROM consumers c LEFT JOIN tombstones t ON t.consumer_uuid = c.uuid WHERE c.uuid IN (...)
    #   LOCK IN SHARE MODE
    ids: dict[str, int] = {}
    for chunk in bulk.chunks(uuids):
        for id_, uuid, tombstone in connection.execute(_CREATED, {"uuids": chunk}):
            if tombstone is not None and rows[uuid].columns.get("known_over_rpc", True):
                raise errors.ConsumerDeleted(consumer_uuid=uuid)
            ids[uuid] = id_
    return ids


_CREATED = (
    select(consumers.c.id, consumers.c.uuid, tombstones.c.consumer_uuid)
    .select_from(consumers.outerjoin(tombstones, tombstones.c.consumer_uuid == consumers.c.uuid))
    .where(consumers.c.uuid.in_(bindparam("uuids", expanding=True)))
    .with_for_update(read=True)
)


def forget(connection: Connection, holding: Holding, *, unaccepted: bool = False) -> None:
    """Remove the row of a consumer without a tombstone: it may come back as a new one.

    :raises Moved: it is no longer as it was read.
    """
    if connection.execute(_as_read(consumers.delete(), holding, unaccepted=unaccepted)).rowcount != 1:
        raise Moved


def bury(connection: Connection, uuid: str, holding: Holding | None, *, unaccepted: bool = False) -> None:
    """Write a consumer's tombstone and remove its row, if there was one.

    :param unaccepted: whether it may go only as long as no host has accepted its claim.
    :raises Moved: it is no longer as it was read, or has appeared since.
    """
    # The order is what keeps a claim made at this moment from winning as well: see `create`.
    _write_tombstone(connection, uuid)
    if holding is None:
        if connection.execute(consumers.delete().where(consumers.c.uuid == uuid)).rowcount:
            raise Moved
    else:
        forget(connection, holding, unaccepted=unaccepted)


#: The columns of a consumer that is buried and still holds something: a member of no group, and nobody's over RPC.
_LEFT_BEHIND: Mapping[str, Any] = {**UNCLAIMED, "consumer_group_id": None, "known_over_rpc": False}


def bury_around(connection: Connection, holding: Holding, *, unaccepted: bool = False) -> None:
    """Write a consumer's tombstone, and leave its row to those whose allocations stay; it goes with the last of them.

    Only HTTP, which sees no tombstones, can give it anything any more.

    :param unaccepted: as in :func:`bury`.
    :raises Moved: it is no longer as it was read.
    """
    _write_tombstone(connection, holding.uuid)
    move(connection, holding, _LEFT_BEHIND, claimed=False, unaccepted=unaccepted)


def _write_tombstone(connection: Connection, uuid: str) -> None:
    with suppress(exc.IntegrityError):  # buried before
        bulk.insert(connection, tombstones, [{"consumer_uuid": uuid}], stamps=["created_at"])


def accept(connection: Connection, message: AcceptClaim) -> None:
    """Let an attempt's host take a claim that still stands; the same attempt may do so again.

    :raises ClaimReleased: the claim no longer stands, or another attempt has taken it.
    """
    # UPDATE consumers SET accepted_by = :attempt, accepted_host = :host, accepted_at = COALESCE(accepted_at, :now)
    #  WHERE uuid = :consumer AND claim_id = :claim
    #    AND (accepted_by IS NULL OR (accepted_by = :attempt AND accepted_host = :host))
    free_or_same = or_(
        consumers.c.accepted_by.is_(None),
        (consumers.c.accepted_by == message.attempt_id) & (consumers.c.accepted_host == message.host),
    )
    accepted = connection.execute(
        consumers.update()
        .where(consumers.c.uuid == message.consumer_uuid, consumers.c.claim_id == message.claim_id, free_or_same)
        .values(
            accepted_by=message.attempt_id,
            accepted_host=message.host,
            accepted_at=func.coalesce(consumers.c.accepted_at, now()),
        )
    )
    if accepted.rowcount != 1:
        raise errors.ClaimReleased(consumer_uuid=message.consumer_uuid, claim_id=message.claim_id)


def _as_read(statement: Any, holding: Holding, *, unaccepted: bool) -> Any:
    statement = statement.where(consumers.c.id == holding.id, consumers.c.generation == holding.generation)
    # To accept a claim moves no generation.
    return statement.where(consumers.c.accepted_by.is_(None)) if unaccepted else statement


def not_found(uuid: str) -> errors.ConsumerNotFound:
    """Return the error that says so."""
    return errors.ConsumerNotFound(kind="consumer", name=uuid)
