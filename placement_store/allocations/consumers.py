"""Read consumers with their allocations, create them, and update them by compare-and-swap of their generations."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, exc, select, tuple_

from moorage import errors
from moorage.db.columns import now
from moorage.db.new_rows import NewRows
from moorage.db.script import Script, StatementOutcome
from placement_store.db import bulk
from placement_store.db.retries import StaleRead, stale_if_taken
from placement_store.schema import allocations, consumers

#: Provider id and resource class id.
Pair = tuple[int, int]


class HeldRow(NamedTuple):
    """Hold one allocation's row."""

    id: int
    amount: int


@dataclass(frozen=True, slots=True)
class Holding:
    """Hold a consumer as it was read, without a lock, with all its allocations at that moment."""

    id: int
    uuid: str
    consumer_type: str | None
    project_id: str
    user_id: str
    generation: int
    claim_id: str | None
    root_provider_id: int | None
    accepted_by: str | None
    owner: str | None
    #: Whether it was ever written over RPC, and not only by HTTP clients.
    known_over_rpc: bool
    consumer_group_id: int | None
    #: The instance that this migration moves.
    migration_of: str | None
    #: See :mod:`placement_store.claims.isolated_groups`.
    isolated_groups: bytes | None
    #: See :mod:`placement_store.claims.source_amounts`.
    source_amounts: bytes | None
    rows: Mapping[Pair, HeldRow]

    @property
    def amounts(self) -> dict[Pair, int]:
        """Return the allocated amounts, by provider and resource class."""
        return {pair: row.amount for pair, row in self.rows.items()}


#: The columns of a consumer that no claim places on a host.
UNCLAIMED: Mapping[str, Any] = {
    "claim_id": None,
    "root_provider_id": None,
    "accepted_by": None,
    "accepted_host": None,
    "accepted_at": None,
    "owner": None,
    "claimed_at": None,
    "isolated_groups": None,
}


# --- Reading --------------------------------------------------------------------------------------------------------

# One statement, so that one snapshot is read: a consumer with the allocations of that generation.
_HOLDINGS = (
    select(
        *(consumers.c[column.name] for column in fields(Holding) if column.name != "rows"),
        allocations.c.id,
        allocations.c.resource_provider_id,
        allocations.c.resource_class_id,
        allocations.c.used,
    )
    .select_from(consumers.outerjoin(allocations, allocations.c.consumer_id == consumers.c.id))
    .where(consumers.c.uuid.in_(bindparam("uuids", expanding=True)))
)


def holdings(connection: Connection, uuids: Collection[str]) -> dict[str, Holding]:
    """Return these consumers with all their allocations, by uuid; a consumer that does not exist is omitted."""
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


def compare_generation(uuid: str, named: int | None, holding: Holding | None) -> None:
    """Compare a consumer's generation, if one is named.

    :raises ConsumerGenerationConflict: it is at another generation.
    """
    found = None if holding is None else holding.generation
    if named not in (None, found):
        raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=named, found=found)


def columns_of(connection: Connection, holding: Holding, names: Iterable[str]) -> dict[str, Any]:
    """Return columns of a consumer's row by name.

    They may be newer than ``holding``; then its generation has been bumped, and the write that follows fails.

    :raises StaleRead: the consumer has been deleted.
    """
    query = select(*(consumers.c[name] for name in names)).where(consumers.c.id == holding.id)
    found = connection.execute(query).one_or_none()
    if found is None:
        raise StaleRead
    return found._asdict()


# --- Writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewConsumer:
    """Hold the columns of a consumer to be created; if ``claimed``, the time of its claim is set."""

    columns: Mapping[str, Any]
    claimed: bool


def bump_generation(
    connection: Connection, holding: Holding, columns: Mapping[str, Any], *, claimed: bool, unaccepted: bool
) -> None:
    """Bump one consumer's generation by compare-and-swap, and set ``columns`` in the same statement.

    :param claimed: whether ``columns`` contain a new claim, made now.
    :param unaccepted: fail if a host has accepted its claim.
    :raises StaleRead: it has changed since it was read.
    """
    # UPDATE consumers SET generation = generation + 1, updated_at = :now, ...
    #  WHERE id = :id AND generation = :generation [AND accepted_by IS NULL]
    statement = _as_read(consumers.update(), holding, unaccepted=unaccepted)
    values = {**columns, "generation": holding.generation + 1, "updated_at": now()}
    if claimed:
        values["claimed_at"] = now()
    if connection.execute(statement.values(values)).rowcount != 1:
        raise StaleRead


def bump_generations(connection: Connection, holdings: Sequence[Holding], columns: Mapping[str, Any]) -> None:
    """Bump the generations of consumers by compare-and-swap, in the order of their ids, and set ``columns`` in each.

    :raises StaleRead: one of them has changed since it was read.
    """
    # UPDATE consumers SET generation = generation + 1, updated_at = :now, ...
    #  WHERE id IN (...) AND (id, generation) IN ((..., ...), ...)
    table = consumers.c
    for chunk in bulk.chunks(sorted((holding.id, holding.generation) for holding in holdings)):
        # The condition on the id alone uses the index: with only the pair of columns, the database scans the table.
        these = (table.id.in_([id_ for id_, _ in chunk]), tuple_(table.id, table.generation).in_(chunk))
        values = {**columns, "generation": table.generation + 1, "updated_at": now()}
        statement = consumers.update().where(*these).values(values)
        if connection.execute(statement).rowcount != len(chunk):
            raise StaleRead


def bump_generations_by_id(connection: Connection, ids: Collection[int]) -> None:
    """Bump generations without comparing them, in the order of the consumers' ids; earlier reads become stale."""
    # UPDATE consumers SET generation = generation + 1, updated_at = :now WHERE id IN (...)
    bumped = consumers.update().values(generation=consumers.c.generation + 1, updated_at=now())
    bulk.change_in(connection, bumped, consumers.c.id, sorted(ids))


def create(script: Script, rows: Mapping[str, NewConsumer]) -> dict[str, int]:
    """Insert consumers at generation 1, after the earlier statements of the script; return their ids by uuid.

    :raises StaleRead: one of them exists already.
    :raises ConsumerDeleted: one of them has been deleted for good, and is not written over HTTP.
    """
    uuids = sorted(rows)
    if len(rows) == 1 and not _is_known_over_rpc(rows[uuids[0]]):
        # Over HTTP a consumer may be created again, whether or not it has a tombstone.
        return {uuids[0]: _create_over_http(script.connection, uuids[0], rows[uuids[0]])}
    # All rows of one INSERT must have the same columns.
    for claimed, columns in sorted({(row.claimed, tuple(sorted(row.columns))) for row in rows.values()}):
        new = [
            {"uuid": uuid, "generation": 1, **rows[uuid].columns}
            for uuid in uuids
            if rows[uuid].claimed is claimed and rows[uuid].columns.keys() == set(columns)
        ]
        _ROWS[claimed].add_to(script, new, _stale_if_present)
    # The consumer is written first, and its tombstone is then read with a lock. A concurrent delete for good does
    # the reverse: it writes the tombstone first and then reads the consumer with a lock. Each waits for the other's
    # write, so one of the two sees the other, or the database ends one of them as a deadlock; both cannot succeed.
    #
    # SELECT ... FROM consumers c LEFT JOIN tombstones t ON t.consumer_uuid = c.uuid WHERE c.uuid IN (...)
    #   LOCK IN SHARE MODE
    ids: dict[str, int] = {}

    def note(found: StatementOutcome) -> None:
        for id_, uuid, tombstone in found.rows:
            if tombstone is not None and _is_known_over_rpc(rows[uuid]):
                raise errors.ConsumerDeleted(consumer_uuid=uuid)
            ids[uuid] = id_

    is_sqlite = script.dialect.name == "sqlite"
    for chunk in bulk.chunks(uuids):
        marks = ", ".join(["?" if is_sqlite else "%s"] * len(chunk))
        text = (
            "SELECT c.id, c.uuid, t.consumer_uuid FROM consumers c"  # noqa: S608 - only marks
            f" LEFT JOIN tombstones t ON t.consumer_uuid = c.uuid WHERE c.uuid IN ({marks})"
        )
        script.add(text if is_sqlite else f"{text} LOCK IN SHARE MODE", chunk, note)
    script.run()
    return ids


#: The key is whether the time of a claim is set.
_ROWS = {
    False: NewRows(consumers, created_at=0.0, updated_at=0.0),
    True: NewRows(consumers, created_at=0.0, updated_at=0.0, claimed_at=0.0),
}


def _is_known_over_rpc(row: NewConsumer) -> bool:
    return bool(row.columns.get("known_over_rpc", True))


def _create_over_http(connection: Connection, uuid: str, row: NewConsumer) -> int:
    stamps = ["created_at", "updated_at", *["claimed_at"] * row.claimed]
    with stale_if_taken():
        return int(bulk.insert(connection, consumers, [{"uuid": uuid, "generation": 1, **row.columns}], stamps) or 0)


def _stale_if_present(fault: exc.DBAPIError) -> None:
    if isinstance(fault, exc.IntegrityError):
        raise StaleRead from fault


def forget(connection: Connection, holding: Holding, *, unaccepted: bool = False) -> None:
    """Delete the row of a consumer without writing a tombstone: it can be created again.

    :raises StaleRead: it has changed since it was read.
    """
    if connection.execute(_as_read(consumers.delete(), holding, unaccepted=unaccepted)).rowcount != 1:
        raise StaleRead


def _as_read(statement: Any, holding: Holding, *, unaccepted: bool) -> Any:
    statement = statement.where(consumers.c.id == holding.id, consumers.c.generation == holding.generation)
    # Accepting a claim does not bump the generation.
    return statement.where(consumers.c.accepted_by.is_(None)) if unaccepted else statement
