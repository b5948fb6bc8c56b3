"""Rename a custom resource class, with all inventories and allocations of it."""

from sqlalchemy import Connection, select

from moorage import errors
from placement_store.allocations import consumers
from placement_store.db import bulk, change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.providers import rows as providers
from placement_store.schema import allocations, inventories


def rename(connection: Connection, old: str, new: str) -> None:
    """Rename a custom resource class to another custom name.

    An id stands for one name for ever (:mod:`placement_store.db.names`), so the new name gets a new id, and all
    inventories and allocations of the class change to it. The generations of providers stay: only a name has changed.
    The generations of consumers with allocations of the class are bumped, so that no concurrent transaction writes the
    old id.

    :raises ResourceClassNotFound: there is no class of the old name.
    :raises AlreadyExists: there is one of the new name.
    :raises InvalidRequest: one of the two is a standard class, or is not called ``CUSTOM_...``.
    :raises StaleRead: a concurrent write has given a provider an inventory of the class; a new transaction may succeed.
    """
    former = ResourceClassNames.require(connection, {old})[old]
    ResourceClassNames.require_custom(old)
    ResourceClassNames.require_custom(new)
    # Lock the providers first, as everywhere, then the class: from then on no write can give it to another provider.
    query = select(inventories.c.resource_provider_id).where(inventories.c.resource_class_id == former)
    having = sorted(connection.scalars(query))
    providers.bump_generations(connection, having, by=0)
    if not ResourceClassNames.create(connection, {new}):
        raise errors.AlreadyExists(kind="resource class", name=new)
    number = ResourceClassNames.require(connection, {new}, lock=True)[new]
    # All consumers with allocations of it: while its providers are locked, none can be added.
    query = select(allocations.c.consumer_id).distinct().where(allocations.c.resource_class_id == former)
    rows = bulk.select_in(connection, query, allocations.c.resource_provider_id, having)
    consumers.bump_generations_by_id(connection, {row.consumer_id for row in rows})
    for table in (inventories, allocations):
        renamed = table.update().where(table.c.resource_class_id == former).values(resource_class_id=number)
        bulk.change_in(connection, renamed, table.c.resource_provider_id, having)
    try:
        ResourceClassNames.delete(connection, old)
    except errors.NameInUse as fault:
        raise StaleRead from fault
    change_feed.record(connection, provider_ids=having)
