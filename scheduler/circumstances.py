"""What a decision must know beside the hosts: where the rest of a server group is, and what an instance moves from.

Both are read from the store for each plan; a request that names neither costs nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from moorage import errors
from moorage.messages import SelectDestinations
from moorage.model import Move, Resources
from placement_store import consumers, groups, providers
from placement_store.consumers import Holding
from placement_store.groups import OccupiedRoot
from placement_store.names import ResourceClassNames


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What holds for one request besides what holds for all."""

    #: By root provider, where the other members of the request's server group are; nothing, where it names no group.
    members: Mapping[str, OccupiedRoot] | None = None
    #: The compute node of the host that a moving instance leaves; nothing where it may stay.
    leaving: str | None = None
    #: By provider, what a moving instance holds of pools: it may go on using that, so for it that much is free.
    pooled: Mapping[str, Resources] = field(default_factory=dict)

    def growth(self, provider_uuid: str, resources: Resources) -> Resources:
        """Return how much more than now is held of a provider once ``resources`` are claimed of it."""
        held = self.pooled.get(provider_uuid)
        if held is None:
            return resources
        return {name: max(0, amount - held.get(name, 0)) for name, amount in resources.items()}


#: Those of a request that names neither a group nor a move.
NONE = Circumstances()


def read(connection: Connection, message: SelectDestinations, names: ResourceClassNames) -> Circumstances:
    """Return the circumstances of a request as the store has them now.

    :raises ConsumerGenerationConflict: the instance that is to move is not at the generation that was named.
    :raises ConsumerDeleted: it has been deleted for good.
    :raises ClaimReleased: the claim that it is to move from is no longer its own.
    :raises InvalidState: no host has accepted that claim.
    """
    group, members = message.request_spec.server_group, None
    if group is not None:
        members = groups.occupancy(connection, group.uuid, besides=message.instance_uuids).roots
    if message.move is None:
        return Circumstances(members)
    holding = _placed(connection, message, message.move)
    stays = message.move.kind == "resize"
    root_id = holding.root_provider_id
    root_uuid = None if stays or root_id is None else providers.uuids_of(connection, [root_id]).get(root_id)
    return Circumstances(members, root_uuid, _pooled(connection, holding, message.move, names))


def _placed(connection: Connection, message: SelectDestinations, move: Move) -> Holding:
    """Return the instance that is to move, as it is placed by the claim that is named."""
    [uuid] = message.instance_uuids
    holding = consumers.holdings(connection, [uuid]).get(uuid)
    consumers.require_unburied(connection, uuid, holding)
    if holding is None or holding.claim_id != move.claim_id:
        raise errors.ClaimReleased(consumer_uuid=uuid, claim_id=move.claim_id)
    if holding.generation != (named := message.consumer_generations[uuid]):
        raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=named, found=holding.generation)
    if holding.accepted_by is None:
        raise errors.InvalidState(reason=f"no host has accepted the claim of consumer {uuid}")
    return holding


def _pooled(connection: Connection, holding: Holding, move: Move, names: ResourceClassNames) -> Mapping[str, Resources]:
    """Return what an instance holds for its own request of providers outside its host's tree."""
    keys = providers.keys_found(connection, move.held.allocations)
    pools = [uuid for uuid, key in keys.items() if key.root_id != holding.root_provider_id]
    held = holding.amounts
    pooled: dict[str, Resources] = {}
    for uuid in pools:
        named = move.held.allocations[uuid].resources
        amounts = {
            name: min(amount, held.get((keys[uuid].id, names.id_of(name, connection)), 0))
            for name, amount in named.items()
        }
        pooled[uuid] = {name: amount for name, amount in amounts.items() if amount}
    return pooled
