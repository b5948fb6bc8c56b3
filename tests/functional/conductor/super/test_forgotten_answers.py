"""Test request ids that are used again after their stored requests were purged, but not what they created."""

import pytest
from support.conductor.builders import wait_until
from support.conductor.moving_world import MovingWorld

from moorage import errors, ids
from moorage.messages import ConfirmMigration


def purge_stored_requests(world: MovingWorld) -> None:
    wait_until(lambda: world.pending("conductor") == 0)
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM conductor_requests")


def test_a_move_with_the_request_id_of_an_earlier_one_is_refused(world: MovingWorld) -> None:
    uuid, request_id = world.active(), ids.fresh()
    migration = world.migrate(uuid, request_id=request_id)
    world.comes_to(migration, "moved")
    world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))
    world.comes_to(migration, "confirmed")
    purge_stored_requests(world)

    with pytest.raises(errors.RequestIdReused, match=request_id):
        world.migrate(uuid, request_id=request_id)

    assert (world.show(uuid).state, len(world.migrations(uuid))) == ("active", 1)
    world.comes_to(world.migrate(uuid), "moved")


def test_a_build_with_the_request_id_of_an_earlier_one_is_refused(world: MovingWorld) -> None:
    request_id = ids.fresh()
    [uuid] = world.build(request_id=request_id)
    world.becomes(uuid, "active")
    purge_stored_requests(world)

    with pytest.raises(errors.RequestIdReused, match=request_id):
        world.build(request_id=request_id)

    assert list(world.placement.held) == [uuid]
