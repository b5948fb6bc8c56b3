"""Replace all allocations of one or several consumers, as `put_allocations` and the HTTP API do, without a claim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, null, select, union_all

from moorage import errors
from moorage.db.shared_transactions import Alone
from moorage.messages import ConsumerWritten, PostAllocations, PutAllocations
from moorage.model import ConsumerAllocations, ProviderAmounts
from moorage.model.allocations import amounts_of
from placement_store.allocations import consumers, tombstones
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import isolated_groups
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import writes
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey
from placement_store.schema import UNKNOWN_TYPE, resource_providers
from placement_store.schema import consumers as consumer_table


class AnyGeneration(Enum):
    """Provide one value, for writes that compare no consumer generation: those of HTTP clients before 1.28."""

    ANY = "any"


ANY_GENERATION: Final = AnyGeneration.ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Describe the allocations and the columns to be written for one consumer, over RPC or HTTP."""

    #: By provider uuid and resource class; they replace all allocations of the consumer.
    amounts: Mapping[str, Mapping[str, int]]
    #: The generation that the consumer must be at; null means that it must not exist.
    generation: int | AnyGeneration | None
    #: The allocations of a message over RPC, with the generations that providers must be at.
    requested: Mapping[str, ProviderAmounts] = field(default_factory=dict)
    #: Columns of the consumer's row, and further columns that are set only for a new consumer.
    described: Mapping[str, Any]
    described_first: Mapping[str, Any] = field(default_factory=dict)
    #: Whether a consumer without allocations counts as nonexistent, and one that was deleted for good as new.
    over_http: bool = False
    #: Isolated groups to be stored; a group without a provider is removed.
    isolated: isolated_groups.Groups = field(default_factory=dict)

    @classmethod
    def over_rpc(cls, wanted: ConsumerAllocations) -> "Put":
        """Return the put for the part of a message that concerns one consumer."""
        return cls(
            amounts=amounts_of(wanted.allocations),
            generation=wanted.consumer_generation,
            requested=wanted.allocations,
            described={
                "project_id": wanted.project_id,
                "user_id": wanted.user_id,
                # The client writes back what it has read: the consumer still has no type, also over HTTP.
                "consumer_type": None if wanted.consumer_type == UNKNOWN_TYPE else wanted.consumer_type,
                "known_over_rpc": True,
            },
            isolated=wanted.isolated,
        )


class PutPlan(NamedTuple):
    """Hold the changes that puts require, and the values that the write must compare."""

    changes: list[ConsumerChange]
    #: By provider id, the generations that the puts name, and the root ids with which the providers were read.
    relied_on: dict[int, set[int]]
    roots: dict[int, int]


@writes(PutAllocations)
def put_one(connection: Connection, message: PutAllocations, names: ResourceClassNames) -> ConsumerWritten:
    """Replace all allocations of one consumer; see :func:`write`, also for its errors."""
    uuid = message.consumer_uuid
    return _put(connection, {uuid: message.wanted}, names)[uuid]


@writes(PostAllocations)
def put_all(connection: Connection, message: PostAllocations, names: ResourceClassNames) -> dict[str, ConsumerWritten]:
    """Replace all allocations of these consumers, or none; see :func:`write`, also for its errors."""
    return _put(connection, message.consumers, names)


def _put(
    connection: Connection, wanted: Mapping[str, ConsumerAllocations], names: ResourceClassNames
) -> dict[str, ConsumerWritten]:
    write(connection, {uuid: Put.over_rpc(one) for uuid, one in wanted.items()}, names)
    return {uuid: ConsumerWritten(consumer_generation=(wanted[uuid].consumer_generation or 0) + 1) for uuid in wanted}


def write(connection: Connection, puts: Mapping[str, Put], names: ResourceClassNames) -> None:
    """Replace all allocations of these consumers, or none.

    A claim stays as it is, unless nothing is left in its host's tree, or of the pools that serve it alone; then it is
    cleared.

    :raises ConsumerGenerationConflict: a consumer is at another generation than the one named.
    :raises ConsumerDeleted: a consumer has been deleted for good.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises ProviderNotFound: a provider that is named does not exist.
    :raises ResourceClassNotFound: a resource class that is named does not exist.
    :raises CapacityExceeded: an amount does not fit.
    :raises StaleRead: what was read has changed since; a new transaction may succeed.
    """
    planned = plan(connection, puts, names)
    if not planned.changes:
        return
    allocations.write(connection, planned.changes, names, relied_on=planned.relied_on, roots=planned.roots)


def write_each(
    connection: Connection, sent: Sequence[tuple[str, Put]], names: ResourceClassNames
) -> list[Exception | None]:
    """Replace the allocations of several consumers in one transaction, each as if in a separate one; for HTTP.

    :return: for each put: null if it was written; the error of :func:`write` that was found by reading, so that the put
        was not written; or ``Alone`` if the caller must write it in a separate transaction.
    :raises MoorageError: a put does not fit; or nothing is to be written, and a put was refused.
    :raises StaleRead: what was read has changed since; a new transaction may succeed.
    """
    first = dict(reversed(sent))
    keys, found = _read(connection, first)
    outcomes: list[Exception | None] = []
    changes: list[ConsumerChange] = []
    growths: dict[Pair, int] = {}
    for uuid, one in sent:
        if first[uuid] is not one:  # what it names was not read
            outcomes.append(Alone())
            continue
        try:
            _compare_generation(connection, uuid, one, found.get(uuid))
            providers.require(one.amounts, keys)
            change = _change(connection, uuid, one, found.get(uuid), keys, names)
        except errors.MoorageError as refusal:
            outcomes.append(refusal)
            continue
        # Together, only the sum of all puts has to fit. If all of them grow an inventory, or all shrink it, they fit
        # one after another, in any order, if and only if their sum fits. If one grows what another shrinks, the growing
        # one may have to be refused: if it comes first, or if too much is used even after the other. Such a put is
        # written alone.
        if any(growths.get(pair, 0) * growth < 0 for pair, growth in change.growths.items()):
            outcomes.append(Alone())
            continue
        growths |= change.growths
        outcomes.append(None)
        if one.amounts or uuid in found:  # HTTP creates no consumer without allocations
            changes.append(change)
    if changes:
        allocations.write(connection, changes, names, roots=dict(keys.values()))
    elif refusals := [outcome for outcome in outcomes if outcome is not None]:
        raise refusals[0]  # so that no empty transaction is committed
    return outcomes


def _read(connection: Connection, puts: Mapping[str, Put]) -> tuple[dict[str, ProviderKey], dict[str, Holding]]:
    """Return the keys of the providers that puts name, and their consumers with allocations, by uuid if they exist."""
    # Most consumers are new: one statement reads whether they exist, together with the providers. Allocations are read
    # only for consumers that exist.
    new = [uuid for uuid, one in puts.items() if one.generation is None]
    named = {uuid for one in puts.values() for uuid in one.amounts}
    keys: dict[str, ProviderKey] = {}
    present = puts.keys() - new
    for uuid, id_, root_id in connection.execute(_FOUND, {"providers": sorted(named), "consumers": sorted(new)}):
        if root_id is None:
            present.add(uuid)
        else:
            keys[uuid] = ProviderKey(id_, root_id)
    return keys, consumers.holdings(connection, present) if present else {}


# SELECT uuid, id, root_provider_id FROM resource_providers WHERE uuid IN (...)
#  UNION ALL SELECT uuid, id, NULL FROM consumers WHERE uuid IN (...)
_FOUND = union_all(
    select(resource_providers.c.uuid, resource_providers.c.id, resource_providers.c.root_provider_id).where(
        resource_providers.c.uuid.in_(bindparam("providers", expanding=True))
    ),
    select(consumer_table.c.uuid, consumer_table.c.id, null()).where(
        consumer_table.c.uuid.in_(bindparam("consumers", expanding=True))
    ),
)


def plan(connection: Connection, puts: Mapping[str, Put], names: ResourceClassNames) -> PutPlan:
    """Return the changes that these puts require, without writing anything.

    It raises the errors of :func:`write` that can be found by reading.
    """
    found = consumers.holdings(connection, puts)
    for uuid, one in puts.items():
        _compare_generation(connection, uuid, one, found.get(uuid))
    keys = providers.keys_of(connection, {uuid for one in puts.values() for uuid in one.amounts})
    changes = [
        _change(connection, uuid, one, found.get(uuid), keys, names)
        for uuid, one in puts.items()
        # HTTP creates no consumer without allocations.
        if one.amounts or uuid in found or not one.over_http
    ]
    relied_on = allocations.generations_named((one.requested for one in puts.values()), keys)
    return PutPlan(changes, relied_on, dict(keys.values()))


def _compare_generation(connection: Connection, uuid: str, wanted: Put, holding: Holding | None) -> None:
    # Over RPC, the tombstone of a new consumer is read when the consumer is created.
    if not wanted.over_http and (holding is not None or wanted.generation is not None):
        tombstones.require_unburied(connection, uuid, holding)
    if isinstance(wanted.generation, AnyGeneration):
        return
    found = None if holding is None else holding.generation
    if wanted.over_http and wanted.generation is None and holding is not None and not holding.rows:
        return
    if found != wanted.generation:
        raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=wanted.generation, found=found)


def _change(
    connection: Connection,
    uuid: str,
    wanted: Put,
    holding: Holding | None,
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
) -> ConsumerChange:
    after = allocations.numbered(wanted.amounts, keys, names, connection)
    columns = {**wanted.described, **(wanted.described_first if holding is None else {})}
    if wanted.isolated:
        present = None if holding is None else holding.isolated_groups
        columns["isolated_groups"] = isolated_groups.with_changes(present, wanted.isolated)
    if holding is not None:
        # Consumers of which no column changes are written together.
        columns = {name: value for name, value in columns.items() if value != getattr(holding, name)}
    unclaimed = UNCLAIMED if _leaves_its_host(connection, holding, after, keys) else {}
    return ConsumerChange(
        uuid=uuid,
        before=holding,
        after=after,
        named=frozenset(keys[provider_uuid].id for provider_uuid in wanted.amounts),
        columns={**columns, **unclaimed},
        measures_all=wanted.over_http,
    )


def _leaves_its_host(
    connection: Connection, holding: Holding | None, after: Mapping[Pair, int], keys: Mapping[str, ProviderKey]
) -> bool:
    if holding is None or holding.claim_id is None:
        return False
    roots = {key.id: key.root_id for key in keys.values()}
    left = {provider_id for provider_id, _ in after}
    if holding.root_provider_id in {roots[provider_id] for provider_id in left}:
        return False
    # A claim that pools serve alone stays as long as one of them still serves it.
    held = {provider_id for provider_id, _ in holding.rows}
    return held.isdisjoint(left) or holding.root_provider_id in providers.roots_of(connection, held).values()
