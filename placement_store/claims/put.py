"""Raw allocation writes: all that one consumer, or several at once, shall hold from now on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from moorage import errors
from moorage.messages import ConsumerWritten
from moorage.model import ConsumerAllocations
from placement_store.allocations import consumers, tombstones
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import Change
from placement_store.claims import isolated_groups
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey


class AnyGeneration(Enum):
    """Has one value, for whoever relies on no generation of a consumer: HTTP clients before 1.28."""

    ANY = "any"


ANY_GENERATION: Final = AnyGeneration.ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """All that one consumer shall hold from now on, and how it is described, whichever way that has come."""

    #: By provider uuid and resource class.
    amounts: Mapping[str, Mapping[str, int]]
    #: What the consumer must be at; null means that there is no such consumer yet.
    generation: int | AnyGeneration | None
    #: The generations of providers that the caller relies on, by uuid.
    relied_on: Mapping[str, int] = field(default_factory=dict)
    #: Columns of the consumer's row, and further ones that only a new consumer gets.
    described: Mapping[str, Any]
    described_first: Mapping[str, Any] = field(default_factory=dict)
    #: Whether a consumer that holds nothing counts as none, and one that was deleted for good as a new one.
    over_http: bool = False
    #: Isolated groups that are attached, or detached: those without a provider.
    isolated: isolated_groups.Groups = field(default_factory=dict)

    @classmethod
    def over_rpc(cls, asked: ConsumerAllocations) -> "Put":
        """Return what a message asks for."""
        named = {uuid: part.generation for uuid, part in asked.allocations.items()}
        return cls(
            amounts={uuid: part.resources for uuid, part in asked.allocations.items()},
            generation=asked.consumer_generation,
            relied_on={uuid: generation for uuid, generation in named.items() if generation is not None},
            described={
                "project_id": asked.project_id,
                "user_id": asked.user_id,
                "consumer_type": asked.consumer_type,
                "known_over_rpc": True,
            },
            isolated=asked.isolated,
        )


class Asked(NamedTuple):
    """What puts come to."""

    changes: list[Change]
    #: The generations of providers that they name, and the roots that these were found to have, by provider id.
    relied_on: dict[int, set[int]]
    roots: dict[int, int]


def put(
    connection: Connection, wanted: Mapping[str, ConsumerAllocations], names: ResourceClassNames
) -> dict[str, ConsumerWritten]:
    """Replace all that these consumers hold, or nothing of it; see :func:`write`, also for what is raised."""
    write(connection, {uuid: Put.over_rpc(asked) for uuid, asked in wanted.items()}, names)
    return {uuid: ConsumerWritten(consumer_generation=(wanted[uuid].consumer_generation or 0) + 1) for uuid in wanted}


def write(connection: Connection, puts: Mapping[str, Put], names: ResourceClassNames) -> None:
    """Replace all that these consumers hold, or nothing of it.

    A claim stays as it is, unless nothing is left in its host's tree; then it is cleared.

    :raises ConsumerGenerationConflict: a consumer is not at the generation that was named.
    :raises ConsumerDeleted: a consumer has been deleted for good.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises ProviderNotFound: a provider that is named does not exist.
    :raises ResourceClassNotFound: a resource class that is named does not exist.
    :raises CapacityExceeded: it does not fit.
    :raises StaleRead: what was read has changed since; a new transaction finds out how.
    """
    asked = asked_for(connection, puts, names)
    if not asked.changes:
        return
    allocations.write(connection, asked.changes, names, relied_on=asked.relied_on, roots=asked.roots)


def asked_for(connection: Connection, puts: Mapping[str, Put], names: ResourceClassNames) -> Asked:
    """Return what these puts come to, without writing anything.

    What is raised is the part of :func:`write`'s errors that can be told by reading.
    """
    found = consumers.holdings(connection, puts)
    for uuid, asked in puts.items():
        _compare_generation(connection, uuid, asked, found.get(uuid))
    keys = providers.keys_of(connection, {uuid for asked in puts.values() for uuid in asked.amounts})
    changes = [
        _change(connection, uuid, asked, found.get(uuid), keys, names)
        for uuid, asked in puts.items()
        # HTTP leaves no consumer behind that holds nothing.
        if asked.amounts or uuid in found or not asked.over_http
    ]
    return Asked(changes, _relied_on(puts, keys), dict(keys.values()))


def _compare_generation(connection: Connection, uuid: str, asked: Put, holding: Holding | None) -> None:
    # A new consumer of RPC is looked for among the deleted ones when it is created.
    if not asked.over_http and (holding is not None or asked.generation is not None):
        tombstones.require_unburied(connection, uuid, holding)
    if isinstance(asked.generation, AnyGeneration):
        return
    found = None if holding is None else holding.generation
    if asked.over_http and asked.generation is None and holding is not None and not holding.rows:
        return
    if found != asked.generation:
        raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=asked.generation, found=found)


def _relied_on(puts: Mapping[str, Put], keys: Mapping[str, ProviderKey]) -> dict[int, set[int]]:
    named: dict[int, set[int]] = {}
    for asked in puts.values():
        for uuid, generation in asked.relied_on.items():
            named.setdefault(keys[uuid].id, set()).add(generation)
    return named


def _change(
    connection: Connection,
    uuid: str,
    asked: Put,
    holding: Holding | None,
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
) -> Change:
    after = allocations.numbered(asked.amounts, keys, names, connection)
    first = asked.described_first if holding is None else {}
    isolated: dict[str, Any] = {}
    if asked.isolated:
        present = None if holding is None else holding.isolated_groups
        isolated = {"isolated_groups": isolated_groups.with_changes(present, asked.isolated)}
    unclaimed = UNCLAIMED if _leaves_its_host(holding, after, keys) else {}
    return Change(
        uuid=uuid,
        before=holding,
        after=after,
        named=frozenset(keys[provider_uuid].id for provider_uuid in asked.amounts),
        columns={**asked.described, **first, **isolated, **unclaimed},
    )


def _leaves_its_host(holding: Holding | None, after: Mapping[Pair, int], keys: Mapping[str, ProviderKey]) -> bool:
    if holding is None or holding.claim_id is None:
        return False
    roots = {key.id: key.root_id for key in keys.values()}
    return holding.root_provider_id not in {roots[provider_id] for provider_id, _ in after}
