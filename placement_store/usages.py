"""Who holds how much: of one provider, and of a whole project."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, func, null, select, union_all

from moorage.messages import ListUsages
from moorage.model import ConsumerHold, ProviderAllocations, Usage
from placement_store import providers
from placement_store.names import ResourceClassNames
from placement_store.schema import allocations, consumers, resource_providers

#: What a consumer from before types were known is shown as (Placement's word).
_UNKNOWN_TYPE = "UNKNOWN"


def of_provider(connection: Connection, uuid: str, names: ResourceClassNames) -> ProviderAllocations:
    """Return who holds what of one provider.

    :raises ProviderNotFound: there is none of that uuid.
    """
    # One statement, which sees one moment.
    provider, held, holder = resource_providers.c, allocations.c, consumers.c
    source = resource_providers.outerjoin(allocations, held.resource_provider_id == provider.id).outerjoin(
        consumers, holder.id == held.consumer_id
    )
    query = select(provider.generation, holder.uuid, holder.generation, held.resource_class_id, held.used)
    rows = connection.execute(query.select_from(source).where(provider.uuid == uuid)).all()
    if not rows:
        raise providers.provider_not_found(uuid)
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


def of_project(connection: Connection, message: ListUsages, names: ResourceClassNames) -> list[Usage]:
    """Return what the consumers of a project hold, by consumer type; a consumer that holds nothing counts for none."""
    holder = consumers.c
    kind = func.coalesce(holder.consumer_type, _UNKNOWN_TYPE)
    asked = [holder.project_id == message.project_id]
    if message.user_id is not None:
        asked.append(holder.user_id == message.user_id)
    if message.consumer_type is not None:
        asked.append(kind == message.consumer_type)
    found = _summed(connection, kind, asked, names)
    return [Usage(consumer_type=type_, **sums._asdict()) for type_, sums in sorted(found.items())]


class Sums(NamedTuple):
    """What consumers hold together, by resource class, and how many of them hold anything."""

    consumer_count: int
    resources: dict[str, int]


def of_stored_types(
    connection: Connection, project_id: str, user_id: str | None, names: ResourceClassNames
) -> dict[str | None, Sums]:
    """Return what the consumers of a project, and of a user of it where one is named, hold, by type as it is stored.

    Null stands for those from before types were known, which :func:`of_project` calls by a name.
    """
    asked = [consumers.c.project_id == project_id]
    if user_id is not None:
        asked.append(consumers.c.user_id == user_id)
    return _summed(connection, consumers.c.consumer_type, asked, names)


def _summed(
    connection: Connection, kind: ColumnElement[Any], asked: Sequence[ColumnElement[bool]], names: ResourceClassNames
) -> dict[Any, Sums]:
    # One statement, which sees one moment: the sum of each class, and without a class how many hold anything.
    holder, held = consumers.c, allocations.c
    source = consumers.join(allocations, held.consumer_id == holder.id)
    sums = select(kind, held.resource_class_id, func.sum(held.used)).group_by(kind, held.resource_class_id)
    counts = select(kind, null(), func.count(holder.id.distinct())).group_by(kind)
    found: dict[Any, dict[int | None, int]] = {}
    for type_, class_id, amount in connection.execute(
        union_all(*(query.select_from(source).where(*asked) for query in (sums, counts)))
    ):
        found.setdefault(type_, {})[class_id] = int(amount)
    return {type_: _sums(connection, amounts, names) for type_, amounts in found.items()}


def _sums(connection: Connection, amounts: Mapping[int | None, int], names: ResourceClassNames) -> Sums:
    resources = {names.name_of(number, connection): n for number, n in amounts.items() if number is not None}
    return Sums(amounts[None], dict(sorted(resources.items())))
