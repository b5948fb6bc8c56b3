"""Read the context of a request: the store's data that concern this request alone, and so are not in the host view.

These are the other members of its server group, the servers that its hints name, and the place and amounts of an
instance that moves. They are read for each plan; a request without any of them needs no read.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from moorage.messages import SelectDestinations
from moorage.model import Move, Resources
from moorage.plugin.hints import neighbours_named
from placement_store.allocations import placed
from placement_store.allocations.consumers import Holding
from placement_store.claims import begin_move, move_split, released_amounts
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.server_groups import rows as groups
from placement_store.server_groups.rows import GroupRow, OccupiedRoot, PlacedGroup


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Hold the data beside the hosts on which the decision of one request depends."""

    #: The other members of the request's server group, by root provider; None if it names no group.
    members: Mapping[str, OccupiedRoot] | None = None
    #: The row of that group; None if it names no group, or one without members.
    group: GroupRow | None = None
    #: The compute node of the host that a moving instance must leave; None if it may stay.
    leaving: str | None = None
    #: Amounts that a moving instance holds of pools, by provider: it may keep them, so they are free for its claim.
    pooled: Mapping[str, Resources] = field(default_factory=dict)
    #: The compute node that a moving instance is placed on, whether or not it must leave it.
    source: str | None = None
    #: Servers that the request's hints name, by the root provider they are placed on.
    neighbours: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: Whether the reported load of the source may have this instance among the servers under way.
    under_way: bool = False

    def growth(self, provider_uuid: str, resources: Resources) -> Resources:
        """Return by how much a claim of ``resources`` raises the amounts that the instance holds of a provider."""
        held = self.pooled.get(provider_uuid)
        if held is None:
            return resources
        return {name: max(0, amount - held.get(name, 0)) for name, amount in resources.items()}


#: The context of a request that depends on nothing beside the hosts.
NO_CONTEXT = RequestContext()


def is_needed(message: SelectDestinations) -> bool:
    """Tell whether a request has a context to read.

    :raises InvalidRequest: a hint that names servers is no list of uuids.
    """
    spec = message.request_spec
    return spec.server_group is not None or message.move is not None or bool(neighbours_named(spec))


def members_of_groups(connection: Connection, messages: Collection[SelectDestinations]) -> Mapping[str, PlacedGroup]:
    """Return in one statement the other members of the requests' server groups; no two requests may name the same."""
    named = {
        group.uuid: message.instance_uuids
        for message in messages
        if (group := message.request_spec.server_group) is not None
    }
    return groups.occupancies(connection, besides=named)


def read(
    connection: Connection,
    message: SelectDestinations,
    names: ResourceClassNames,
    read_members: Mapping[str, PlacedGroup] | None = None,
) -> RequestContext:
    """Return the context of a request as it is in the store now.

    :param read_members: the members of server groups, if they were read for several requests together.
    :raises MoorageError: the instance cannot be moved as it is; see
        :func:`placement_store.claims.begin_move.require_movable`.
    :raises InvalidRequest: a hint that names servers is no list of uuids.
    :raises StaleRead: the instance has changed meanwhile; a new transaction may succeed.
    """
    neighbours = placed.instances_by_root(connection, neighbours_named(message.request_spec))
    members, row = None, None
    if (group := message.request_spec.server_group) is not None:
        known = members_of_groups(connection, [message]) if read_members is None else read_members
        members, row = known[group.uuid].roots, known[group.uuid].row
    if message.move is None:
        return RequestContext(members, row, neighbours=neighbours)
    [uuid] = message.instance_uuids
    holding = begin_move.require_movable(connection, uuid, message.consumer_generations[uuid], message.move)
    stays = message.move.kind == "resize"
    root_id = holding.root_provider_id
    source = None if root_id is None else providers.uuids_of(connection, [root_id]).get(root_id)
    pooled = _pooled(connection, holding, message.move, names)
    return RequestContext(members, row, None if stays else source, pooled, source, neighbours)


def _pooled(connection: Connection, holding: Holding, move: Move, names: ResourceClassNames) -> Mapping[str, Resources]:
    """Return the amounts that an instance holds, for its own request, of providers outside its host's tree.

    A reshape may have moved them within the trees of their providers since they were claimed.
    """
    keys = providers.keys_found(connection, move.held.allocations)
    held = released_amounts.claimed_with(connection, move.held.allocations, names)
    in_tree = released_amounts.providers_on_host(connection, holding)
    located = +released_amounts.locate(connection, holding, held, keys, in_tree, names)
    pools = move_split.within(located, {provider_id for provider_id, _ in located}.difference(in_tree))
    return {uuid: part.resources for uuid, part in move_split.as_allocations(connection, pools, names).items()}
