"""Test instances whose records in their cell are too large to be read in one message."""

from collections import Counter

import msgspec
import pytest
from support.conductor.builders import wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.moving_world import MovingWorld

from moorage import errors, ids
from moorage.messages import ListInstances, ListMigrations
from moorage.model import Instance

#: The reasons of this number of instances have 24 MiB together, and one message has at most 12 MiB.
COUNT = 24
REASON = "x" * 2**20


class DeletingTogether(FakeCell):
    """Shows deleted instances as deleting until a test sets ``has_deleted``."""

    has_deleted = False

    def shown(self, uuid: str) -> Instance:
        instance = super().shown(uuid)
        is_deleting = instance.state == "deleted" and not self.has_deleted
        return msgspec.structs.replace(instance, state="deleting") if is_deleting else instance


def active(world: MovingWorld, reason: str | None = REASON) -> list[str]:
    """Return active instances with a reason in the records of their cell."""
    uuids = world.build(*(ids.fresh() for _ in range(COUNT)))
    wait_until(lambda: world.pending("conductor") == 0)
    for uuid in uuids:
        world.cell.instances[uuid].reason = reason
    return uuids


def test_a_list_is_answered_in_parts_that_fit_although_the_whole_does_not(world: MovingWorld) -> None:
    active(world)
    with pytest.raises(errors.ReplyTooLarge):
        world.order(ListInstances(limit=COUNT))
    [*some] = world.order(ListInstances(limit=COUNT // 4))
    assert {instance.state for instance in some} == {"active"}


def test_instances_deleted_in_their_cell_are_recorded_as_deleted_however_large_their_records_are(
    world: MovingWorld,
) -> None:
    cell = world.replace_cell(DeletingTogether(world.placement))
    for uuid in active(world):
        world.delete(uuid)
    wait_until(lambda: world.pending("conductor") == 0)
    cell.has_deleted = True

    def states() -> Counter[str]:
        with world.records.engine.connect() as connection:
            return Counter(connection.exec_driver_sql("SELECT state FROM conductor_instances").scalars())

    wait_until(lambda: states() == {"deleted": COUNT}, states)


def test_migrations_ended_in_their_cell_are_recorded_as_ended_however_large_their_records_are(
    world: MovingWorld,
) -> None:
    moved = [world.migrate(uuid) for uuid in active(world, reason=None)]

    def have_moved() -> bool:
        # The cell records each migration a moment after it was ordered.
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
