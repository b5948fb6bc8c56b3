"""Deleting a host that will not come back: its rows, its providers, its places in aggregates, and what residues hold.

What a residue holds stands for a guest that may still run. Whoever deletes the host says that it does not.
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

#: A refusal names no more consumers than this.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class HostDeletion:
    """What goes with a host."""

    #: One a node.
    host_ids: tuple[int, ...]
    #: Its own.
    cell_uuid: str
    #: All providers of the nodes' trees, by id.
    providers: Mapping[int, str]
    residues: tuple[str, ...]


def found(connection: Connection, message: DeleteHost) -> HostDeletion:
    """Return what would go with a host, or say why it may not be deleted; nothing is locked or changed.

    :raises HostNotFound: there is none of that name, or not in that cell.
    :raises InvalidRequest: several cells have one of that name and none of them was named.
    :raises InvalidState: it may be up, or something other than a residue holds something of it or is placed there.
    """
    states = hosts.of_name(connection, message.service_host, message.cell_uuid)
    for host in states:
        if host.up and not host.forced_down:
            raise errors.InvalidState(
                reason=f"host {host.service_host} is up: stop it until it is down, or force it down if it cannot run"
            )
    nodes = [host.compute_node_uuid for host in states]
    ids = bulk.select_in(
        connection, select(host_table.c.id, host_table.c.compute_node_uuid), host_table.c.compute_node_uuid, nodes
    )
    # A node that is no root serves no host: it belongs to whatever tree it is in.
    roots = [key.id for key in providers.keys_found(connection, nodes).values() if key.id == key.root_id]
    tree = providers.tree_ids(connection, roots)
    return HostDeletion(
        host_ids=tuple(sorted(row.id for row in ids)),
        cell_uuid=states[0].cell_uuid,
        providers=providers.uuids_of(connection, tree),
        residues=_residues(connection, message.service_host, tree, roots),
    )


def delete(connection: Connection, message: DeleteHost, names: ResourceClassNames) -> None:
    """Delete a host with all its nodes; see :func:`found` for what is refused.

    :raises StaleRead: something of it has changed meanwhile; a new transaction may succeed.
    """
    gone = found(connection, message)
    providers.lock(connection, gone.providers)
    # Nobody can claim anything there now; until then somebody may have done so.
    if found(connection, message) != gone:
        raise StaleRead
    held = consumers.holdings(connection, gone.residues)
    changes = [
        ConsumerChange(uuid=uuid, before=holding, after={}, columns=UNCLAIMED, for_good=True)
        for uuid, holding in sorted(held.items())
    ]
    if changes:
        allocations.write(connection, changes, names, bumps_generations=False)
    trees.remove(connection, gone.providers)
    # It may have come up meanwhile: such a host is not deleted.
    #
    # DELETE FROM hosts WHERE id IN (...) AND (NOT up OR forced_down)
    silent = or_(~host_table.c.up, host_table.c.forced_down)
    deleted = connection.execute(host_table.delete().where(host_table.c.id.in_(gone.host_ids), silent)).rowcount
    if deleted != len(gone.host_ids):
        raise StaleRead
    host_aggregates.forget_host(connection, gone.cell_uuid, message.service_host)
    change_feed.record(connection, provider_ids=gone.providers, host_ids=gone.host_ids)
    LOG.warning(
        "Host %s is deleted, with %s provider(s) and %s residue(s)",
        message.service_host,
        len(gone.providers),
        len(gone.residues),
    )


def _residues(connection: Connection, name: str, tree: list[int], roots: list[int]) -> tuple[str, ...]:
    """Return the residues that hold something of these providers; nobody else may, or be placed there."""
    table = consumer_table.c
    holding = (
        select(table.uuid, table.consumer_type)
        .join_from(consumer_table, allocation_table, allocation_table.c.consumer_id == table.id)
        .distinct()
    )
    there = {
        row.uuid: row.consumer_type
        for row in bulk.select_in(connection, holding, allocation_table.c.resource_provider_id, tree)
    }
    placed = select(table.uuid, table.consumer_type)
    there |= {
        row.uuid: row.consumer_type for row in bulk.select_in(connection, placed, table.root_provider_id, sorted(roots))
    }
    others = sorted(uuid for uuid, kind in there.items() if kind != residues.RESIDUE)
    if others:
        named = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
        raise errors.InvalidState(reason=f"host {name} is held by {named}: move or delete them first")
    return tuple(sorted(there))
