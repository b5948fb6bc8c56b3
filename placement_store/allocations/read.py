"""Read one consumer with its allocations, as the API returns it."""

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from moorage import errors
from moorage.messages import GetAllocations
from moorage.model import Consumer, ProviderAmounts
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import reads
from placement_store.schema import UNKNOWN_TYPE, allocations, consumers, resource_providers

_HOST, _HELD_OF = resource_providers.alias(), resource_providers.alias()
# One statement, so that one snapshot is read: a consumer with the allocations of that generation.
_SHOWN = (
    select(
        consumers,
        _HOST.c.uuid.label("root_provider_uuid"),
        _HELD_OF.c.uuid.label("provider_uuid"),
        _HELD_OF.c.generation.label("provider_generation"),
        allocations.c.resource_class_id,
        allocations.c.used,
    )
    .select_from(
        consumers.outerjoin(_HOST, _HOST.c.id == consumers.c.root_provider_id)
        .outerjoin(allocations, allocations.c.consumer_id == consumers.c.id)
        .outerjoin(_HELD_OF, _HELD_OF.c.id == allocations.c.resource_provider_id)
    )
    .where(consumers.c.uuid == bindparam("uuid"))
    .order_by(_HELD_OF.c.id, allocations.c.resource_class_id)
)


@reads(GetAllocations)
def get(connection: Connection, message: GetAllocations, names: ResourceClassNames) -> Consumer:
    """Return one consumer with its allocations, which may be empty.

    :raises ConsumerNotFound: no consumer has that uuid.
    """
    return get_stored(connection, message.consumer_uuid, names).consumer


class Stored(NamedTuple):
    """Hold a consumer with columns that the RPC API does not return."""

    consumer: Consumer
    #: Null if it was written before consumer types existed; then the type of ``consumer`` is ``UNKNOWN``.
    consumer_type: str | None
    #: In seconds since 1970.
    updated_at: float


def get_stored(connection: Connection, uuid: str, names: ResourceClassNames) -> Stored:
    """Return one consumer; see :func:`get`.

    :raises ConsumerNotFound: no consumer has that uuid.
    """
    found = connection.execute(_SHOWN, {"uuid": uuid}).all()
    if not found:
        raise errors.ConsumerNotFound(name=uuid)
    held: dict[str, dict[str, int]] = {}
    generations: dict[str, int] = {}
    for row in found:
        if row.provider_uuid is not None:
            held.setdefault(row.provider_uuid, {})[names.name_of(row.resource_class_id, connection)] = row.used
            generations[row.provider_uuid] = row.provider_generation
    row = found[0]
    consumer = Consumer(
        uuid=uuid,
        consumer_type=row.consumer_type or UNKNOWN_TYPE,
        project_id=row.project_id,
        user_id=row.user_id,
        generation=row.generation,
        allocations={
            provider_uuid: ProviderAmounts(resources=resources, generation=generations[provider_uuid])
            for provider_uuid, resources in held.items()
        },
        claim_id=row.claim_id,
        accepted_by=row.accepted_by,
        root_provider_uuid=row.root_provider_uuid,
        owner=row.owner,
    )
    return Stored(consumer, row.consumer_type, row.updated_at)
