"""Allocation candidates by plain enumeration: every combination is built, then checked against each rule.

Written only from Placement's rules, independently of the search; too slow for anything but small trees.
"""

import itertools
from collections.abc import Collection, Iterator

from sqlalchemy import Connection

from moorage.model import ResourceGroup, ResourceRequest
from placement_store.candidates import CandidateProvider, HostTree
from placement_store.candidates.load import Batch, Pools, trees_of
from placement_store.db.names import ResourceClassNames

Amounts = frozenset[tuple[str, str, int]]
#: For each group, the provider of each of its classes; a group without resources has one pair, with None.
Serving = dict[str, list[tuple[CandidateProvider, str | None]]]


def trees_in_the_store(
    connection: Connection, names: ResourceClassNames, root_ids: Collection[int]
) -> dict[int, HostTree]:
    """Load the trees of these roots by the root's id, with the pools that share with them, without deleted roots."""
    pools = Pools.read(connection)
    return trees_of(connection, names, pools, Batch.of(connection, pools, root_ids), sorted(root_ids))


def every_candidate(tree: HostTree, request: ResourceRequest) -> set[Amounts]:
    """Return every set of (provider, class, amount) that serves a request."""
    return {amounts_of(serving, request) for serving in every_serving(tree, request)}


def every_serving(tree: HostTree, request: ResourceRequest) -> Iterator[Serving]:
    root = tree.providers[0]
    if not set(request.root_required) <= root.traits or set(request.root_forbidden) & root.traits:
        return
    if not all(set(wanted) & root.aggregates for wanted in request.root_member_of):
        return
    if set(request.root_not_member_of) & root.aggregates:
        return
    suffixes = list(request.groups)
    options = [
        list(unsuffixed_options(tree, group) if suffix == "" else suffixed_options(tree, group))
        for suffix, group in request.groups.items()
    ]
    for combination in itertools.product(*options):
        serving = dict(zip(suffixes, combination, strict=True))
        if keeps_policy(serving, request) and keeps_subtrees(serving, tree, request) and fits(serving, tree, request):
            yield serving


# --- One group ------------------------------------------------------------------------------------------------------


def suffixed_options(tree: HostTree, group: ResourceGroup) -> Iterator[list[tuple[CandidateProvider, str | None]]]:
    for provider in [*tree.providers, *tree.sharing]:
        if (
            all(has(provider, name, amount) for name, amount in group.resources.items())
            and set(group.required) <= provider.traits
            and all(set(traits) & provider.traits for traits in group.any_of)
            and not set(group.forbidden) & provider.traits
            and all(set(wanted) & provider.aggregates for wanted in group.member_of)
            and not set(group.not_member_of) & provider.aggregates
            and (group.in_tree is None or provider.root_uuid == root_of(group.in_tree, tree))
        ):
            yield [(provider, name) for name in group.resources] or [(provider, None)]


def unsuffixed_options(tree: HostTree, group: ResourceGroup) -> Iterator[list[tuple[CandidateProvider, str | None]]]:
    providers = [*tree.providers, *tree.sharing]
    if group.in_tree is not None:
        providers = list(tree.providers) if root_of(group.in_tree, tree) == tree.providers[0].uuid else []
    for chosen in itertools.product(providers, repeat=len(group.resources)):
        used = list(zip(chosen, group.resources, strict=True))
        traits = set().union(*(provider.traits for provider in chosen))
        if (
            all(has(provider, name, group.resources[name]) for provider, name in used)
            and set(group.required) <= traits
            and all(set(wanted) & traits for wanted in group.any_of)
            and not set(group.forbidden) & traits
            and all(is_member_with_root(provider, tree, group) for provider in chosen)
        ):
            yield [*used]


def is_member_with_root(provider: CandidateProvider, tree: HostTree, group: ResourceGroup) -> bool:
    everything = [*tree.providers, *tree.sharing, *tree.above_sharing]
    [root] = {p.uuid: p for p in everything if p.uuid == provider.root_uuid}.values()
    aggregates = provider.aggregates | root.aggregates
    return all(set(wanted) & aggregates for wanted in group.member_of) and not set(group.not_member_of) & aggregates


def root_of(uuid: str, tree: HostTree) -> str | None:
    return {p.uuid: p.root_uuid for p in (*tree.providers, *tree.sharing, *tree.above_sharing)}.get(uuid)


def has(provider: CandidateProvider, name: str, amount: int) -> bool:
    row = provider.inventories.get(name)
    return (
        row is not None
        and row.min_unit <= amount <= row.max_unit
        and amount % row.step_size == 0
        and row.used + amount <= (row.total - row.reserved) * row.allocation_ratio
    )


# --- All groups together --------------------------------------------------------------------------------------------


def keeps_policy(serving: Serving, request: ResourceRequest) -> bool:
    granular = [used[0][0].uuid for suffix, used in serving.items() if suffix != ""]
    if request.group_policy == "isolate" and len(set(granular)) < len(granular):
        return False
    apart = [[serving[suffix][0][0].uuid for suffix in set(suffixes)] for suffixes in request.apart]
    return all(len(set(uuids)) == len(uuids) for uuids in apart)


def keeps_subtrees(serving: Serving, tree: HostTree, request: ResourceRequest) -> bool:
    parents = {p.uuid: p.parent_uuid for p in (*tree.providers, *tree.sharing, *tree.above_sharing)}

    def stands_at_or_above(upper: str, lower: str | None) -> bool:
        while lower is not None:
            if lower == upper:
                return True
            lower = parents[lower]
        return False

    for suffixes in request.same_subtree:
        uuids = [provider.uuid for suffix in suffixes for provider, _ in serving[suffix]]
        if not any(all(stands_at_or_above(top, uuid) for uuid in uuids) for top in uuids):
            return False
    return True


def fits(serving: Serving, tree: HostTree, request: ResourceRequest) -> bool:
    rows = {p.uuid: p.inventories for p in (*tree.providers, *tree.sharing)}
    for uuid, name, amount in amounts_of(serving, request):
        row = rows[uuid][name]
        if row.used + amount > (row.total - row.reserved) * row.allocation_ratio or amount > row.max_unit:
            return False
    return True


def amounts_of(serving: Serving, request: ResourceRequest) -> Amounts:
    amounts: dict[tuple[str, str], int] = {}
    for suffix, used in serving.items():
        for provider, name in used:
            if name is not None:
                pair = (provider.uuid, name)
                amounts[pair] = amounts.get(pair, 0) + request.groups[suffix].resources[name]
    return frozenset((uuid, name, amount) for (uuid, name), amount in amounts.items())
