"""Find the allocations that a consumer releases with a claim, also after a reshape has moved them.

A release names the amounts that the claim was made with. On sharing providers they are still where they were claimed.
In the tree of the host a reshape may have moved them to another provider since.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress

from sqlalchemy import Connection, select

from moorage import errors
from moorage.model import AllocationRequest
from moorage.model.allocations import Amounts, amounts_of
from placement_store.allocations.consumers import Holding, Pair
from placement_store.db.names import ResourceClassNames
from placement_store.providers.rows import ProviderKey
from placement_store.schema import resource_providers


def providers_on_host(connection: Connection, holding: Holding) -> set[int]:
    """Return the ids of the providers in the tree of the claim's host on which the consumer has allocations."""
    query = select(resource_providers.c.id).where(
        resource_providers.c.root_provider_id == holding.root_provider_id,
        resource_providers.c.id.in_({provider_id for provider_id, _ in holding.rows}),
    )
    return set(connection.scalars(query))


def claimed_with(connection: Connection, request: AllocationRequest, names: ResourceClassNames) -> Amounts:
    """Return the amounts of a former claim, without classes deleted since: they have no allocations."""
    found: dict[str, dict[str, int]] = {}
    for uuid, resources in amounts_of(request.allocations).items():
        for name, amount in resources.items():
            with suppress(errors.ResourceClassNotFound):
                names.id_of(name, connection)
                found.setdefault(uuid, {})[name] = amount
    return found


def locate(
    connection: Connection,
    holding: Holding,
    released: Amounts,
    keys: Mapping[str, ProviderKey],
    in_tree: Collection[int],
    names: ResourceClassNames,
) -> Counter[Pair]:
    """Return the amounts to be released, by the provider from which they are allocated now.

    If an amount is no longer allocated from its provider in the host's tree, it is taken from the rest of that tree: a
    reshape keeps the sum that a consumer has there of each class.

    :param keys: the providers that ``released`` names and that exist; a deleted one was in the host's tree.
    :param in_tree: the result of :func:`providers_on_host`.
    """
    held = holding.amounts
    found: Counter[Pair] = Counter()
    missing: Counter[int] = Counter()
    for uuid, resources in released.items():
        key = keys.get(uuid)
        for name, amount in resources.items():
            number = names.id_of(name, connection)
            here = 0 if key is None else min(amount, held.get((key.id, number), 0))
            if key is not None:
                found[key.id, number] += here
            if key is None or key.root_id == holding.root_provider_id:
                missing[number] += amount - here
    for provider_id, number in sorted(pair for pair in held if pair[0] in in_tree):
        elsewhere = min(missing[number], held[provider_id, number] - found[provider_id, number])
        found[provider_id, number] += elsewhere
        missing[number] -= elsewhere
    return found
