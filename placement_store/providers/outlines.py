"""Read providers in outline: uuid, name, generation and place in the tree, without inventories, traits, aggregates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, select

from moorage import errors
from moorage.model import ResourceGroup
from placement_store.providers import matching
from placement_store.schema import resource_providers


@dataclass(frozen=True, slots=True)
class Outline:
    """Hold a provider's own row; ``updated_at`` is the time of its last change, inventories included (Unix time)."""

    id: int
    uuid: str
    name: str
    generation: int
    updated_at: float
    root_uuid: str
    parent_uuid: str | None


_ROOT, _PARENT = resource_providers.alias("root"), resource_providers.alias("parent")
# One statement, which sees one moment.
_OUTLINES = select(
    resource_providers.c.id,
    resource_providers.c.uuid,
    resource_providers.c.name,
    resource_providers.c.generation,
    resource_providers.c.updated_at,
    _ROOT.c.uuid.label("root_uuid"),
    _PARENT.c.uuid.label("parent_uuid"),
).select_from(
    resource_providers.join(_ROOT, _ROOT.c.id == resource_providers.c.root_provider_id).outerjoin(
        _PARENT, _PARENT.c.id == resource_providers.c.parent_provider_id
    )
)


def get(connection: Connection, uuid: str) -> Outline:
    """Return one provider.

    :raises ProviderNotFound: there is none of that uuid.
    """
    for found in fetch(connection, query(connection, uuid=uuid)):
        return found
    raise errors.ProviderNotFound(name=uuid)


def listed(
    connection: Connection, *, name: str | None = None, uuid: str | None = None, group: ResourceGroup | None = None
) -> Sequence[Outline]:
    """Return the providers that :func:`query` finds, in the order of their creation; it raises the same errors."""
    found = query(connection, name=name, uuid=uuid, group=group)
    return fetch(connection, found.order_by(resource_providers.c.id))


def query(
    connection: Connection, *, name: str | None = None, uuid: str | None = None, group: ResourceGroup | None = None
) -> Select[Any]:
    """Return the query for the providers that match all given conditions, for :func:`fetch`.

    :param group: conditions on each single provider; see :func:`placement_store.providers.matching.conditions`.
    :raises ResourceClassNotFound: a resource class that is named does not exist.
    :raises TraitNotFound: a trait that is named does not exist.
    :raises InvalidRequest: a trait is both required and forbidden.
    """
    found = _OUTLINES
    if name is not None:
        found = found.where(resource_providers.c.name == name)
    if uuid is not None:
        found = found.where(resource_providers.c.uuid == uuid)
    if group is not None:
        found = found.where(*matching.conditions(connection, group))
    return found


def fetch(connection: Connection, query: Select[Any]) -> Sequence[Outline]:
    """Return the providers of a query that :func:`query` has made."""
    return [Outline(*row) for row in connection.execute(query)]
