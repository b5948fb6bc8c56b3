"""Delete a host that will not come back: its rows, its providers, its aggregate memberships, and its residues.

A residue holds resources for a guest that may still run. The operator who deletes the host asserts that it does not.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, or_, select

from moorage import errors
from moorage.messages import DeleteHost
from placement_store.allocations import consumers
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import residues
from placement_store.db import bulk, change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.providers import rows as providers
from placement_store.providers import tree as trees
from placement_store.schema import allocations as allocation_table
from placement_store.schema import consumers as consumer_table
from placement_store.schema import hosts as host_table
from scheduler.registry import hosts
from scheduler.registry.aggregates import rows as host_aggregates

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostDeletion:
    """The rows to be deleted with a host."""

    #: One for each node.
    host_ids: tuple[int, ...]
    cell_uuid: str
    #: All providers of the nodes' trees, by id.
    providers: Mapping[int, str]
    residues: tuple[str, ...]


def plan(connection: Connection, message: DeleteHost) -> HostDeletion:
    """Return the rows that a deletion of a host would delete; nothing is locked or changed.

    :raises HostNotFound: no host has the name, or none in that cell.
    :raises InvalidRequest: hosts of several cells have the name, and no cell is given.
    :raises InvalidState: the host may be up, or a consumer other than a residue has allocations or is placed there.
    """
    states = hosts.by_name(connection, message.service_host, message.cell_uuid)
    for host in states:
        if host.up and not host.forced_down:
            raise errors.InvalidState(
                reason=f"host {host.service_host} is up: stop it until it is down, or force it down if it cannot run"
            )
    nodes = [host.compute_node_uuid for host in states]
    ids = bulk.select_in(connection, select(host_table.c.id), host_table.c.compute_node_uuid, nodes)
    # A compute node that is not a root serves no host: it is not deleted, because it belongs to another tree.
    roots = [key.id for key in providers.keys_found(connection, nodes).values() if key.id == key.root_id]
    tree = providers.tree_ids(connection, roots)
    return HostDeletion(
        host_ids=tuple(sorted(row.id for row in ids)),
        cell_uuid=states[0].cell_uuid,
        providers=providers.uuids_of(connection, tree),
        residues=_residues(connection, message.service_host, tree, roots),
    )


def delete(connection: Connection, message: DeleteHost, names: ResourceClassNames) -> None:
    """Delete a host with all its nodes; see :func:`plan` for the errors.

    :raises StaleRead: the host or its providers have changed concurrently; a new transaction may succeed.
    """
    gone = plan(connection, message)
    providers.lock(connection, gone.providers)
    # From here on, no claim can succeed there. A claim that was made before the lock is visible now.
    if plan(connection, message) != gone:
        raise StaleRead
    held = consumers.holdings(connection, gone.residues)
    changes = [
        ConsumerChange(uuid=uuid, before=holding, after={}, columns=UNCLAIMED, for_good=True)
        for uuid, holding in sorted(held.items())
    ]
    if changes:
        allocations.write(connection, changes, names, bumps_generations=False)
    trees.remove(connection, gone.providers)
    # Repeat the condition in the write: a host that has come up concurrently is not deleted.
    #
    # DELETE FROM hosts WHERE id IN (...) AND (NOT up OR forced_down)
    silent = or_(~host_table.c.up, host_table.c.forced_down)
    deleted = connection.execute(host_table.delete().where(host_table.c.id.in_(gone.host_ids), silent)).rowcount
    if deleted != len(gone.host_ids):
        raise StaleRead
    host_aggregates.forget_host(connection, gone.cell_uuid, message.service_host)
    change_feed.record(connection, provider_ids=gone.providers, host_ids=gone.host_ids)
    taken = f"{len(gone.providers)} provider(s) and {len(gone.residues)} residue(s)"
    LOG.warning("Host %s is deleted, with %s", message.service_host, taken)


def _residues(connection: Connection, name: str, tree: list[int], roots: list[int]) -> tuple[str, ...]:
    """Return the residues with allocations on these providers, or placed on these roots.

    :raises InvalidState: another consumer has allocations there, or is placed there.
    """
    table = consumer_table.c
    kinds = select(table.uuid, residues.IS_RESIDUE.label("is_residue"))
    holding = kinds.join_from(consumer_table, allocation_table, allocation_table.c.consumer_id == table.id).distinct()
    there = {
        row.uuid: bool(row.is_residue)
        for query, column, ids in (
            (holding, allocation_table.c.resource_provider_id, tree),
            (kinds, table.root_provider_id, sorted(roots)),
        )
        for row in bulk.select_in(connection, query, column, ids)
    }
    if others := [uuid for uuid, is_residue in there.items() if not is_residue]:
        raise errors.InvalidState(reason=f"host {name} is held by {hosts.in_short(others)}: move or delete them first")
    return tuple(sorted(there))
