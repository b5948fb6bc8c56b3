"""Read providers in outline, without inventories, traits and aggregates, and by conditions on a single provider."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, exists, func, select

from moorage import errors
from moorage.model import ResourceGroup
from placement_store.db.names import ResourceClassNames, TraitNames
from placement_store.schema import aggregates, inventories, provider_aggregates, provider_traits, resource_providers


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
# One statement, so that one snapshot is read.
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

    :raises ProviderNotFound: no provider has that uuid.
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

    :param group: conditions on each single provider: free capacity, traits, aggregates and the tree.
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
        found = found.where(*_conditions(connection, group))
    return found


def fetch(connection: Connection, query: Select[Any]) -> Sequence[Outline]:
    """Return the providers of a query that :func:`query` has built."""
    return [Outline(*row) for row in connection.execute(query)]


# --- Conditions on a single provider ----------------------------------------------------------------------------------


def _conditions(connection: Connection, group: ResourceGroup) -> list[ColumnElement[bool]]:
    """Return the conditions on a row of `resource_providers`: free capacity, traits, aggregates and the tree.

    No provider is a member of an aggregate or a tree that does not exist. See :func:`query` for the errors.
    """
    _refuse_contradictions(group)
    return [
        *_room(connection, group),
        *_traits(connection, group),
        *(_is_member(any_of) for any_of in group.member_of),
        *([~_is_member(group.not_member_of)] if group.not_member_of else []),
        *([_in_tree(group.in_tree)] if group.in_tree is not None else []),
    ]


def _refuse_contradictions(group: ResourceGroup) -> None:
    """Refuse a group that no provider can satisfy, as Placement does."""
    forbidden = set(group.forbidden)
    for name in sorted(forbidden.intersection(group.required)):
        raise errors.InvalidRequest(path="$.matching.forbidden", reason=f"{name} is required as well")
    for position, any_of in enumerate(group.any_of):
        if forbidden.issuperset(any_of):
            raise errors.InvalidRequest(path=f"$.matching.any_of[{position}]", reason="each of these is forbidden")


def _room(connection: Connection, group: ResourceGroup) -> Iterator[ColumnElement[bool]]:
    """Yield the condition that each amount fits, as claims check it (:mod:`~placement_store.allocations.capacity`)."""
    if not group.resources:
        return
    table = inventories.c
    numbers = ResourceClassNames.require(connection, group.resources)
    # One condition for all classes: SQLite refuses a thousand conditions that are joined with AND.
    amounts = {numbers[name]: amount for name, amount in group.resources.items()}
    amount = case(amounts, value=table.resource_class_id)
    fitting = select(func.count()).where(
        table.resource_provider_id == resource_providers.c.id,
        table.resource_class_id.in_(amounts),
        table.used + amount <= (table.total - table.reserved) * table.allocation_ratio,
        table.min_unit <= amount,
        table.max_unit >= amount,
        amount % table.step_size == 0,
    )
    yield fitting.scalar_subquery() == len(amounts)


def _traits(connection: Connection, group: ResourceGroup) -> Iterator[ColumnElement[bool]]:
    named = {*group.required, *group.forbidden, *(name for any_of in group.any_of for name in any_of)}
    numbers = TraitNames.require(connection, named)
    for name in group.required:
        yield _has_trait([numbers[name]])
    for any_of in group.any_of:
        yield _has_trait([numbers[name] for name in any_of])
    if group.forbidden:
        yield ~_has_trait([numbers[name] for name in group.forbidden])


def _has_trait(any_of: Collection[int]) -> ColumnElement[bool]:
    table = provider_traits.c
    return exists().where(table.resource_provider_id == resource_providers.c.id, table.trait_id.in_(sorted(any_of)))


def _is_member(any_of: Collection[str]) -> ColumnElement[bool]:
    table = provider_aggregates.c
    numbers = select(aggregates.c.id).where(aggregates.c.uuid.in_(sorted(any_of)))
    return exists().where(table.resource_provider_id == resource_providers.c.id, table.aggregate_id.in_(numbers))


def _in_tree(uuid: str) -> ColumnElement[bool]:
    named = resource_providers.alias()
    root = select(named.c.root_provider_id).where(named.c.uuid == uuid).scalar_subquery()
    return resource_providers.c.root_provider_id == root
