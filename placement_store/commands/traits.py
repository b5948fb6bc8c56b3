"""The sub-commands `moorage resource provider trait ...` and `moorage trait ...`."""

import argparse
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne

from moorage import errors, ids
from moorage.cli.arguments import argument, one_of
from moorage.cli.command import Record, Table, shown
from moorage.messages import DeleteTrait, EnsureTrait, ListTraits, SetTraits
from placement_store.commands import argument_types
from placement_store.commands.placement_command import GENERATION, PlacementCommand, ProviderCommand, find

_STARTING_WITH, _ANY_OF = "startswith:", "in:"


def _filter(text: str) -> dict[str, Any]:
    """Parse a filter of traits to fields of the message."""
    if text.startswith(_STARTING_WITH):
        return {"starting_with": argument_types.trait(text.removeprefix(_STARTING_WITH))}
    return {"names": tuple(argument_types.trait(name) for name in text.removeprefix(_ANY_OF).split(","))}


def _rows(traits: list[str] | tuple[str, ...]) -> Table:
    return ("name",), [(trait,) for trait in traits]


class ProviderTraitList(ProviderCommand, Lister):
    """List the traits of a resource provider."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per trait."""
        return _rows(find(self.placement, parsed_args.provider).traits)


class ProviderTraitSet(ProviderCommand, Lister):
    """Replace all traits of a resource provider by the given ones; without any, remove all."""

    arguments = (
        argument("--trait", type=argument_types.trait, repeated=True, metavar="TRAIT", help="Trait to set"),
        GENERATION,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Set the traits and show them."""
        message = SetTraits(
            request_id=ids.fresh(),
            uuid=self.uuid_of(parsed_args.provider),
            traits=tuple(sorted(set(parsed_args.trait))),
            generation=parsed_args.generation,
        )
        return _rows(self.change(message).traits)


class ProviderTraitDelete(ProviderCommand):
    """Remove all traits from a resource provider."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Remove the traits."""
        self.change(SetTraits(request_id=ids.fresh(), uuid=self.uuid_of(parsed_args.provider), traits=()))


class TraitList(PlacementCommand, Lister):
    """List all traits, standard and custom, by name."""

    only_reads = True
    arguments = (
        argument(
            "--name",
            type=_filter,
            default={},
            metavar="FILTER",
            help=f"List only matching traits: {_STARTING_WITH}PREFIX, {_ANY_OF}TRAIT[,TRAIT...], or a name",
        ),
        one_of(
            argument(
                "--associated", action="store_const", const=True, help="List only traits that at least one provider has"
            ),
            argument(
                "--not-associated",
                action="store_const",
                const=False,
                dest="associated",
                help="List only traits that no provider has",
            ),
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per trait."""
        return _rows(self.placement.call(ListTraits(**parsed_args.name, associated=parsed_args.associated)))


class _TraitCommand(PlacementCommand):
    arguments = (argument("name", type=argument_types.trait, help="Trait (name)"),)


class TraitShow(_TraitCommand, ShowOne):
    """Show a trait if it exists."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Show the trait.

        :raises TraitNotFound: no trait has that name.
        """
        if not self.placement.call(ListTraits(names=(parsed_args.name,))):
            raise errors.TraitNotFound(name=parsed_args.name)
        return ("name",), shown((parsed_args.name,))


class TraitCreate(_TraitCommand):
    """Create a custom trait, named CUSTOM_..., if it does not exist."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Create the trait."""
        self.change(EnsureTrait(request_id=ids.fresh(), name=parsed_args.name))


class TraitDelete(_TraitCommand):
    """Delete a custom trait; no provider may have it."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the trait."""
        self.change(DeleteTrait(request_id=ids.fresh(), name=parsed_args.name))
