"""Find the allocations that a consumer releases with a claim, also after a reshape has moved them.

A release names the amounts that the claim was made with. A reshape may have moved them since to another provider of the
same tree: of the host's tree, or of a sharing provider's.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from sqlalchemy import Connection, select

from moorage import errors
from moorage.model import AllocationRequest
from moorage.model.allocations import Amounts, amounts_of
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
    first: Sequence[Pair] = (),
) -> Counter[Pair]:
    """Return the amounts to be released, by the provider from which they are allocated now.

    If an amount is no longer allocated from its provider, it is taken from the rest of that provider's tree: a reshape
    keeps the sum that a consumer has there of each class. Foreign amounts of this class in that tree are then taken for
    the claim's, because they cannot be distinguished.

    :param keys: the providers that ``released`` names and that exist; a deleted one was in the host's tree.
    :param in_tree: the result of :func:`providers_on_host`.
    :param first: the amounts that are taken before the others, if one is not where it was claimed.
    """
    held = holding.amounts
    found: Counter[Pair] = Counter()
    #: By root and resource class.
    missing: Counter[tuple[int | None, int]] = Counter()
    for uuid, resources in released.items():
        key = keys.get(uuid)
        for name, amount in resources.items():
            number = names.id_of(name, connection)
            here = 0 if key is None else min(amount, held.get((key.id, number), 0))
            if key is not None:
                found[key.id, number] += here
            missing[holding.root_provider_id if key is None else key.root_id, number] += amount - here
    roots = dict.fromkeys(in_tree, holding.root_provider_id) | _other_roots(connection, holding, +missing, in_tree)
    pairs = dict.fromkeys([*first, *sorted(held)])
    for provider_id, number in (pair for pair in pairs if pair in held and pair[0] in roots):
        place = roots[provider_id], number
        elsewhere = min(missing[place], held[provider_id, number] - found[provider_id, number])
        found[provider_id, number] += elsewhere
        missing[place] -= elsewhere
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
