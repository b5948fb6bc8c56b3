"""Create resource providers: roots, and children of existing providers or of other new ones."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from moorage import errors
from moorage.messages import CreateResourceProvider
from placement_store.db import bulk, change_feed
from placement_store.db.retries import StaleRead, stale_if_taken
from placement_store.db.store import writes
from placement_store.providers import disabled_hosts, host_aggregate_links
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey
from placement_store.schema import resource_providers


@dataclass(frozen=True, slots=True)
class NewProvider:
    """Describe a provider to be created; without a parent it is a root."""

    uuid: str
    name: str
    parent_uuid: str | None = None


@writes(CreateResourceProvider)
def create_one(connection: Connection, message: CreateResourceProvider) -> None:
    """Create one provider, and record it in the feed; see :func:`create`, also for the errors raised."""
    if message.parent_provider_uuid == message.uuid:
        raise errors.InvalidRequest(path="$.parent_provider_uuid", reason="it is the provider itself")
    created = create(connection, [NewProvider(message.uuid, message.name, message.parent_provider_uuid)])
    change_feed.record(connection, provider_ids=created.values())


def create(connection: Connection, new: Sequence[NewProvider]) -> dict[str, int]:
    """Create providers without inventory at generation 0; return their ids by uuid.

    A provider that is the compute node of an existing host joins the host's aggregates, and gets the trait of disabled
    hosts if the host is disabled. A parent that exists is locked together with its root, so that neither is deleted or
    changes its tree meanwhile. The caller writes the feed.

    :raises AlreadyExists: a uuid or a name is taken.
    :raises ProviderNotFound: a parent neither exists nor is among them.
    :raises InvalidRequest: some of them are their own ancestors.
    :raises StaleRead: a concurrent transaction creates one of them, or changes the tree of a parent; a new transaction
        may succeed.
    """
    places = _lock_parents(connection, {one.parent_uuid for one in new if one.parent_uuid} - {one.uuid for one in new})
    _refuse_taken(connection, new)
    pending = list(new)
    while pending:
        level = [one for one in pending if one.parent_uuid is None or one.parent_uuid in places]
        if not level:
            path = f"$.providers[{new.index(pending[0])}].parent_provider_uuid"
            raise errors.InvalidRequest(path=path, reason="a provider would be its own ancestor")
        places |= _insert(connection, level, places)
        pending = [one for one in pending if one.uuid not in places]
    created = {one.uuid: places[one.uuid].id for one in new}
    if host_aggregate_links.add_created(connection, created):
        disabled_hosts.add_created(connection, created)
    return created


def _refuse_taken(connection: Connection, new: Sequence[NewProvider]) -> None:
    uuids, names = [one.uuid for one in new], [one.name for one in new]
    query = select(resource_providers.c.uuid, resource_providers.c.name)
    for row in bulk.select_in(connection, query, resource_providers.c.uuid, uuids):
        raise errors.AlreadyExists(kind="resource provider", name=row.uuid)
    for row in bulk.select_in(connection, query, resource_providers.c.name, names):
        raise errors.AlreadyExists(kind="resource provider", name=row.name)


def _lock_parents(connection: Connection, uuids: Collection[str]) -> dict[str, ProviderKey]:
    keys = providers.keys_of(connection, uuids)
    locked = providers.lock(connection, {id_ for key in keys.values() for id_ in key})
    if any(locked[key.id].root_id != key.root_id for key in keys.values()):
        raise StaleRead
    return keys


def _insert(
    connection: Connection, new: Sequence[NewProvider], parents: Mapping[str, ProviderKey]
) -> dict[str, ProviderKey]:
    """Insert providers whose parents exist; return their keys by uuid."""
    above = {one.uuid: parents[one.parent_uuid] for one in new if one.parent_uuid is not None}
    rows_ = [
        {
            "uuid": one.uuid,
            "name": one.name,
            "generation": 0,
            "seq": 0,
            "parent_provider_id": above[one.uuid].id if one.uuid in above else None,
            "root_provider_id": above[one.uuid].root_id if one.uuid in above else None,
        }
        for one in new
    ]
    with stale_if_taken():
        bulk.insert(connection, resource_providers, rows_, stamps=["created_at", "updated_at"])
    ids = {uuid: key.id for uuid, key in providers.keys_found(connection, [one.uuid for one in new]).items()}
    table = resource_providers
    roots = sorted(id_ for uuid, id_ in ids.items() if uuid not in above)
    # A root is its own root.
    bulk.change_in(connection, table.update().values(root_provider_id=table.c.id), table.c.id, roots)
    return {uuid: ProviderKey(id_, above[uuid].root_id if uuid in above else id_) for uuid, id_ in ids.items()}
