"""Decide which providers can serve which groups of a request, each provider considered by itself."""

from moorage.model import ResourceGroup, ResourceRequest
from placement_store.candidates.tree import CandidateProvider, HostTree
from placement_store.providers.rows import InventoryRow


class Ancestry:
    """The roots of the providers of a host's tree and of the pools that share with it.

    The aggregates of a root count for its whole tree.
    """

    def __init__(self, tree: HostTree) -> None:
        known = [*tree.providers, *tree.above_sharing, *tree.sharing]
        self.anchor = tree.root.root_uuid
        self.root_of = {provider.uuid: provider.root_uuid for provider in known}
        self.aggregates_of_root = {p.uuid: p.aggregates for p in known if p.uuid == p.root_uuid}


def root_qualifies(root: CandidateProvider, request: ResourceRequest) -> bool:
    """Return whether the root of a host's tree has the traits and aggregates that a request requires of it."""
    return (
        root.traits.issuperset(request.root_required)
        and root.traits.isdisjoint(request.root_forbidden)
        and root.aggregates.isdisjoint(request.root_not_member_of)
        and not any(root.aggregates.isdisjoint(wanted) for wanted in request.root_member_of)
    )


def serves_group(provider: CandidateProvider, group: ResourceGroup, ancestry: Ancestry) -> bool:
    """Return whether a provider can serve a whole suffixed group."""
    return (
        _is_allowed(provider, provider.aggregates, group, ancestry)
        and provider.traits.issuperset(group.required)
        and not any(provider.traits.isdisjoint(wanted) for wanted in group.any_of)
        and all(has_room(provider, name, amount) for name, amount in group.resources.items())
    )


def serves_part(provider: CandidateProvider, group: ResourceGroup, ancestry: Ancestry) -> bool:
    """Return whether a provider can serve a part of the unsuffixed group, apart from its resources.

    The root's aggregates count for the whole tree. A required trait may be on another provider that serves the group.
    """
    if group.in_tree is not None and provider.root_uuid != ancestry.anchor:
        return False
    aggregates = provider.aggregates | ancestry.aggregates_of_root.get(provider.root_uuid, frozenset())
    return _is_allowed(provider, aggregates, group, ancestry)


def has_room(provider: CandidateProvider, name: str, amount: int) -> bool:
    """Return whether a provider has room for one more amount of a class, under its unit rules."""
    inventory = provider.inventories.get(name)
    return (
        inventory is not None
        and inventory.min_unit <= amount <= inventory.max_unit
        and amount % inventory.step_size == 0
        and amount <= room(inventory)
    )


def room(inventory: InventoryRow) -> int:
    """Return how much more one consumer can get, in one or more amounts; negative if over-committed."""
    # Amounts are whole numbers, so rounding down cannot disagree with the capacity check of the write.
    return min(int(inventory.capacity // 1) - inventory.used, inventory.max_unit)


def _is_allowed(
    provider: CandidateProvider, aggregates: frozenset[str], group: ResourceGroup, ancestry: Ancestry
) -> bool:
    """Return whether neither its tree, nor its traits, nor these aggregates exclude a provider."""
    return (
        (group.in_tree is None or provider.root_uuid == ancestry.root_of.get(group.in_tree))
        and provider.traits.isdisjoint(group.forbidden)
        and aggregates.isdisjoint(group.not_member_of)
        and not any(aggregates.isdisjoint(wanted) for wanted in group.member_of)
    )
