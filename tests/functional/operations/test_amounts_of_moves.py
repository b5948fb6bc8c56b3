"""Test the allocations at each step of moves between hosts that share a pool, with foreign amounts beside them."""

from collections.abc import Iterator

import pytest
from msgspec import structs
from os_traits import MISC_SHARES_VIA_AGGREGATE
from support.conductor.order_table import give
from support.operations.cloud import TroublesomeCloud, plan
from support.operations.healed_servers import Servers
from support.operations.pooled_room import PooledRoom
from support.operations.room import SMALL

from moorage import ids
from moorage.messages import (
    BuildInstances,
    DeleteResourceProvider,
    GetResourceProvider,
    ListOperations,
    MigrateInstance,
    Ordered,
    ReshapeByInstructions,
    ResizeInstance,
)
from moorage.model import ChildProvider, Flavor, MoveInstruction, Resources

#: The amounts of the server on its host, before and after a resize; it also has 20 GB of the pool.
OLD: Resources = {"VCPU": 2, "MEMORY_MB": 4096}
NEW: Resources = {"VCPU": 4, "MEMORY_MB": 8192}
WITH_MORE: Resources = {"VCPU": 2, "MEMORY_MB": 4608}
MORE: Resources = {"MEMORY_MB": 512}
LICENCE: Resources = {"CUSTOM_LICENCE": 1}

ENDS = ("confirm", "revert")


def gb(amount: int) -> Resources:
    return {"DISK_GB": amount}


def size(root_gb: int) -> Flavor:
    return Flavor(name="new", vcpus=4, memory_mb=8192, root_gb=root_gb)


@pytest.fixture(scope="module")
def running() -> Iterator[PooledRoom]:
    with TroublesomeCloud(plan("combine", hosts=3, disk_gb=0)) as cloud:
        yield PooledRoom.furnish(cloud)


@pytest.fixture
def stage(running: PooledRoom) -> Iterator[PooledRoom]:
    yield running
    running.room.make_room()


@pytest.fixture
def server(stage: PooledRoom) -> Iterator[str]:
    """Return a server on the source; delete it at the end, and verify that it holds nothing then."""
    room = stage.room
    uuid = room.build()
    assert stage.held(uuid) == {"instance": {"source": OLD, "pool": gb(20)}}
    yield uuid
    room.cloud.faults.forget(uuid)
    give(room, "delete", uuid)
    stage.comes_to_hold(uuid)
    room.clear(uuid)


def resize(stage: PooledRoom, uuid: str, root_gb: int, host: str | None = None) -> str:
    to = None if host is None else stage.room.hosts[host]
    message = ResizeInstance(request_id=ids.fresh(), instance_uuid=uuid, flavor=size(root_gb), host=to)
    return stage.room.order(message).migration_uuid


def migrate(stage: PooledRoom, uuid: str, *, drop_extras: bool = False) -> str:
    message = MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, drop_extras=drop_extras)
    return stage.room.order(message).migration_uuid


def fails(stage: PooledRoom, migration_uuid: str) -> str:
    return str(stage.room.migration_becomes(migration_uuid, "failed").reason)


def end(stage: PooledRoom, uuid: str, outcome: str) -> None:
    give(stage.room, outcome, uuid)
    stage.room.becomes(uuid, "active")


# --- A pool that all hosts share --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "meanwhile"), [(50, 50), (10, 20)])
@pytest.mark.parametrize("outcome", ENDS)
def test_a_resized_server_holds_the_larger_amount_of_a_shared_pool_until_the_resize_ends(
    stage: PooledRoom, server: str, new: int, meanwhile: int, outcome: str
) -> None:
    resize(stage, server, new, "destination")
    stage.room.becomes(server, "moved")
    assert stage.held(server) == {
        "instance": {"destination": NEW, "pool": gb(meanwhile)},
        "migration": {"source": OLD},
    }
    assert stage.used() == meanwhile

    end(stage, server, outcome)

    after = {"destination": NEW, "pool": gb(new)} if outcome == "confirm" else {"source": OLD, "pool": gb(20)}
    stage.comes_to_hold(server, instance=after)


@pytest.mark.parametrize("outcome", ENDS)
def test_a_swap_to_the_alternate_counts_the_pool_once(stage: PooledRoom, server: str, outcome: str) -> None:
    stage.room.misbehave("failing", server, "destination")

    resize(stage, server, 50)

    stage.room.becomes(server, "moved")
    assert stage.held(server) == {"instance": {"alternate": NEW, "pool": gb(50)}, "migration": {"source": OLD}}
    end(stage, server, outcome)
    after = {"alternate": NEW, "pool": gb(50)} if outcome == "confirm" else {"source": OLD, "pool": gb(20)}
    stage.comes_to_hold(server, instance=after)


@pytest.mark.parametrize("new", [50, 10])
def test_a_move_that_fails_everywhere_leaves_the_amount_of_the_pool_unchanged(
    stage: PooledRoom, server: str, new: int
) -> None:
    stage.room.misbehave("failing", server, *stage.room.hosts)

    fails(stage, resize(stage, server, new))

    stage.comes_to_hold(server, instance={"source": OLD, "pool": gb(20)})


def test_a_full_pool_prevents_only_resizes_to_a_larger_disk(stage: PooledRoom, server: str) -> None:
    room = stage.room
    other = ids.fresh()
    huge = structs.replace(room.spec("alternate"), flavor=structs.replace(SMALL, root_gb=80))
    room.order(BuildInstances(request_id=ids.fresh(), request_spec=huge, instance_uuids=(other,)))
    room.becomes(other, "active")
    assert stage.used() == stage.total

    fails(stage, resize(stage, server, 21))
    assert stage.held(server) == {"instance": {"source": OLD, "pool": gb(20)}}
    migrate(stage, server)
    room.becomes(server, "moved")
    end(stage, server, "confirm")
    stage.comes_to_hold(server, instance={"destination": OLD, "pool": gb(20)})
    # The amount of the pool that it gives up stays held until the resize is confirmed, because a revert needs it.
    resize(stage, server, 10, "source")
    room.becomes(server, "moved")
    assert stage.used() == stage.total
    end(stage, server, "revert")
    stage.comes_to_hold(server, instance={"destination": OLD, "pool": gb(20)})
    resize(stage, server, 10, "source")
    room.becomes(server, "moved")
    end(stage, server, "confirm")
    stage.comes_to_hold(server, instance={"source": NEW, "pool": gb(10)})
    assert stage.used() == stage.total - 10
    give(room, "delete", other)
    stage.comes_to_hold(other)


@pytest.mark.parametrize("order", ["live-migrate", "evacuate"])
def test_a_residue_of_a_move_that_confirms_itself_holds_nothing_of_the_pool(
    stage: PooledRoom, server: str, order: str
) -> None:
    room = stage.room
    room.misbehave("silent", server, "source")
    if order == "evacuate":
        room.force_down("source")

    give(room, order, server)

    stage.comes_to_hold(server, instance={"destination": OLD, "pool": gb(20)}, residue={"source": OLD})
    assert stage.used() == 20
    room.cloud.faults.forget(server)
    stage.comes_to_hold(server, instance={"destination": OLD, "pool": gb(20)})


@pytest.mark.parametrize(("new", "meanwhile"), [(50, 50), (10, 20)])
@pytest.mark.parametrize("outcome", ENDS)
def test_an_audit_finds_nothing_in_a_move_whose_pool_was_reshaped_before(
    stage: PooledRoom, server: str, new: int, meanwhile: int, outcome: str
) -> None:
    room, part = stage.room, ids.fresh()
    audited = Servers(room.cloud, settle=0.02)
    shared = ChildProvider(
        name="part",
        uuid=part,
        parent=stage.pool,
        traits=(MISC_SHARES_VIA_AGGREGATE,),
        aggregates=(room.aggregate,),
    )

    def reshape(source: str, target: str, *providers: ChildProvider) -> None:
        moved = MoveInstruction(
            from_resource_provider=source, moved_resources={"DISK_GB": stage.total}, to_resource_provider=target
        )
        room.placement.call(ReshapeByInstructions(request_id=ids.fresh(), instructions=(moved,), providers=providers))

    reshape(stage.pool, part, shared)
    resize(stage, server, new, "destination")
    room.becomes(server, "moved")

    assert audited.findings() == []
    assert room.placement.call(GetResourceProvider(uuid=part)).used == {"DISK_GB": meanwhile}
    end(stage, server, outcome)
    assert audited.findings() == []
    reshape(part, stage.pool)
    room.placement.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=part))
    after = {"destination": NEW, "pool": gb(new)} if outcome == "confirm" else {"source": OLD, "pool": gb(20)}
    stage.comes_to_hold(server, instance=after)


# --- Foreign amounts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ENDS)
def test_foreign_amounts_on_shared_providers_survive_a_move(stage: PooledRoom, server: str, outcome: str) -> None:
    stage.attach(server, pool=gb(5), licences=LICENCE)

    resize(stage, server, 50, "destination")

    stage.room.becomes(server, "moved")
    assert stage.held(server) == {
        "instance": {"destination": NEW, "pool": gb(55), "licences": LICENCE},
        "migration": {"source": OLD},
    }
    end(stage, server, outcome)
    mine = {"destination": NEW, "pool": gb(55)} if outcome == "confirm" else {"source": OLD, "pool": gb(25)}
    stage.comes_to_hold(server, instance={**mine, "licences": LICENCE})


def test_foreign_amounts_on_shared_providers_survive_a_swap_and_a_move_that_fails_everywhere(
    stage: PooledRoom, server: str
) -> None:
    stage.attach(server, pool=gb(5), licences=LICENCE)
    before = stage.held(server)
    stage.room.misbehave("failing", server, *stage.room.hosts)
    fails(stage, migrate(stage, server))
    stage.comes_to_hold(server, **before)
    stage.room.cloud.faults.forget(server)
    stage.room.misbehave("failing", server, "destination")

    give(stage.room, "live-migrate", server)

    stage.comes_to_hold(server, instance={"alternate": OLD, "pool": gb(25), "licences": LICENCE})


def test_foreign_amounts_on_the_source_refuse_every_move(stage: PooledRoom, server: str) -> None:
    room = stage.room
    stage.attach(server, source=MORE)
    before = stage.held(server)
    for order in ("migrate", "live-migrate", "evacuate"):
        if order == "evacuate":
            room.force_down("source")
        ordered = give(room, order, server)
        assert isinstance(ordered, Ordered)
        assert "foreign allocations" in fails(stage, ordered.migration_uuid)
        assert stage.held(server) == before
    room.force_down("source", down=False)
    assert "foreign allocations" in fails(stage, resize(stage, server, 20, "destination"))
    assert stage.held(server) == before


@pytest.mark.parametrize("outcome", ENDS)
def test_foreign_amounts_on_the_source_go_to_the_migration_with_drop_extras_and_return_with_a_revert(
    stage: PooledRoom, server: str, outcome: str
) -> None:
    stage.attach(server, source=MORE)

    migrate(stage, server, drop_extras=True)

    stage.room.becomes(server, "moved")
    assert stage.held(server) == {
        "instance": {"destination": OLD, "pool": gb(20)},
        "migration": {"source": WITH_MORE},
    }
    end(stage, server, outcome)
    after = {"destination": OLD} if outcome == "confirm" else {"source": WITH_MORE}
    stage.comes_to_hold(server, instance={**after, "pool": gb(20)})


@pytest.mark.parametrize("outcome", ENDS)
def test_foreign_amounts_on_the_host_survive_a_resize_on_the_same_host(
    stage: PooledRoom, server: str, outcome: str
) -> None:
    stage.attach(server, source=MORE)

    resize(stage, server, 50, "source")

    stage.room.becomes(server, "moved")
    assert stage.held(server) == {
        "instance": {"source": {"VCPU": 4, "MEMORY_MB": 8704}, "pool": gb(50)},
        "migration": {"source": OLD},
    }
    end(stage, server, outcome)
    confirmed = {"source": {"VCPU": 4, "MEMORY_MB": 8704}, "pool": gb(50)}
    stage.comes_to_hold(server, instance=confirmed if outcome == "confirm" else {"source": WITH_MORE, "pool": gb(20)})


# --- Released by another client ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["server", "migration", "both"])
def test_a_revert_claims_again_what_another_client_has_released(stage: PooledRoom, server: str, whose: str) -> None:
    room = stage.room
    migration_uuid = resize(stage, server, 50, "destination")
    room.becomes(server, "moved")
    for consumer, name in ((server, "server"), (migration_uuid, "migration")):
        if whose in (name, "both"):
            room.take_away(consumer)

    end(stage, server, "revert")

    stage.comes_to_hold(server, instance={"source": OLD, "pool": gb(20)})
    assert room.migration_becomes(migration_uuid, "reverted").reason is None


def test_a_revert_waits_for_room_on_a_source_that_another_client_has_released(stage: PooledRoom, server: str) -> None:
    room = stage.room
    resize(stage, server, 50, "destination")
    room.becomes(server, "moved")
    room.take_away(room.migration_of(server))
    room.fill("source")

    give(room, "revert", server)

    room.until(lambda: "not enough room" in reason_of_the_step(stage, server), "it to be refused")
    assert stage.held(server) == {"instance": {"destination": NEW, "pool": gb(50)}}
    room.make_room()
    room.becomes(server, "active")
    stage.comes_to_hold(server, instance={"source": OLD, "pool": gb(20)})


def reason_of_the_step(stage: PooledRoom, server: str) -> str:
    """Return why the pending operation of a server is repeated."""
    return "; ".join(str(one.reason) for one in stage.room.ask(ListOperations(instance_uuid=server)))


def test_the_guest_on_a_destination_that_another_client_has_released_is_destroyed(
    stage: PooledRoom, server: str
) -> None:
    room = stage.room
    room.misbehave("hanging", server, "destination", "alternate")
    migration_uuid = migrate(stage, server)
    room.until(lambda: room.is_building(server, "destination"), "the guest to arrive")
    room.take_away(server)
    room.until(lambda: room.given_up(server, "destination"), "the host to be given up")

    fails(stage, migration_uuid)

    room.becomes(server, "active")
    stage.comes_to_hold(server, instance={"source": OLD, "pool": gb(20)})
    room.until(lambda: not room.pending(server), "the cleanup to end")
    assert [attempt.host for attempt in room.show(server).attempts if attempt.guest_left] == [room.hosts["source"]]
