"""Read resource providers as the API returns them: one, all that match conditions, or whole trees."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, select

from moorage.messages import GetResourceProvider, ListProviderTrees, ListResourceProviders
from moorage.model import ResourceProvider
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import reads
from placement_store.providers import aggregates, outlines, traits
from placement_store.providers import rows as providers
from placement_store.providers.outlines import Outline
from placement_store.schema import resource_providers


@reads(GetResourceProvider)
def get(connection: Connection, message: GetResourceProvider, names: ResourceClassNames) -> ResourceProvider:
    """Return one provider with its inventories and their usage, traits and aggregates.

    :raises ProviderNotFound: no provider has that uuid.
    """
    return _filled(connection, [outlines.get(connection, message.uuid)], names)[0]


@reads(ListResourceProviders)
def list_providers(
    connection: Connection, message: ListResourceProviders, names: ResourceClassNames
) -> list[ResourceProvider]:
    """Return the providers that match all conditions, ordered by name, or one page of them, ordered by uuid.

    :raises ResourceClassNotFound: a resource class that is named does not exist.
    :raises TraitNotFound: a trait that is named does not exist.
    :raises InvalidRequest: a trait is both required and forbidden.
    """
    table = resource_providers.c
    query = outlines.query(connection, name=message.name, uuid=message.uuid, group=message.matching)
    query = bulk.page(query, table.uuid, message.after, message.limit)
    query = query.order_by(table.name) if message.limit is None else query
    return _filled(connection, outlines.fetch(connection, query), names)


@reads(ListProviderTrees)
def list_trees(connection: Connection, message: ListProviderTrees, names: ResourceClassNames) -> list[ResourceProvider]:
    """Return all providers of the trees that these belong to, each after its parent, siblings by name."""
    table = resource_providers.c
    named = bulk.select_in(connection, select(table.root_provider_id), table.uuid, sorted(message.uuids))
    roots = {row.root_provider_id for row in named}
    query = outlines.query(connection).where(table.root_provider_id.in_(sorted(roots))).order_by(table.name)
    return list(_parents_first(_filled(connection, outlines.fetch(connection, query), names)))


def _parents_first(found: Sequence[ResourceProvider]) -> Iterator[ResourceProvider]:
    children: dict[str | None, list[ResourceProvider]] = {}
    for provider in found:
        children.setdefault(provider.parent_provider_uuid, []).append(provider)
    # Not by recursion: the depth of a tree has no limit.
    pending = children.get(None, [])[::-1]
    while pending:
        provider = pending.pop()
        yield provider
        pending += children.get(provider.uuid, [])[::-1]


def _filled(connection: Connection, found: Sequence[Outline], names: ResourceClassNames) -> list[ResourceProvider]:
    """Return providers with their inventories, traits and aggregates."""
    # The providers are read first, then their inventories. If these are newer than the generation, a write that names
    # the generation is refused, and the caller reads again. In the reverse order, a stale read would not be detected.
    ids = [one.id for one in found]
    inventories = providers.inventories_of(connection, ids)
    held_traits, held_aggregates = traits.of(connection, ids), aggregates.of(connection, ids)
    shown = []
    for one in found:
        held = {names.name_of(number, connection): held for number, held in inventories.get(one.id, {}).items()}
        shown.append(
            ResourceProvider(
                uuid=one.uuid,
                name=one.name,
                generation=one.generation,
                root_provider_uuid=one.root_uuid,
                parent_provider_uuid=one.parent_uuid,
                inventories={name: held[name].described for name in sorted(held)},
                used={name: held[name].used for name in sorted(held)},
                traits=tuple(sorted(held_traits.get(one.id, ()))),
                aggregates=tuple(sorted(held_aggregates.get(one.id, ()))),
            )
        )
    return shown
