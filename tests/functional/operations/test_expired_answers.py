"""Test a whole cloud whose scheduler has claimed, but whose answer is lost and expires before the repetition."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from msgspec import structs
from support.conductor.order_table import give
from support.operations.cloud import TroublesomeCloud, lose, plan
from support.operations.healed_servers import Servers
from support.operations.pooled_room import PooledRoom
from support.operations.room import LARGE

from moorage import failpoints, ids
from moorage.messages import BuildInstances, MigrateInstance, ResizeInstance
from moorage.model import Resources
from placement_store.schema import requests

OLD: Resources = {"VCPU": 2, "MEMORY_MB": 4096}
LICENCE: Resources = {"CUSTOM_LICENCE": 1}


@pytest.fixture(scope="module")
def stage() -> Iterator[PooledRoom]:
    usual = plan("combine", hosts=3, disk_gb=0)
    quick = {"placement": {"reconcile_after": 0.5, "reconcile_interval": 0.2}}
    with TroublesomeCloud(replace(usual, settings={**usual.settings, **quick})) as cloud:
        yield PooledRoom.furnish(cloud)


@contextmanager
def losing_the_answer(stage: PooledRoom, step: str, meanwhile: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lose the first answer of the scheduler to a step, and delete all stored answers before the repetition."""
    lost: list[str] = []

    def forget(name: str) -> None:
        if name == f"step.{step}.answered.scheduler.select_destinations" and not lost:
            lost.append(name)
            stage.room.cloud.database.write(lambda connection: connection.execute(requests.delete()))
            meanwhile()
            lose()

    with failpoints.observed(forget):
        yield
    assert lost


@pytest.mark.parametrize("root_gb", [50, 10])
@pytest.mark.parametrize("host", ["source", "destination"])
def test_a_failed_resize_leaves_all_amounts_as_they_were(stage: PooledRoom, host: str, root_gb: int) -> None:
    room = stage.room
    uuid = room.build()
    stage.attach(uuid, pool={"DISK_GB": 5}, licences=LICENCE)
    before = stage.held(uuid)
    flavor = structs.replace(LARGE, root_gb=root_gb)

    with losing_the_answer(stage, "move.select"):
        ordered = room.order(
            ResizeInstance(request_id=ids.fresh(), instance_uuid=uuid, flavor=flavor, host=room.hosts[host])
        )
        migration = room.migration_becomes(ordered.migration_uuid, "failed")

    assert "order it again" in str(migration.reason)
    room.becomes(uuid, "active")
    assert stage.held(uuid) == before
    give(room, "delete", uuid)
    stage.comes_to_hold(uuid)


def test_a_heal_returns_the_source_of_a_failed_move_whose_destination_another_client_has_released(
    stage: PooledRoom,
) -> None:
    room = stage.room
    uuid = room.build()
    before = stage.held(uuid)

    with losing_the_answer(stage, "move.select", meanwhile=lambda: room.take_away(uuid)):
        ordered = room.order(MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid))
        migration = room.migration_becomes(ordered.migration_uuid, "failed")

    assert "moorage audit --heal --apply" in str(migration.reason)
    assert stage.held(uuid) == {"migration": {"source": OLD}}
    assert Servers(room.cloud).heal() == {}
    assert stage.held(uuid) == before
    give(room, "delete", uuid)
    stage.comes_to_hold(uuid)


def test_a_build_ends_in_error_and_the_reconciler_releases_its_claim(stage: PooledRoom) -> None:
    room, uuid = stage.room, ids.fresh()

    with losing_the_answer(stage, "build.select"):
        room.order(BuildInstances(request_id=ids.fresh(), request_spec=room.spec(), instance_uuids=(uuid,)))
        room.becomes(uuid, "error")

    assert "which an unanswered request of this build may have made" in str(room.show(uuid).reason)
    stage.comes_to_hold(uuid)
    give(room, "delete", uuid)


def test_an_unshelved_server_is_claimed_again(stage: PooledRoom) -> None:
    room = stage.room
    uuid = room.build()
    give(room, "shelve", uuid)
    room.becomes(uuid, "shelved")

    with losing_the_answer(stage, "unshelve.select"):
        give(room, "unshelve", uuid)
        room.becomes(uuid, "active")

    [places] = stage.held(uuid).values()
    assert list(places.values()).count(OLD) == 1
    assert len(places) == 2
    give(room, "delete", uuid)
    stage.comes_to_hold(uuid)
