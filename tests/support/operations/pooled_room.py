"""A room whose hosts have no disks but share a pool, with the exact amounts that are held, by consumer and provider."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from os_traits import MISC_SHARES_VIA_AGGREGATE

from moorage import errors, ids
from moorage.messages import (
    CreateResourceProvider,
    GetAllocations,
    GetResourceProvider,
    ListMigrations,
    SetAggregates,
    SetInventory,
    SetTraits,
)
from moorage.model import Inventory, Resources
from support.operations.cloud import Troubles, TroublesomeCloud
from support.operations.room import Room, rooms_of

#: Amounts by holder (``instance``, ``migration`` or ``residue``) and by place (a host's role, ``pool`` or
#: ``licences``).
Held = dict[str, dict[str, Resources]]


@dataclass
class PooledRoom:
    """A room, and its pool."""

    room: Room
    total: int = 100
    pool: str = field(default_factory=ids.fresh)

    @classmethod
    def furnish(cls, cloud: TroublesomeCloud) -> "PooledRoom":
        """Make a room of the three hosts of a cloud, and of a pool of 100 GB."""
        [room] = rooms_of(cloud, Troubles())
        pooled = cls(room)
        placement, uuid = room.placement, pooled.pool
        placement.call(CreateResourceProvider(request_id=ids.fresh(), uuid=uuid, name="pool"))
        disks = Inventory(total=pooled.total)
        placement.call(SetInventory(request_id=ids.fresh(), uuid=uuid, resource_class="DISK_GB", inventory=disks))
        placement.call(SetTraits(request_id=ids.fresh(), uuid=uuid, traits=(MISC_SHARES_VIA_AGGREGATE,)))
        placement.call(SetAggregates(request_id=ids.fresh(), uuid=uuid, aggregates=(room.aggregate,)))
        return pooled

    def held(self, uuid: str) -> Held:
        """Return all amounts held for a server, by itself or by its migrations and attempts."""
        attempts = [attempt.attempt_id for attempt in self.room.show(uuid).attempts]
        migrations = [one.uuid for one in self.room.ask(ListMigrations(instance_uuid=uuid, ended=True))]
        found: Held = {}
        for consumer in (uuid, *migrations, *attempts):
            try:
                known = self.room.placement.call(GetAllocations(consumer_uuid=consumer))
            except errors.ConsumerNotFound:
                continue
            if known.allocations:
                who = known.consumer_type.lower()
                assert who not in found
                found[who] = {self._place(at): dict(part.resources) for at, part in known.allocations.items()}
        return found

    def _place(self, provider: str) -> str:
        names = {node: role for role, node in self.room.nodes.items()}
        return {**names, self.pool: "pool", self.room.licences: "licences"}[provider]

    def comes_to_hold(self, uuid: str, **wanted: Mapping[str, Resources]) -> None:
        """Wait until exactly these amounts are held for a server, by holder and place."""
        expected = {who: dict(places) for who, places in wanted.items()}
        try:
            self.room.until(lambda: self.held(uuid) == expected, "it to be held")
        except TimeoutError:
            assert self.held(uuid) == expected

    def used(self) -> int:
        """Return the used amount of the pool."""
        return self.room.placement.call(GetResourceProvider(uuid=self.pool)).used["DISK_GB"]

    def attach(self, uuid: str, **amounts: Resources) -> None:
        """Write foreign allocations to a consumer, by place."""
        providers = {**self.room.nodes, "pool": self.pool, "licences": self.room.licences}
        self.room.hold(uuid, {providers[place]: resources for place, resources in amounts.items()})
