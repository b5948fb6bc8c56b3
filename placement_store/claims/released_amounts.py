"""Find the allocations that a consumer releases with a claim, also after a reshape has moved them.

A release names the amounts that the claim was made with. A reshape may have moved them since to another provider of the
same tree: of the host's tree, or of a sharing provider's.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress

from sqlalchemy import Connection, select

from moorage import errors
from moorage.model import Allocations
from moorage.model.allocations import Amounts, amounts_of
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import Holding, Pair
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey
from placement_store.schema import resource_providers


def providers_on_host(connection: Connection, holding: Holding) -> set[int]:
    """Return the ids of the providers in the tree of the claim's host on which the consumer has allocations."""
    query = select(resource_providers.c.id).where(
        resource_providers.c.root_provider_id == holding.root_provider_id,
        resource_providers.c.id.in_({provider_id for provider_id, _ in holding.rows}),
    )
    return set(connection.scalars(query))


def claimed_with(connection: Connection, request: Allocations, names: ResourceClassNames) -> Amounts:
    """Return the amounts of a former claim, without classes deleted since: they have no allocations."""
    found: dict[str, dict[str, int]] = {}
    for uuid, resources in amounts_of(request).items():
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

    If an amount is no longer allocated from its provider, it is taken from the rest of that provider's tree: a reshape
    keeps the sum that a consumer has there of each class. Foreign amounts of this class in that tree are then taken for
    the claim's, because they cannot be distinguished. So are, after a provider was deleted, those outside that tree.

    :param keys: the providers that ``released`` names and that exist. A deleted one was in the host's tree, or it was a
        pool that a reshape had emptied.
    :param in_tree: the result of :func:`providers_on_host`.
    """
    claimed, deleted = numbered(connection, released, keys, names)
    return locate_pairs(connection, holding, claimed, dict(keys.values()), in_tree, deleted, may_be_pools=True)


def numbered(
    connection: Connection, released: Amounts, keys: Mapping[str, ProviderKey], names: ResourceClassNames
) -> tuple[Counter[Pair], Counter[int]]:
    """Return amounts by the ids of provider and class, and the amounts of deleted providers by the ids of classes."""
    existing = {uuid: resources for uuid, resources in released.items() if uuid in keys}
    deleted: Counter[int] = Counter()
    for uuid in released.keys() - existing.keys():
        deleted.update({names.id_of(name, connection): amount for name, amount in released[uuid].items()})
    return Counter(allocations.numbered(existing, keys, names, connection)), deleted


def locate_pairs(
    connection: Connection,
    holding: Holding,
    claimed: Mapping[Pair, int],
    roots: Mapping[int, int],
    in_tree: Collection[int],
    deleted: Mapping[int, int] | None = None,
    *,
    may_be_pools: bool = False,
) -> Counter[Pair]:
    """Return the present places of amounts that are given as :func:`numbered` returns them; see :func:`locate`.

    :param roots: the root of each provider that is named.
    :param may_be_pools: whether amounts of deleted providers are also looked for outside the host's tree.
    """
    held = holding.amounts
    found = Counter({pair: min(amount, held.get(pair, 0)) for pair, amount in claimed.items()})
    #: By root and resource class.
    missing: Counter[tuple[int | None, int]] = Counter()
    missing.update({(holding.root_provider_id, number): amount for number, amount in (deleted or {}).items()})
    for (provider_id, number), amount in claimed.items():
        missing[roots[provider_id], number] += amount - found[provider_id, number]
    places = dict.fromkeys(in_tree, holding.root_provider_id) | _other_roots(connection, holding, +missing, in_tree)
    for provider_id, number in (pair for pair in sorted(held) if pair[0] in places):
        place = places[provider_id], number
        elsewhere = min(missing[place], held[provider_id, number] - found[provider_id, number])
        found[provider_id, number] += elsewhere
        missing[place] -= elsewhere
    if not may_be_pools:
        return found
    # A deleted provider may also have been a pool that a reshape had emptied: its tree is not known any more.
    left = Counter({number: min(n, missing[holding.root_provider_id, number]) for number, n in (deleted or {}).items()})
    for provider_id, number in (pair for pair in sorted(held) if pair[0] not in in_tree and left[pair[1]] > 0):
        elsewhere = min(left[number], held[provider_id, number] - found[provider_id, number])
        found[provider_id, number] += elsewhere
        left[number] -= elsewhere
    return found


def by_root(connection: Connection, amounts: Mapping[Pair, int]) -> Counter[Pair]:
    """Return the sums of these amounts in each provider tree, by the root's id and resource class."""
    roots = providers.roots_of(connection, {provider_id for provider_id, _ in amounts})
    found: Counter[Pair] = Counter()
    for (provider_id, number), amount in amounts.items():
        if provider_id in roots:
            found[roots[provider_id], number] += amount
    return found


def _other_roots(
    connection: Connection, holding: Holding, missing: Collection[tuple[int | None, int]], in_tree: Collection[int]
) -> dict[int, int]:
    """Return the roots of the providers outside the host's tree that may have the missing amounts, by provider id.

    Nothing is read unless an amount is missing outside the host's tree and the consumer has some of its class there.
    """
    own = holding.root_provider_id
    classes = {number for root_id, number in missing if root_id != own}
    ids = {provider_id for provider_id, number in holding.rows if number in classes}.difference(in_tree)
    found = providers.roots_of(connection, ids) if ids else {}
    return {provider_id: root_id for provider_id, root_id in found.items() if root_id != own}
