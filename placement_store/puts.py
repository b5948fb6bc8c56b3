"""Raw allocation writes: all that one consumer, or several at once, shall hold from now on."""

from collections.abc import Mapping

from sqlalchemy import Connection

from moorage import errors
from moorage.messages import ConsumerWritten
from moorage.model import ConsumerAllocations
from placement_store import allocations, consumers, providers
from placement_store.allocations import Change
from placement_store.consumers import UNCLAIMED, Holding, Pair
from placement_store.names import ResourceClassNames
from placement_store.providers import ProviderKey


def put(
    connection: Connection, wanted: Mapping[str, ConsumerAllocations], names: ResourceClassNames
) -> dict[str, ConsumerWritten]:
    """Replace all that these consumers hold, or nothing of it.

    A claim stays as it is, unless nothing is left in its host's tree; then it is cleared.

    :raises ConsumerGenerationConflict: a consumer is not at the generation that was named.
    :raises ConsumerDeleted: a consumer has been deleted for good.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises ProviderNotFound: a provider that is named does not exist.
    :raises ResourceClassNotFound: a resource class that is named does not exist.
    :raises CapacityExceeded: it does not fit.
    :raises Moved: what was read has changed since; a new transaction finds out how.
    """
    found = consumers.holdings(connection, wanted)
    for uuid, put_ in wanted.items():
        _compare_generation(connection, uuid, put_.consumer_generation, found.get(uuid))
    requests = [put_.allocations for put_ in wanted.values()]
    keys = providers.keys_of(connection, {uuid for request in requests for uuid in request})
    changes = [_change(connection, uuid, put_, found.get(uuid), keys, names) for uuid, put_ in wanted.items()]
    allocations.write(connection, changes, names, relied_on=allocations.generations_named(requests, keys))
    return {uuid: ConsumerWritten(consumer_generation=(wanted[uuid].consumer_generation or 0) + 1) for uuid in wanted}


def _compare_generation(connection: Connection, uuid: str, named: int | None, holding: Holding | None) -> None:
    found = None if holding is None else holding.generation
    if found != named:
        if found is None and consumers.buried(connection, [uuid]):
            raise errors.ConsumerDeleted(consumer_uuid=uuid)
        raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=named, found=found)


def _change(
    connection: Connection,
    uuid: str,
    put_: ConsumerAllocations,
    holding: Holding | None,
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
) -> Change:
    amounts = {provider_uuid: part.resources for provider_uuid, part in put_.allocations.items()}
    after = allocations.numbered(amounts, keys, names, connection)
    described = {"project_id": put_.project_id, "user_id": put_.user_id, "consumer_type": put_.consumer_type}
    return Change(
        uuid=uuid,
        before=holding,
        after=after,
        named=frozenset(keys[provider_uuid].id for provider_uuid in put_.allocations),
        columns={**described, **(UNCLAIMED if _leaves_its_host(holding, after, keys) else {})},
    )


def _leaves_its_host(holding: Holding | None, after: Mapping[Pair, int], keys: Mapping[str, ProviderKey]) -> bool:
    if holding is None or holding.claim_id is None:
        return False
    roots = {key.id: key.root_id for key in keys.values()}
    return holding.root_provider_id not in {roots[provider_id] for provider_id, _ in after}
