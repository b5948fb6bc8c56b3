"""The sub-command `moorage resource provider tree`."""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cliff.lister import Lister

from moorage import errors
from moorage.cli.arguments import argument
from moorage.cli.command import ShownLines, Table
from moorage.messages import ListProviderTrees
from moorage.model import ResourceProvider
from placement_store.commands.placement_command import PlacementCommand

_FORK, _LAST, _PASSING, _NOTHING = "├─ ", "└─ ", "│  ", "   "


class Drawn(NamedTuple):
    """A provider in the drawing: ``branch`` is printed before its name, ``stem`` before the lines below that."""

    provider: ResourceProvider
    branch: str
    stem: str


def drawn(providers: Sequence[ResourceProvider]) -> Iterator[Drawn]:
    """Yield the providers of trees in the order in which they are drawn: children below their parent, by name."""
    children: dict[str | None, list[ResourceProvider]] = defaultdict(list)
    for provider in sorted(providers, key=lambda one: one.name):
        children[provider.parent_provider_uuid].append(provider)

    # Not by recursion: the depth of a tree has no limit.
    pending = [(root, "", "") for root in reversed(children[None])]
    while pending:
        provider, branch, stem = pending.pop()
        below = children[provider.uuid]
        yield Drawn(provider, branch, stem + (_PASSING if below else _NOTHING))
        for child in reversed(below):
            is_last = child is below[-1]
            pending.append((child, stem + (_LAST if is_last else _FORK), stem + (_NOTHING if is_last else _PASSING)))


class ProviderTreeShow(PlacementCommand, Lister):
    """Show the tree of a resource provider, with traits, and inventories as `CLASS used/capacity`.

    Capacity is (total - reserved) times allocation_ratio, rounded down. Other formats than the table have plain values.
    """

    only_reads = True
    arguments = (argument("provider", help="Any provider of the tree (name or uuid)"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per provider.

        :raises ProviderNotFound: the provider does not exist.
        """
        uuid = self.uuid_of(parsed_args.provider)
        providers = self.placement.call(ListProviderTrees(uuids=(uuid,)))
        if not providers:
            raise errors.ProviderNotFound(name=parsed_args.provider)
        columns = ("name", "uuid", "generation", "parent_provider_uuid", "inventories", "traits", "aggregates")
        return columns, [_row(place) for place in drawn(providers)]


def _row(place: Drawn) -> tuple[Any, ...]:
    provider = place.provider
    use = {
        name: {"used": provider.used.get(name, 0), "capacity": int(inventory.capacity)}
        for name, inventory in sorted(provider.inventories.items())
    }
    amounts = [f"{name} {amount['used']}/{amount['capacity']}" for name, amount in use.items()]
    # The stem must be repeated beside every line of the row, or the lines of the tree would have gaps.
    height = max(len(amounts), len(provider.traits), len(provider.aggregates))
    name = [place.branch + provider.name, *[place.stem.rstrip()] * (height - 1)]
    parent = provider.parent_provider_uuid
    return (
        ShownLines(provider.name, name),
        provider.uuid,
        provider.generation,
        ShownLines(parent, [parent or ""]),
        ShownLines(use, amounts),
        ShownLines(list(provider.traits), provider.traits),
        ShownLines(list(provider.aggregates), provider.aggregates),
    )
