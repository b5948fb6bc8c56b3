"""Read usages: the allocations of one provider by consumer, and the sums of a project by consumer type."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, func, null, select, true, union_all

from moorage import errors
from moorage.messages import ListProviderAllocations, ListUsages
from moorage.model import ConsumerHold, ProviderAllocations, Usage
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import reads
from placement_store.schema import UNKNOWN_TYPE, allocations, consumers, resource_providers


@reads(ListProviderAllocations)
def of_provider(
    connection: Connection, message: ListProviderAllocations, names: ResourceClassNames
) -> ProviderAllocations:
    """Return the consumers with allocations of one provider, with the amounts; or one page of them by uuid.

    :raises ProviderNotFound: no provider has that uuid.
    """
    # One statement, so that one snapshot is read. The page of consumers is selected first: each has a row per class.
    # Joined with the allocations, it would need DISTINCT: for each page of a pool all its consumers would be read.
    #
    # SELECT ... FROM resource_providers p
    #   LEFT JOIN (SELECT id, uuid, generation FROM consumers
    #               WHERE id IN (SELECT consumer_id FROM allocations WHERE resource_provider_id = ...)
    #                 AND uuid > :after ORDER BY uuid LIMIT :limit) c ON TRUE
    #   LEFT JOIN allocations a ON a.consumer_id = c.id AND a.resource_provider_id = p.id
    #  WHERE p.uuid = :uuid
    provider, held = resource_providers.c, allocations.c
    this = select(provider.id).where(provider.uuid == message.uuid).scalar_subquery()
    holders = select(held.consumer_id).where(held.resource_provider_id == this)
    chosen = select(consumers.c.id, consumers.c.uuid, consumers.c.generation).where(consumers.c.id.in_(holders))
    if message.limit is None:
        chosen = chosen.distinct()  # otherwise MariaDB merges the two queries, and reads all consumers
    part = bulk.page(chosen, consumers.c.uuid, message.after, message.limit).subquery()
    source = resource_providers.outerjoin(part, true()).outerjoin(
        allocations, and_(held.consumer_id == part.c.id, held.resource_provider_id == provider.id)
    )
    query = select(provider.generation, part.c.uuid, part.c.generation, held.resource_class_id, held.used)
    rows = connection.execute(query.select_from(source).where(provider.uuid == message.uuid)).all()
    if not rows:
        raise errors.ProviderNotFound(name=message.uuid)
    resources: dict[str, dict[str, int]] = {}
    generations: dict[str, int] = {}
    for _, consumer_uuid, consumer_generation, class_id, amount in rows:
        if consumer_uuid is not None:
            resources.setdefault(consumer_uuid, {})[names.name_of(class_id, connection)] = amount
            generations[consumer_uuid] = consumer_generation
    return ProviderAllocations(
        generation=rows[0][0],
        allocations={
            consumer_uuid: ConsumerHold(resources=amounts, consumer_generation=generations[consumer_uuid])
            for consumer_uuid, amounts in sorted(resources.items())
        },
    )


@reads(ListUsages)
def of_project(connection: Connection, message: ListUsages, names: ResourceClassNames) -> list[Usage]:
    """Return the sums of a project's allocations by consumer type; consumers without allocations do not count."""
    kind = func.coalesce(consumers.c.consumer_type, UNKNOWN_TYPE)
    found = _summed(connection, kind, message.project_id, message.user_id, names)
    return [
        Usage(consumer_type=type_, **sums._asdict())
        for type_, sums in sorted(found.items())
        if message.consumer_type in (None, type_)
    ]


class Sums(NamedTuple):
    """Hold sums of allocations by resource class, and the number of consumers that have any."""

    consumer_count: int
    resources: dict[str, int]


def of_stored_types(
    connection: Connection, project_id: str, user_id: str | None, names: ResourceClassNames
) -> dict[str | None, Sums]:
    """Return the sums of the allocations of a project, or of one user of it, by stored consumer type.

    Null is the type of consumers that were written before types existed; :func:`of_project` has a name for it.
    """
    return _summed(connection, consumers.c.consumer_type, project_id, user_id, names)


def _summed(
    connection: Connection, kind: ColumnElement[Any], project_id: str, user_id: str | None, names: ResourceClassNames
) -> dict[Any, Sums]:
    # One statement, so that one snapshot is read: the sum of each class; for class null, the number of consumers.
    holder, held = consumers.c, allocations.c
    source = consumers.join(allocations, held.consumer_id == holder.id)
    sums = select(kind, held.resource_class_id, func.sum(held.used)).group_by(kind, held.resource_class_id)
    counts = select(kind, null(), func.count(holder.id.distinct())).group_by(kind)
    owned = [holder.project_id == project_id, *([] if user_id is None else [holder.user_id == user_id])]
    found: dict[Any, dict[int | None, int]] = {}
    for type_, class_id, amount in connection.execute(
        union_all(*(query.select_from(source).where(*owned) for query in (sums, counts)))
    ):
        found.setdefault(type_, {})[class_id] = int(amount)
    return {type_: _sums(connection, amounts, names) for type_, amounts in found.items()}


def _sums(connection: Connection, amounts: Mapping[int | None, int], names: ResourceClassNames) -> Sums:
    resources = {names.name_of(number, connection): n for number, n in amounts.items() if number is not None}
    return Sums(amounts[None], dict(sorted(resources.items())))
