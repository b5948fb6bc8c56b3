"""Compute requests, claims and allocations after a resource group is attached or detached."""

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from moorage.model import (
    UNSUFFIXED,
    AllocationRequest,
    Allocations,
    ProviderAmounts,
    RequestSpec,
    ResourceGroup,
    Resources,
    Selection,
)

#: A provider and a resource class: the key of an inventory.
InventoryKey = tuple[str, str]


# --- The request ------------------------------------------------------------------------------------------------------


def with_group(spec: RequestSpec, suffix: str, group: ResourceGroup) -> RequestSpec:
    """Return a request with one more group.

    A request with two or more suffixed groups needs a group policy. If the instance was built without one, it gets
    `none`: its groups may share a provider.
    """
    groups = {**spec.groups, suffix: group}
    is_open = spec.group_policy is None and len(groups.keys() - {UNSUFFIXED}) > 1
    return msgspec.structs.replace(spec, groups=groups, group_policy="none" if is_open else spec.group_policy)


def without_group(spec: RequestSpec, suffix: str) -> RequestSpec:
    """Return a request without this group."""
    groups = {name: group for name, group in spec.groups.items() if name != suffix}
    return msgspec.structs.replace(spec, groups=groups)


# --- Claims -----------------------------------------------------------------------------------------------------------


def provider_of(claimed: AllocationRequest, suffix: str) -> str | None:
    """Return the provider that was claimed for a suffixed group, or None if it is not on record."""
    return next(iter(claimed.mappings.get(suffix, ())), None)


def is_isolated(spec: RequestSpec) -> bool:
    """Return True if no two suffixed groups may have the same provider.

    The flavor may demand it too (Nova: extra spec ``group_policy``); the stricter of both policies counts.
    """
    return "isolate" in (spec.group_policy, spec.flavor.extra_specs.get("group_policy", "").strip())


def isolated_groups(spec: RequestSpec, claimed: AllocationRequest) -> dict[str, tuple[str, ...]]:
    """Return the providers that were claimed for each suffixed group if groups are isolated; otherwise none."""
    if not is_isolated(spec):
        return {}
    return {suffix: served for suffix, served in claimed.mappings.items() if suffix != UNSUFFIXED}


def suffixed_providers(claimed: AllocationRequest) -> set[str]:
    """Return the providers that were claimed for suffixed groups."""
    return {uuid for suffix, served in claimed.mappings.items() if suffix != UNSUFFIXED for uuid in served}


def shut_out(spec: RequestSpec, claimed: AllocationRequest, held: Allocations) -> set[str]:
    """Return the providers that may not serve a further suffixed group, because they serve an isolated one.

    A reshape may have moved the amounts of an isolated group to other providers. So a provider is returned too if the
    consumer holds an amount of the same class there that it never claimed there.

    :param held: all current allocations of the consumer.
    """
    if not is_isolated(spec):
        return set()
    named, present, claimed_pairs = suffixed_providers(claimed), amounts_of(held), amounts_of(claimed.allocations)
    moved = {name for (uuid, name), amount in claimed_pairs.items() if uuid in named and present[uuid, name] < amount}
    return named | {uuid for uuid, name in present if name in moved and (uuid, name) not in claimed_pairs}


def without_pairs(claimed: AllocationRequest, gone: Collection[InventoryKey]) -> Allocations:
    """Return the claimed allocations without these pairs."""
    return allocations_of(Counter({pair: n for pair, n in amounts_of(claimed.allocations).items() if pair not in gone}))


def together(one: Allocations, other: Allocations) -> Allocations:
    """Return the sum of two allocations."""
    return allocations_of(amounts_of(one) + amounts_of(other))


def claimed_with(
    claimed: AllocationRequest, suffix: str, provider_uuid: str, resources: Resources
) -> AllocationRequest:
    """Return an allocation request with a further group that is claimed from this provider."""
    amounts = amounts_of(claimed.allocations) + _of(provider_uuid, resources)
    return AllocationRequest(
        allocations=allocations_of(amounts), mappings={**claimed.mappings, suffix: (provider_uuid,)}
    )


def claimed_without(claimed: AllocationRequest, suffix: str, resources: Resources) -> AllocationRequest:
    """Return an allocation request without one group."""
    amounts = amounts_of(claimed.allocations)
    if (provider_uuid := provider_of(claimed, suffix)) is not None:
        amounts -= _of(provider_uuid, resources)
    mappings = {name: served for name, served in claimed.mappings.items() if name != suffix}
    return AllocationRequest(allocations=allocations_of(amounts), mappings=mappings)


# --- Allocations ------------------------------------------------------------------------------------------------------


def held_with(held: Allocations, provider_uuid: str, resources: Resources) -> Allocations:
    """Return a consumer's allocations with the allocations of a further group."""
    return allocations_of(amounts_of(held) + _of(provider_uuid, resources))


def held_without(
    held: Allocations, selection: Selection, suffix: str, resources: Resources, tree: Collection[str]
) -> Allocations:
    """Return a consumer's allocations without the remaining allocations of one group.

    Amounts that are no longer where they were claimed are searched in the rest of the host's tree, because a reshape
    may have moved them. The other claimed amounts of the instance are matched first: if another client has released
    some, they count as the group's, and the other amounts stay whole. Foreign allocations are matched last.

    :param selection: the host, and the allocation request that was claimed there, including this group.
    :param tree: the current providers of the host's tree.
    """
    claimed, pools = selection.allocation_request, selection.shared_providers
    group = Counter[InventoryKey]()
    if (provider_uuid := provider_of(claimed, suffix)) is not None:
        group = _of(provider_uuid, resources)
    own = amounts_of(claimed.allocations) - group
    left = amounts_of(held)
    own_there, group_there = own & left, group & (left - own)
    left = left - own_there - group_there
    left -= _elsewhere(own - own_there, left, tree, pools)
    return allocations_of(amounts_of(held) - group_there - _elsewhere(group - group_there, left, tree, pools))


def _elsewhere(
    missing: Counter[InventoryKey], left: Counter[InventoryKey], tree: Collection[str], pools: Collection[str]
) -> Counter[InventoryKey]:
    """Return where in the tree missing amounts are now; amounts of sharing providers outside it are not searched."""
    gone = Counter[str]()
    for (provider_uuid, name), amount in missing.items():
        if provider_uuid not in pools:
            gone[name] += amount
    found = Counter[InventoryKey]()
    for pair in sorted(left):
        if pair[0] in tree:
            found[pair] = min(gone[pair[1]], left[pair])
            gone[pair[1]] -= found[pair]
    return found


def amounts_of(allocations: Allocations) -> Counter[InventoryKey]:
    """Return the amounts of allocations by provider and resource class."""
    return Counter(
        {(uuid, name): amount for uuid, part in allocations.items() for name, amount in part.resources.items()}
    )


def _of(provider_uuid: str, resources: Mapping[str, int]) -> Counter[InventoryKey]:
    return Counter({(provider_uuid, name): amount for name, amount in resources.items()})


def allocations_of(amounts: Counter[InventoryKey]) -> Allocations:
    """Return the allocations of these amounts, without provider generations."""
    found: dict[str, dict[str, int]] = {}
    for (uuid, name), amount in sorted(amounts.items()):
        if amount:
            found.setdefault(uuid, {})[name] = amount
    return {uuid: ProviderAmounts(resources=resources) for uuid, resources in found.items()}
