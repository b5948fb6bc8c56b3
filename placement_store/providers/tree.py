"""Change provider trees: rename providers, move subtrees under another parent, and delete providers.

Every change of a tree's structure locks the root's row first, so that changes of one tree are serialised; see also
:func:`placement_store.providers.create.create`.
"""

from collections.abc import Collection, Mapping

from msgspec import UNSET
from sqlalchemy import Connection, Row, select

from moorage import errors, ids
from moorage.messages import DeleteResourceProvider, UpdateResourceProvider
from placement_store.db import bulk, change_feed
from placement_store.db.retries import StaleRead, stale_if_taken
from placement_store.db.store import writes
from placement_store.providers import rows as providers
from placement_store.providers.rows import LockedRow, ProviderKey
from placement_store.schema import (
    PROVIDER_DELETED,
    allocations,
    consumers,
    hosts,
    inventories,
    provider_aggregates,
    provider_traits,
    resource_providers,
)

# --- Names and parents ----------------------------------------------------------------------------------------------


@writes(UpdateResourceProvider)
def update(connection: Connection, message: UpdateResourceProvider, *, may_leave_parent: bool = True) -> None:
    """Change the name or the parent of a provider; a field that is not given stays.

    As in Placement, generations are not bumped: they stand for a provider's inventories, traits and aggregates. Only a
    new name in the tree of a host bumps the provider's, so that the host's agent reads it before its next report.

    :param may_leave_parent: whether a provider that has a parent may get another one, or none.
    :raises ProviderNotFound: the provider or the parent does not exist.
    :raises AlreadyExists: the name belongs to another provider.
    :raises InvalidRequest: the parent is the provider itself or below it, or the provider may not leave its parent.
    :raises ProviderInUse: the provider would change trees, and a claim or a host depends on one of the two trees.
    :raises StaleRead: a concurrent transaction is changing the same trees; a new transaction may succeed.
    """
    changed: set[int] = set()
    renamed: set[int] = set()
    if message.parent_provider_uuid is not UNSET:
        changed |= _reparent(connection, message.uuid, message.parent_provider_uuid, may_leave=may_leave_parent)
    id_ = providers.lock_at(connection, message.uuid, None)
    if message.name is not None:
        renamed = rename(connection, {id_: message.name})
    read_by_agent = renamed if renamed and _host_of(connection, id_) is not None else set()
    providers.bump_generations(connection, (changed | renamed) - read_by_agent, by=0)
    providers.bump_generations(connection, read_by_agent, by=1)
    change_feed.record(connection, provider_ids=changed | renamed)


def rename(connection: Connection, names: Mapping[int, str]) -> set[int]:
    """Rename providers by id, whose rows are locked; return the ids of the providers whose name has changed.

    A name may pass from one of them to another. The caller bumps ``seq`` and writes the feed.

    :raises AlreadyExists: a name belongs to a provider that is not renamed.
    :raises StaleRead: a concurrent transaction has taken one of the names; a new transaction finds its provider.
    """
    table = resource_providers
    present = dict(bulk.pairs(table.c.id, table.c.name).rows(connection, sorted(names)))
    new = {id_: name for id_, name in names.items() if present.get(id_) != name}
    holders = {id_: name for name, id_ in bulk.pairs(table.c.name, table.c.id).rows(connection, sorted(new.values()))}
    for id_ in sorted(holders.keys() - new.keys()):
        raise errors.AlreadyExists(kind="resource provider", name=holders[id_])
    # Names are unique at each statement: a name that passes to another provider is given up first.
    given_up = {id_: ids.fresh() for id_ in holders}
    with stale_if_taken():
        for id_, name in [*sorted(given_up.items()), *sorted(new.items())]:
            connection.execute(table.update().where(table.c.id == id_).values(name=name))
    return set(new)


def _host_of(connection: Connection, id_: int) -> Row[str, str] | None:
    """Return the cell and the name of the registered host that has a provider in its tree, or None."""
    # SELECT h.cell_uuid, h.service_host FROM hosts h JOIN resource_providers r ON r.uuid = h.compute_node_uuid
    #   JOIN resource_providers p ON p.root_provider_id = r.id WHERE p.id = ...
    table, root = resource_providers, resource_providers.alias()
    query = select(hosts.c.cell_uuid, hosts.c.service_host)
    query = query.join_from(hosts, root, root.c.uuid == hosts.c.compute_node_uuid)
    query = query.join(table, table.c.root_provider_id == root.c.id).where(table.c.id == id_)
    return connection.execute(query).first()


def _reparent(connection: Connection, uuid: str, parent_uuid: str | None, *, may_leave: bool) -> set[int]:
    """Move a provider with its subtree under another parent, or to the root; return the ids of the changed rows."""
    named = {uuid} if parent_uuid is None else {uuid, parent_uuid}
    keys = providers.keys_of(connection, named)
    moved, parent = keys[uuid], None if parent_uuid is None else keys[parent_uuid]
    new_root_id = moved.id if parent is None else parent.root_id
    parent_id = None if parent is None else parent.id
    below = _subtree(connection, moved)
    to_lock = {*below, moved.root_id, new_root_id, *([] if parent is None else [parent.id])}
    locked = providers.lock(connection, to_lock)
    # Both were read without a lock: by now the provider may have another parent, or the subtree another provider.
    if providers.keys_of(connection, named) != keys or _subtree(connection, moved) != below:
        raise StaleRead
    if locked[moved.id].parent_id == parent_id:
        return set()
    if not may_leave and locked[moved.id].parent_id is not None:
        raise errors.InvalidRequest(path="$.parent_provider_uuid", reason="it has a parent, which it may not leave")
    if parent_id in below:
        raise errors.InvalidRequest(path="$.parent_provider_uuid", reason="it is the provider itself, or below it")
    table = resource_providers
    if new_root_id != moved.root_id:
        _refuse_in_use(connection, locked[moved.id], below, {moved.root_id, new_root_id})
        _refuse_placed(connection, {moved.id: uuid})
        bulk.change_in(connection, table.update().values(root_provider_id=new_root_id), table.c.id, sorted(below))
    connection.execute(table.update().where(table.c.id == moved.id).values(parent_provider_id=parent_id))
    return below if new_root_id != moved.root_id else {moved.id}


def _subtree(connection: Connection, top: ProviderKey) -> set[int]:
    """Return the ids of a provider and of all its descendants."""
    table = resource_providers.c
    query = select(table.id, table.parent_provider_id).where(table.root_provider_id == top.root_id)
    children: dict[int, list[int]] = {}
    for row in connection.execute(query):
        children.setdefault(row.parent_provider_id, []).append(row.id)
    found, pending = {top.id}, [top.id]
    while pending:
        new = children.get(pending.pop(), [])
        found.update(new)
        pending += new
    return found


def _refuse_in_use(connection: Connection, moved: LockedRow, below: Collection[int], root_ids: Collection[int]) -> None:
    """Refuse to change the tree of a provider with allocations of a claim: they must stay in the tree of their host.

    During a move, an instance also has allocations for its source, whose claim the migration has. The consumers are
    locked: a claim that keeps what its consumer has on these providers need not touch any provider that is locked here.
    """
    # SELECT a.id FROM allocations a JOIN consumers c ON c.id = a.consumer_id
    #   LEFT JOIN consumers m ON m.migration_of = c.uuid AND m.claim_id IS NOT NULL
    #  WHERE a.resource_provider_id IN (...) AND (c.root_provider_id IN (...) OR m.root_provider_id IN (...)) LIMIT 1
    #  LOCK IN SHARE MODE
    migration, affected = consumers.alias(), sorted(root_ids)
    moving = (migration.c.migration_of == consumers.c.uuid) & migration.c.claim_id.is_not(None)
    held = select(allocations.c.id).join_from(allocations, consumers, consumers.c.id == allocations.c.consumer_id)
    held = held.outerjoin(migration, moving)
    held = held.where(consumers.c.root_provider_id.in_(affected) | migration.c.root_provider_id.in_(affected)).limit(1)
    held = held.with_for_update(read=True)
    registered = select(hosts.c.id).where(hosts.c.compute_node_uuid == moved.uuid)
    if moved.parent_id is None and connection.execute(registered).first():
        raise errors.ProviderInUse(provider_uuid=moved.uuid)
    for _ in bulk.select_in(connection, held, allocations.c.resource_provider_id, sorted(below)):
        raise errors.ProviderInUse(provider_uuid=moved.uuid)


def _refuse_placed(connection: Connection, uuids: Mapping[int, str]) -> None:
    """Refuse a change of locked providers if a claim names one as its host: pools may serve that claim alone.

    A claim locks its host's row before it reads whether the host is still there.
    """
    root = consumers.c.root_provider_id
    for row in bulk.select_in(connection, select(root).limit(1), root, sorted(uuids)):
        raise errors.ProviderInUse(provider_uuid=uuids[row.root_provider_id])


# --- Deleting -------------------------------------------------------------------------------------------------------


@writes(DeleteResourceProvider)
def delete(connection: Connection, message: DeleteResourceProvider) -> None:
    """Delete a provider without children, allocations and claims, with its inventories, traits and aggregates.

    If it is in the tree of a registered host, the host's agent is asked to report the trees of its nodes again.

    :raises ProviderNotFound: no provider has that uuid.
    :raises ProviderInUse: it has allocations, or is the host of a claim.
    :raises ProviderHasChildren: it has children.
    """
    id_ = providers.lock_at(connection, message.uuid, None)
    host = _host_of(connection, id_)
    remove(connection, {id_: message.uuid})
    if host is not None:
        # Otherwise the host would have no inventory until its agent is restarted. The cell gets the names of hosts
        # without a described node with the answer to its next heartbeat.
        nodes = (hosts.c.cell_uuid == host.cell_uuid, hosts.c.service_host == host.service_host)
        connection.execute(hosts.update().where(*nodes).values(description_number=PROVIDER_DELETED))
    change_feed.record(connection, provider_ids=[id_])


def remove(connection: Connection, uuids: Mapping[int, str]) -> None:
    """Delete providers, whose rows are locked, with their inventories, traits and aggregates.

    The caller writes the feed.

    :raises ProviderInUse: one of them has allocations, or is the host of a claim.
    :raises ProviderHasChildren: one of them has a child that is not among them.
    """
    numbers = sorted(uuids)
    query = select(resource_providers.c.id, resource_providers.c.parent_provider_id)
    for row in bulk.select_in(connection, query, resource_providers.c.parent_provider_id, numbers):
        if row.id not in uuids:
            raise errors.ProviderHasChildren(provider_uuid=uuids[row.parent_provider_id])
    holder = allocations.c.resource_provider_id
    for row in bulk.select_in(connection, select(holder).limit(1), holder, numbers):
        raise errors.ProviderInUse(provider_uuid=uuids[row.resource_provider_id])
    _refuse_placed(connection, uuids)
    for table in (inventories, provider_traits, provider_aggregates):
        bulk.change_in(connection, table.delete(), table.c.resource_provider_id, numbers)
    # InnoDB deletes no row to which another row refers, or that refers to itself, as a root does.
    unbound = resource_providers.update().values(root_provider_id=None, parent_provider_id=None)
    for statement in (unbound, resource_providers.delete()):
        bulk.change_in(connection, statement, resource_providers.c.id, numbers)
