"""What a consumer gives up with a claim, and what it keeps, wherever a reshape has moved what was claimed.

Whoever gives a claim up names what it was made with. On providers that share what they have with other trees, that is
where it still is. In the tree of the host it may by now be elsewhere.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from sqlalchemy import Connection, select

from placement_store.allocations.consumers import Holding, Pair
from placement_store.db.names import ResourceClassNames
from placement_store.providers.rows import ProviderKey
from placement_store.schema import resource_providers

#: By provider uuid and class name.
Amounts = Mapping[str, Mapping[str, int]]


def on_host(connection: Connection, holding: Holding) -> set[int]:
    """Return the ids of those providers held that are in the tree of the claim's host."""
    query = select(resource_providers.c.id).where(
        resource_providers.c.root_provider_id == holding.root_provider_id,
        resource_providers.c.id.in_({provider_id for provider_id, _ in holding.rows}),
    )
    return set(connection.scalars(query))


def located(
    connection: Connection,
    holding: Holding,
    released: Amounts,
    keys: Mapping[str, ProviderKey],
    in_tree: Collection[int],
    names: ResourceClassNames,
) -> Counter[Pair]:
    """Return where what is to be released is held now.

    What is no longer held of a provider of the host's tree is looked for in the rest of that tree: a reshape keeps how
    much a consumer holds there of each class.

    :param keys: the providers that are named; one that is there no more was of the host's tree.
    :param in_tree: what :func:`on_host` says.
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


def kept(holding: Holding, given_up: Mapping[Pair, int], left: Collection[int]) -> dict[Pair, int]:
    """Return what a consumer still holds of its own between giving up one host and taking the next.

    Nothing of the providers that are ``left``; elsewhere, what is beyond ``given_up``, which others have put there.
    """
    beyond = {pair: amount - given_up.get(pair, 0) for pair, amount in holding.amounts.items() if pair[0] not in left}
    return {pair: amount for pair, amount in beyond.items() if amount > 0}
