"""The super conductor's part of operations, done by a test: it prepares, claims, hands over, and reads the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import structs

from moorage import ids
from moorage.messages import (
    CancelMoveInCell,
    EndMoveInCell,
    ListMigrationsInCell,
    MoveInCell,
    PrepareMoveInCell,
    PrepareUnshelveInCell,
    RebuildInCell,
    ShelveInCell,
    ShowInCell,
    UnshelveInCell,
)
from moorage.model import Flavor, Image, Instance, Migration, Move, MoveKind, Placement, RequestSpec
from support.conductor.builders import SPEC, World, node, selection, wait_until

BIGGER = structs.replace(SPEC, flavor=Flavor(vcpus=2, memory_mb=2048))


@dataclass
class Mover:
    """Moves one instance of a world, without a scheduler and a super conductor."""

    world: World
    uuid: str
    kind: MoveKind = "cold-migration"
    migration: str = ""

    def __post_init__(self) -> None:
        self.migration = self.migration or ids.fresh()

    def prepare(self) -> Placement:
        return self.world.cell_call(
            PrepareMoveInCell(
                request_id=ids.fresh(), instance_uuid=self.uuid, migration_uuid=self.migration, kind=self.kind
            )
        )

    def claim(self, placement: Placement, host: str) -> str:
        move = Move(
            migration_uuid=self.migration,
            kind=self.kind,
            claim_id=placement.claim_id,
            held=placement.selection.allocation_request,
        )
        generation = self.world.placement.generations[self.uuid]
        return self.world.placement.claim_for_move(self.uuid, move, node(host), generation)

    def hand_over(self, placement: Placement, claim_id: str, hosts: Sequence[str], spec: RequestSpec = SPEC) -> None:
        self.world.cell_call(
            MoveInCell(
                request_id=ids.fresh(),
                instance_uuid=self.uuid,
                migration_uuid=self.migration,
                request_spec=spec,
                held=placement.selection.allocation_request,
                selections=(selection(hosts[0], claim_id), *map(selection, hosts[1:])),
            )
        )

    def move(self, *hosts: str, spec: RequestSpec = SPEC) -> None:
        """Prepare the move, claim the first of these hosts, and hand over all of them."""
        placement = self.prepare()
        self.hand_over(placement, self.claim(placement, hosts[0]), hosts, spec)

    def cancel(self) -> None:
        self.world.cell_call(
            CancelMoveInCell(
                request_id=ids.fresh(), instance_uuid=self.uuid, migration_uuid=self.migration, reason="no room"
            )
        )

    def end(self, outcome: Literal["confirm", "revert", "abort"]) -> None:
        self.world.cell_call(EndMoveInCell(request_id=ids.fresh(), instance_uuid=self.uuid, outcome=outcome))

    def shown(self) -> Migration:
        [migration] = self.world.cell_call(ListMigrationsInCell(uuids=(self.migration,)))
        return migration


def shown(world: World, uuid: str) -> Instance:
    """Return an instance as its cell shows it."""
    [instance] = world.cell_call(ShowInCell(instance_uuids=(uuid,)))
    return instance


def shelve(world: World, uuid: str) -> None:
    world.cell_call(ShelveInCell(request_id=ids.fresh(), instance_uuid=uuid))


def unshelve(world: World, uuid: str, *hosts: str) -> None:
    world.cell_call(PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid))
    claim_id = world.placement.claim(uuid, node(hosts[0]), world.placement.generations[uuid], keep_held=True)
    selections = (selection(hosts[0], claim_id), *map(selection, hosts[1:]))
    world.cell_call(UnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid, selections=selections))


def rebuild(world: World, uuid: str, image: str) -> None:
    world.cell_call(RebuildInCell(request_id=ids.fresh(), instance_uuid=uuid, image=Image(id=image)))


def becomes(world: World, uuid: str, state: str) -> Instance:
    """Wait until an instance has a state in its cell, and return it."""
    wait_until(lambda: _state(world, uuid) == state, lambda: f"{state}: {shown(world, uuid)}")
    return shown(world, uuid)


def built(world: World) -> str:
    """Return an instance that is active on host `a`."""
    [uuid] = world.build()
    becomes(world, uuid, "active")
    return uuid


def _state(world: World, uuid: str) -> str | None:
    """Return the state of an instance in its cell; null if the cell has no record of it yet."""
    found = world.cell_call(ShowInCell(instance_uuids=(uuid,)))
    return found[0].state if found else None
