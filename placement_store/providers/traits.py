"""Read and replace the traits of providers."""

from collections.abc import Collection, Mapping

from sqlalchemy import Connection

from moorage.messages import SetTraits
from placement_store.db import change_feed
from placement_store.db.names import TraitNames
from placement_store.db.store import writes
from placement_store.providers import links
from placement_store.providers import rows as providers
from placement_store.schema import provider_traits, traits

_LINK, _NAME = provider_traits.c.trait_id, traits.c.name


def of(connection: Connection, ids: Collection[int]) -> dict[int, frozenset[str]]:
    """Return the traits of these providers by provider id; equal sets are one object."""
    return links.names_by_id(connection, _LINK, _NAME, ids)


def replace(connection: Connection, wanted: Mapping[int, Collection[str]]) -> None:
    """Replace the traits of providers by these, by provider id; the providers' rows must be locked.

    The caller bumps generations and writes the feed.

    :raises TraitNotFound: one of them does not exist.
    """
    before = links.held(connection, _LINK, _NAME, wanted)
    numbers = {name: number for found in before.values() for number, name in found.items()}
    # A trait that a provider has cannot be deleted; the others are locked against deletion.
    new = {name for names in wanted.values() for name in names} - numbers.keys()
    numbers |= TraitNames.require(connection, new, lock=True)
    links.rewrite(connection, _LINK, before, {id_: {numbers[name] for name in names} for id_, names in wanted.items()})


@writes(SetTraits)
def set_traits(connection: Connection, message: SetTraits) -> None:
    """Replace all traits of a provider; its generation is bumped if anything changes.

    :raises ProviderNotFound: the provider does not exist.
    :raises ProviderGenerationConflict: it is at another generation than the one named.
    :raises TraitNotFound: a trait does not exist.
    """
    id_ = providers.lock_at(connection, message.uuid, message.generation)
    if set(of(connection, [id_]).get(id_, ())) != set(message.traits):
        replace(connection, {id_: message.traits})
        providers.bump_generations(connection, [id_], by=1)
        change_feed.record(connection, provider_ids=[id_])
