"""Test the periodic tasks of the conductors: acknowledge, purge, and discover changes unprompted."""

from support.conductor.builders import World, wait_until

from moorage import ids
from moorage.db.database import Database
from moorage.messages import DeleteAllocations, SelectDestinations, SwapClaim


def state(world: World, uuid: str) -> str:
    """Return what the super conductor has on record, without asking it."""
    with Database(world.conf.database.connection, "test").engine.connect() as connection:
        found: str = connection.exec_driver_sql(
            "SELECT state FROM conductor_instances WHERE uuid = ?", (uuid,)
        ).scalar_one()
        return found


def test_what_is_on_record_is_acknowledged(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.delete(uuid)
    world.becomes(uuid, "deleted")
    wait_until(lambda: world.pending("conductor") == world.pending("cell") == 0)

    stored = {
        call.request_id
        for call in world.placement.calls
        if isinstance(call, SelectDestinations | SwapClaim | DeleteAllocations)
    }

    assert len(stored) == 3
    wait_until(lambda: set(world.placement.acknowledged) == stored)
    assert len(world.placement.acknowledged) == 3


def test_a_super_conductor_learns_without_being_asked_that_a_cell_has_deleted_an_instance(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")

    world.delete(uuid)

    wait_until(lambda: state(world, uuid) == "deleted")


def test_old_answers_are_forgotten_and_the_order_is_not_carried_out_again(world: World) -> None:
    uuid = ids.fresh()
    world.build(uuid, request_id="req-1")
    world.becomes(uuid, "active")
    database = Database(world.conf.database.connection, "test")
    with database.engine.begin() as connection:
        for schema in ("conductor", "cell"):
            connection.exec_driver_sql(f"UPDATE {schema}_requests SET created_at = 1")

    world.restart("cell")
    world.restart("super")

    def left() -> int:
        with database.engine.connect() as connection:
            counts = [
                connection.exec_driver_sql(f"SELECT COUNT(*) FROM {schema}_requests").scalar_one()
                for schema in ("conductor", "cell")
            ]
        return sum(counts)

    wait_until(lambda: left() == 0)
    assert len(world.agent.taken) == 1
