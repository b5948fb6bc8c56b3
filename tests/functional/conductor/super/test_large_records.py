"""Instances whose records in their cell are too large to be read in one message."""

from collections import Counter

import msgspec
import pytest
from support.conductor.builders import CELL_1, wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.moving_world import MovingWorld

from moorage import errors
from moorage.messages import ListInstances, ListMigrations
from moorage.model import Instance

#: So many reasons are 24 MiB together, and one message takes 12 MiB.
COUNT = 24
REASON = "x" * 2**20


class DeletingTogether(FakeCell):
    """Shows instances as deleted once that is set."""

    has_deleted = False

    def shown(self, uuid: str) -> Instance:
        instance = super().shown(uuid)
        is_deleting = instance.state == "deleted" and not self.has_deleted
        return msgspec.structs.replace(instance, state="deleting") if is_deleting else instance


def active(world: MovingWorld) -> list[str]:
    uuids = [world.active() for _ in range(COUNT)]
    for uuid in uuids:
        world.cell.instances[uuid].reason = REASON
    return uuids


def test_a_part_of_a_list_has_the_cells_records_whatever_they_are_together(world: MovingWorld) -> None:
    active(world)
    with pytest.raises(errors.ReplyTooLarge):
        world.order(ListInstances(limit=COUNT))
    [*some] = world.order(ListInstances(limit=COUNT // 4))
    assert {instance.state for instance in some} == {"active"}


def test_instances_that_their_cell_has_deleted_are_recorded_so_whatever_their_records_are_together(
    world: MovingWorld,
) -> None:
    world.cell = cell = DeletingTogether(world.placement)
    world.serve(f"conductor.{CELL_1.uuid}", cell)
    for uuid in active(world):
        world.delete(uuid)
    wait_until(lambda: world.pending("conductor") == 0)
    cell.has_deleted = True

    def states() -> Counter[str]:
        with world.records.engine.connect() as connection:
            return Counter(connection.exec_driver_sql("SELECT state FROM conductor_instances").scalars())

    wait_until(lambda: states() == {"deleted": COUNT}, states)


def test_migrations_that_have_ended_in_their_cell_are_recorded_so_whatever_their_records_are_together(
    world: MovingWorld,
) -> None:
    moved = [world.migrate(uuid) for uuid in [world.active() for _ in range(COUNT)]]

    def have_moved() -> bool:
        # Each is the cell's a moment after it was ordered.
        known = world.cell.migrations
        return all(uuid in known and known[uuid].state == "moved" for uuid in moved)

    wait_until(have_moved)
    for uuid in moved:
        world.cell.migrations[uuid] = msgspec.structs.replace(
            world.cell.migrations[uuid], state="confirmed", reason=REASON
        )

    wait_until(lambda: world.pending_migrations() == 0, world.pending_migrations)
    [*some] = world.order(ListMigrations(ended=True, limit=COUNT // 4))
    assert {migration.state for migration in some} == {"confirmed"}
