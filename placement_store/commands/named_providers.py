"""Find the providers that an operator refers to by uuid or by name."""

import argparse
import uuid as uuids
from typing import TYPE_CHECKING

from msgspec.structs import replace

from moorage import errors
from moorage.messages import GetResourceProvider, ListResourceProviders
from moorage.model import ResourceGroup, ResourceProvider
from placement_store.commands.placement_command import PlacementCommand

if TYPE_CHECKING:
    from placement_store.in_process import PlacementClient


def as_uuid(named: str) -> str | None:
    """Return a uuid in its canonical form; null where the text is a name."""
    try:
        return str(uuids.UUID(named))
    except ValueError:
        return None


def find(placement: "PlacementClient", named: str) -> ResourceProvider:
    """Find a provider by its uuid or its name.

    :raises ProviderNotFound: there is none.
    """
    uuid = as_uuid(named)
    if uuid is not None:
        return placement.call(GetResourceProvider(uuid=uuid))
    for provider in placement.call(ListResourceProviders(name=named)) if named else []:
        return provider
    raise errors.ProviderNotFound(name=named)


def find_if_there(placement: "PlacementClient", named: str) -> ResourceProvider | None:
    """Find a provider by its uuid or its name; return null where there is none.

    :raises MoorageError: the call failed.
    """
    try:
        return find(placement, named)
    except errors.ProviderNotFound:
        return None


def uuid_of(placement: "PlacementClient", named: str) -> str:
    """Return the uuid of a provider; a uuid is returned without a call.

    :raises ProviderNotFound: there is none of that name.
    """
    return as_uuid(named) or find(placement, named).uuid


def in_named_tree(placement: "PlacementClient", group: ResourceGroup) -> ResourceGroup:
    """Resolve the ``in_tree`` of a group, a uuid or a name, to the uuid.

    :raises ProviderNotFound: there is no provider of that name.
    """
    return group if group.in_tree is None else replace(group, in_tree=uuid_of(placement, group.in_tree))


class ProviderCommand(PlacementCommand):
    """A command about one provider, which is its first argument."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("provider", help="the provider, by uuid or name")
        return parser
