"""Test the numbers of orders, and orders that name the last order or the migration of an instance."""

from typing import Any

import pytest
from support.conductor.moving_world import LARGE, MovingWorld

from conductor.commands.move import InstanceResize
from moorage import errors, ids
from moorage.messages import (
    AbortMigration,
    AttachResource,
    ConfirmMigration,
    DetachResource,
    EndMoveInCell,
    MigrateInstance,
    RebuildInstance,
    RevertMigration,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.messages.basis import NumberedOrder
from moorage.model import Image, ResourceGroup

PORT = ResourceGroup(resources={"NET_BW_EGR_KILOBIT_PER_SEC": 1000})


def rebuild(uuid: str, image: str, last_order: int | None, request_id: str | None = None) -> RebuildInstance:
    return RebuildInstance(
        request_id=request_id or ids.fresh(), instance_uuid=uuid, image=Image(id=image), last_order=last_order
    )


def numbers(world: MovingWorld) -> list[tuple[str, int | None]]:
    numbered = [message for message in world.cell.received if isinstance(message, NumberedOrder)]
    return [(message.method, message.order_number) for message in numbered]


def ended_migration(world: MovingWorld) -> str | None:
    return [message for message in world.cell.received if isinstance(message, EndMoveInCell)][-1].migration_uuid


def test_each_order_has_the_next_number_and_its_later_messages_have_the_same(world: MovingWorld) -> None:
    uuid = world.active()
    assert world.show(uuid).last_order == 0
    migration = world.migrate(uuid)
    world.comes_to(migration, "moved")
    world.order(RevertMigration(request_id=ids.fresh(), instance_uuid=uuid))
    world.becomes(uuid, "active")
    world.order(AttachResource(request_id=ids.fresh(), instance_uuid=uuid, suffix="_port1", group=PORT))
    world.order(DetachResource(request_id=ids.fresh(), instance_uuid=uuid, suffix="_port1"))
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    world.becomes(uuid, "shelved")
    world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    world.becomes(uuid, "active")

    assert numbers(world) == [
        ("prepare_move", 1),
        ("end_move", 2),
        ("attach_resource", 3),
        ("detach_resource", 4),
        ("shelve_instance", 5),
        ("prepare_unshelve", 6),
        ("unshelve_instance", 6),
    ]
    assert world.show(uuid).last_order == 6


def test_an_order_that_names_an_outdated_last_order_is_refused_and_not_forwarded(world: MovingWorld) -> None:
    uuid = world.active()
    late = rebuild(uuid, "old", world.show(uuid).last_order)
    world.order(rebuild(uuid, "new", 0))
    world.becomes(uuid, "active")
    before = numbers(world)

    with pytest.raises(errors.StaleOrder, match="given after order 0, and the last one is 1"):
        world.order(late)
    with pytest.raises(errors.StaleOrder):
        world.order(MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, last_order=0))

    assert (numbers(world), world.show(uuid).last_order) == (before, 1)
    assert world.migrations(uuid) == []


def test_a_repeated_order_is_the_same_whatever_last_order_it_names(world: MovingWorld) -> None:
    uuid = world.active()
    request_id = ids.fresh()
    world.order(rebuild(uuid, "new", 0, request_id))

    world.order(rebuild(uuid, "new", 1, request_id))

    assert [number for _method, number in numbers(world)] == [1]
    assert world.show(uuid).last_order == 1


def test_an_order_about_a_former_migration_is_refused_and_one_without_a_migration_is_about_the_current_one(
    world: MovingWorld,
) -> None:
    uuid = world.active()
    first = world.migrate(uuid)
    world.comes_to(first, "moved")
    world.order(RevertMigration(request_id=ids.fresh(), instance_uuid=uuid, migration_uuid=first))
    world.becomes(uuid, "active")
    second = world.migrate(uuid)
    world.comes_to(second, "moved")

    with pytest.raises(errors.StaleOrder, match=first):
        world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid, migration_uuid=first))

    assert world.migration(second).state == "moved"
    world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))
    world.comes_to(second, "confirmed")
    assert ended_migration(world) == second


def test_an_abort_is_not_forwarded_without_a_migration_that_it_could_name_to_the_cell(world: MovingWorld) -> None:
    uuid = world.active()

    # It has no number: if it came late, it would abort whichever migration the instance has by then.
    with pytest.raises(errors.InvalidState, match="no live migration"):
        world.order(AbortMigration(request_id=ids.fresh(), instance_uuid=uuid))

    assert "end_move" not in world.cell.methods()


def test_a_command_names_the_current_migration_and_the_last_order(world: MovingWorld, moorage: Any) -> None:
    uuid = world.active()
    migration = world.migrate(uuid)
    world.comes_to(migration, "moved")

    assert moorage("instance", "revert", uuid)[0] == 0

    assert ended_migration(world) == migration
    world.becomes(uuid, "active")
    request_id = ids.fresh()
    assert moorage("instance", "rebuild", uuid, "--image", "new", "--request-id", request_id)[0] == 0
    last = world.show(uuid).last_order
    assert moorage("instance", "rebuild", uuid, "--image", "new", "--request-id", request_id)[0] == 0
    assert world.show(uuid).last_order == last


def test_a_resize_by_command_is_refused_if_the_size_that_it_changes_has_changed_since_it_was_read(
    world: MovingWorld, moorage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid, read = world.active(), InstanceResize.content

    def read_before_another_resize(self: InstanceResize, given: Any, uuid: str) -> dict[str, Any]:
        found = read(self, given, uuid)
        world.comes_to(world.resize(uuid), "moved")
        world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))
        world.becomes(uuid, "active")
        return found

    monkeypatch.setattr(InstanceResize, "content", read_before_another_resize)

    assert moorage("instance", "resize", uuid, "--swap-mb", "1")[0] == 1

    assert world.show(uuid).flavor == LARGE
