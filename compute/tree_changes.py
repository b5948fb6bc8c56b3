"""Differences between a host's provider tree and the store's, as a report or as a reshape."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import convert

from compute.provider_tree import DriverProvider, ProviderTree
from moorage.model import ChildProvider, HostReport, InventoryFields, MoveInstruction, ProviderReport, Reallocation


@dataclass(frozen=True, slots=True)
class TreeChange:
    """The difference between a host's tree, as its driver describes it, and the store's."""

    host: HostReport
    #: The tree as the driver describes it.
    tree: ProviderTree
    #: The new and changed providers, parents before their children.
    reports: tuple[ProviderReport, ...]
    #: The uuids of removed providers, children before their parents.
    gone: tuple[str, ...]
    #: The moves that the driver wants first; empty without a reshape.
    instructions: tuple[MoveInstruction, ...] = ()
    #: The new allocations of some consumers, as the driver distributes them.
    dealt: tuple[Reallocation, ...] = ()
    #: The new providers as a reshape creates them: with only the inventories that are moved there.
    children: tuple[ChildProvider, ...] = ()

    def __len__(self) -> int:
        """Return the number of providers that differ."""
        return len(self.reports) + len(self.gone)


def compare(
    host: HostReport,
    before: ProviderTree,
    after: ProviderTree,
    instructions: tuple[MoveInstruction, ...] = (),
    dealt: tuple[Reallocation, ...] = (),
) -> TreeChange:
    """Return the change of a host's tree from ``before`` to ``after``."""
    known = {provider.uuid: provider for provider in before}
    kept = {provider.uuid for provider in after}
    pairs = ((known.get(provider.uuid), provider) for provider in after)
    reports = tuple(_report(old, provider) for old, provider in pairs if _differs(old, provider))
    return TreeChange(
        host,
        after,
        reports=reports,
        gone=tuple(uuid for uuid in reversed(known) if uuid not in kept),
        instructions=instructions,
        dealt=dealt,
        children=_children(reports, instructions),
    )


def moves(before: ProviderTree, after: ProviderTree) -> tuple[MoveInstruction, ...]:
    """Return the moves of inventories to other providers of the tree; empty if none moves.

    A resource class is moved only if it leaves a provider completely. It goes to the providers that have more of it
    than before, in the order of the tree. Inventories that only grow, shrink or vanish are left to a report.
    """
    amounts: dict[tuple[str, str], dict[str, int]] = {}
    # The resource classes that leave some provider, in the order of the tree.
    leaving = [name for provider in before for name in provider.inventories if _leaves(provider, name, after)]
    for name in dict.fromkeys(leaving):
        arriving = _growth(before, after, name)
        for provider in before:
            left = provider.inventories[name].total if _leaves(provider, name, after) else 0
            for place in arriving:
                moved = min(left, arriving[place])
                if moved:
                    amounts.setdefault((provider.uuid, place), {})[name] = moved
                left -= moved
                arriving[place] -= moved
    return tuple(
        MoveInstruction(from_resource_provider=source, moved_resources=resources, to_resource_provider=destination)
        for (source, destination), resources in amounts.items()
    )


def _leaves(provider: DriverProvider, resource_class: str, after: ProviderTree) -> bool:
    return resource_class in provider.inventories and not _total(after, provider.uuid, resource_class)


def _growth(before: ProviderTree, after: ProviderTree, resource_class: str) -> dict[str, int]:
    growth = {
        provider.uuid: _total(after, provider.uuid, resource_class) - _total(before, provider.uuid, resource_class)
        for provider in after
    }
    return {uuid: amount for uuid, amount in growth.items() if amount > 0}


def _total(tree: ProviderTree, uuid: str, resource_class: str) -> int:
    provider = tree.find(uuid)
    inventory = provider.inventories.get(resource_class) if provider else None
    return inventory.total if inventory else 0


def _differs(known: DriverProvider | None, provider: DriverProvider) -> bool:
    if known is None or known is provider:
        return known is None
    # A driver that removes a provider and adds it again, even at every report, has changed nothing.
    return replace(provider, generation=known.generation) != known


def _report(known: DriverProvider | None, provider: DriverProvider) -> ProviderReport:
    """Return the report of a provider. It omits traits or aggregates that the driver has not changed, so they stay."""
    same_traits = provider.traits == (known.traits if known else frozenset())
    same_aggregates = provider.aggregates == (known.aggregates if known else frozenset())
    return ProviderReport(
        uuid=provider.uuid,
        name=provider.name,
        inventories=dict(provider.inventories),
        parent_provider_uuid=provider.parent_uuid,
        traits=None if same_traits else tuple(sorted(provider.traits)),
        aggregates=None if same_aggregates else tuple(sorted(provider.aggregates)),
        generation=known.generation if known else None,
    )


def _children(reports: Sequence[ProviderReport], instructions: Sequence[MoveInstruction]) -> tuple[ChildProvider, ...]:
    arriving = {(move.to_resource_provider, name) for move in instructions for name in move.moved_resources}
    return tuple(
        _child(report, [name for name in report.inventories if (report.uuid, name) in arriving])
        for report in reports
        if instructions and report.generation is None and report.parent_provider_uuid is not None
    )


def _child(report: ProviderReport, arriving: Sequence[str]) -> ChildProvider:
    return ChildProvider(
        name=report.name,
        parent=str(report.parent_provider_uuid),
        uuid=report.uuid,
        inventories={
            name: convert(report.inventories[name], InventoryFields, from_attributes=True) for name in arriving
        },
        traits=report.traits or (),
        aggregates=report.aggregates or (),
    )
