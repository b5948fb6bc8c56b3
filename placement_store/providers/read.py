"""Read resource providers as the API returns them: one, all that match conditions, or whole trees."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, select

from moorage.messages import GetResourceProvider, ListProviderTrees, ListResourceProviders
from moorage.model import ResourceProvider
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import reads
from placement_store.providers import aggregates, matching, traits
from placement_store.providers import rows as providers
from placement_store.schema import resource_providers


@reads(GetResourceProvider)
def get(connection: Connection, message: GetResourceProvider, names: ResourceClassNames) -> ResourceProvider:
    """Return one provider with its inventories and their usage, traits and aggregates.

    :raises ProviderNotFound: there is none of that uuid.
    """
    found = _values(connection, select(resource_providers).where(resource_providers.c.uuid == message.uuid), names)
    if not found:
        raise providers.provider_not_found(message.uuid)
    return found[0]


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
    query = select(resource_providers).order_by(table.name if message.limit is None else table.uuid)
    if message.name is not None:
        query = query.where(table.name == message.name)
    if message.uuid is not None:
        query = query.where(table.uuid == message.uuid)
    if message.matching is not None:
        query = query.where(*matching.conditions(connection, message.matching))
    if message.after is not None:
        query = query.where(table.uuid > message.after)
    return _values(connection, query.limit(message.limit), names)


@reads(ListProviderTrees)
def list_trees(connection: Connection, message: ListProviderTrees, names: ResourceClassNames) -> list[ResourceProvider]:
    """Return all providers of the trees that these belong to, each after its parent, siblings by name."""
    table = resource_providers.c
    named = bulk.select_in(connection, select(table.root_provider_id), table.uuid, sorted(message.uuids))
    roots = {row.root_provider_id for row in named}
    query = select(resource_providers).where(table.root_provider_id.in_(sorted(roots))).order_by(table.name)
    return list(_parents_first(_values(connection, query, names)))


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


def _values(connection: Connection, query: Select[Any], names: ResourceClassNames) -> list[ResourceProvider]:
    # First the providers, then their inventories: if these are newer than the generation, a write that names the
    # generation is refused, and the caller reads again. In the reverse order a stale read would pass.
    found = connection.execute(query).all()
    ids = [row.id for row in found]
    inventories = providers.inventories_of(connection, ids)
    held_traits, held_aggregates = traits.of(connection, ids), aggregates.of(connection, ids)
    relatives = {id_ for row in found for id_ in (row.root_provider_id, row.parent_provider_id) if id_}
    uuids = providers.uuids_of(connection, relatives)
    shown = []
    for row in found:
        held = {names.name_of(number, connection): held for number, held in inventories.get(row.id, {}).items()}
        shown.append(
            ResourceProvider(
                uuid=row.uuid,
                name=row.name,
                generation=row.generation,
                root_provider_uuid=uuids[row.root_provider_id],
                parent_provider_uuid=uuids.get(row.parent_provider_id),
                inventories={name: held[name].described for name in sorted(held)},
                used={name: held[name].used for name in sorted(held)},
                traits=tuple(held_traits.get(row.id, ())),
                aggregates=tuple(held_aggregates.get(row.id, ())),
            )
        )
    return shown
