"""Servers that are moved and unshelved on a whole cloud of one process, while others write to their consumers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs

from harness.cloud import CloudSpec, RunningCloud, wait_until
from moorage import errors, failpoints, ids
from moorage.messages import (
    BuildInstances,
    ConfirmMigration,
    CreateResourceProvider,
    DeleteAllocations,
    GetAllocations,
    MigrateInstance,
    PutAllocations,
    RevertMigration,
    SelectDestinations,
    SetHost,
    SetInventory,
    ShelveInstance,
    ShowInstance,
    ShowMigration,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation, R
from moorage.model import AllocationRequest, ConsumerAllocations, Flavor, Inventory, Move, ProviderAmounts, RequestSpec

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=2, memory_mb=4096, root_gb=20))


@pytest.fixture(scope="module")
def cloud() -> Iterator[RunningCloud]:
    settings = {
        "rpc": {"call_timeout": 10.0},
        "conductor": {"report_interval": 0.2, "retry_backoff": 0.1},
        "compute": {"report_interval": 0.2, "stop_timeout": 0.1},
    }
    with RunningCloud(CloudSpec(hosts=3, settings=settings)) as cloud:
        yield cloud


def order(cloud: RunningCloud, message: Mutation[R]) -> R:
    return cloud.client("conductor").call(message)


def becomes(cloud: RunningCloud, uuid: str, state: str) -> None:
    conductor = cloud.client("conductor")
    wait_until(lambda: conductor.call(ShowInstance(instance_uuid=uuid)).state == state, state)


def built(cloud: RunningCloud) -> str:
    uuid = ids.fresh()
    order(cloud, BuildInstances(request_id=ids.fresh(), request_spec=SPEC, instance_uuids=(uuid,)))
    becomes(cloud, uuid, "active")
    return uuid


def migrate(cloud: RunningCloud, uuid: str, *, drop_extras: bool = False) -> str:
    message = MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, drop_extras=drop_extras)
    return order(cloud, message).migration_uuid


def ends(cloud: RunningCloud, migration_uuid: str, state: str) -> str:
    conductor = cloud.client("conductor")
    wait_until(lambda: conductor.call(ShowMigration(uuid=migration_uuid)).state == state, state)
    return str(conductor.call(ShowMigration(uuid=migration_uuid)).reason)


def holds(cloud: RunningCloud, uuid: str) -> dict[str, ProviderAmounts]:
    found = cloud.client("placement").call(GetAllocations(consumer_uuid=uuid)).allocations
    return {provider: structs.replace(part, generation=None) for provider, part in found.items()}


def put(cloud: RunningCloud, uuid: str, further: dict[str, ProviderAmounts] | None = None) -> None:
    """Write what a consumer holds once more, with what is put on it beside."""
    placement = cloud.client("placement")
    consumer = placement.call(GetAllocations(consumer_uuid=uuid))
    wanted = ConsumerAllocations(
        allocations=holds(cloud, uuid) | (further or {}),
        project_id="p",
        user_id="u",
        consumer_generation=consumer.generation,
    )
    placement.call(PutAllocations(request_id=ids.fresh(), consumer_uuid=uuid, wanted=wanted))


@contextmanager
def others_writing(cloud: RunningCloud, uuid: str) -> Iterator[None]:
    """Keep writing to a consumer, by reading and naming its generation as everybody does."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.03):
            try:
                put(cloud, uuid)
            except errors.MoorageError:
                continue

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def test_servers_move_and_are_unshelved_however_often_others_write(cloud: RunningCloud) -> None:
    uuid = built(cloud)
    before = sorted(part.resources.items() for part in holds(cloud, uuid).values())
    with others_writing(cloud, uuid):
        migration_uuid = migrate(cloud, uuid)
        ends(cloud, migration_uuid, "moved")
        order(cloud, ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))
        ends(cloud, migration_uuid, "confirmed")
        order(cloud, ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        becomes(cloud, uuid, "shelved")
        order(cloud, UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        becomes(cloud, uuid, "active")

    assert sorted(part.resources.items() for part in holds(cloud, uuid).values()) == before
    with pytest.raises(errors.ConsumerNotFound):
        holds(cloud, migration_uuid)


def test_what_others_put_on_a_host_that_is_left_stops_a_move_or_goes_with_it_and_comes_back(
    cloud: RunningCloud,
) -> None:
    uuid = built(cloud)
    [(source, own)] = holds(cloud, uuid).items()
    more = ProviderAmounts(resources={**own.resources, "VCPU": 3})
    put(cloud, uuid, {source: more})

    assert "foreign allocations" in ends(cloud, migrate(cloud, uuid), "failed")
    assert holds(cloud, uuid) == {source: more}
    migration_uuid = migrate(cloud, uuid, drop_extras=True)
    ends(cloud, migration_uuid, "moved")
    assert holds(cloud, migration_uuid) == {source: more}
    assert list(holds(cloud, uuid).values()) == [own]
    order(cloud, RevertMigration(request_id=ids.fresh(), instance_uuid=uuid))

    ends(cloud, migration_uuid, "reverted")
    assert holds(cloud, uuid) == {source: more}


def test_what_others_put_on_a_shelved_server_is_still_there_when_it_is_unshelved(cloud: RunningCloud) -> None:
    placement = cloud.client("placement")
    pool = ids.fresh()
    placement.call(CreateResourceProvider(request_id=ids.fresh(), uuid=pool, name=f"pool-{pool}"))
    placement.call(
        SetInventory(
            request_id=ids.fresh(), uuid=pool, resource_class="IPV4_ADDRESS", inventory=Inventory(total=8), generation=0
        )
    )
    uuid = built(cloud)
    order(cloud, ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    becomes(cloud, uuid, "shelved")
    address = {pool: ProviderAmounts(resources={"IPV4_ADDRESS": 1})}
    put(cloud, uuid, address)

    order(cloud, UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))

    becomes(cloud, uuid, "active")
    assert len(holds(cloud, uuid)) == 2
    assert holds(cloud, uuid)[pool] == address[pool]


# --- The fences that a cancelled unshelving and a cancelled move are given --------------------------------------------


def disable_all(cloud: RunningCloud, *, disabled: bool = True) -> None:
    """Have no host take any server, or all."""
    for host in cloud.hosts():
        message = SetHost(request_id=ids.fresh(), service_host=host.service_host, disabled=disabled)
        cloud.client("scheduler").call(message)


def test_a_late_request_places_no_server_whose_unshelving_has_ended(cloud: RunningCloud) -> None:
    placement = cloud.client("placement")
    uuid = built(cloud)
    order(cloud, ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    becomes(cloud, uuid, "shelved")
    read = placement.call(GetAllocations(consumer_uuid=uuid)).generation
    disable_all(cloud)
    message = UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid)
    lost: list[str] = []

    def lose(name: str) -> None:
        if name == "step.unshelve.select.send.scheduler.select_destinations" and not lost:
            lost.append(name)
            raise failpoints.Dropped(name)

    with failpoints.observed(lose):
        order(cloud, message)
        wait_until(lambda: bool(lost), "the first request to be lost")
        becomes(cloud, uuid, "shelved")
    disable_all(cloud, disabled=False)

    late = SelectDestinations(
        request_id=ids.derived(ids.derived(message.request_id, "unshelve"), "select", 1),
        request_spec=SPEC,
        instance_uuids=(uuid,),
        num_alternates=0,
        owner="conductor",
        consumer_generations={uuid: read},
        keep_held=True,
    )
    with pytest.raises(errors.ConsumerGenerationConflict):
        cloud.client("scheduler").call(late)

    assert holds(cloud, uuid) == {}
    order(cloud, UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    becomes(cloud, uuid, "active")


def test_a_late_request_begins_no_move_whose_migration_was_created_empty_and_then_none_that_was_buried(
    cloud: RunningCloud,
) -> None:
    placement = cloud.client("placement")
    uuid, migration_uuid = built(cloud), ids.fresh()
    consumer = placement.call(GetAllocations(consumer_uuid=uuid))
    before = holds(cloud, uuid)
    late = SelectDestinations(
        request_id=ids.fresh(),
        request_spec=SPEC,
        instance_uuids=(uuid,),
        num_alternates=0,
        consumer_generations={uuid: consumer.generation},
        move=Move(
            migration_uuid=migration_uuid,
            kind="cold-migration",
            claim_id=str(consumer.claim_id),
            held=AllocationRequest(allocations=before),
        ),
    )
    nothing = ConsumerAllocations(
        allocations={}, project_id="p", user_id="u", consumer_type="MIGRATION", consumer_generation=None
    )
    fence = PutAllocations(request_id=ids.fresh(), consumer_uuid=migration_uuid, wanted=nothing)

    placement.call(fence)
    with pytest.raises(errors.AlreadyExists):
        cloud.client("scheduler").call(late)
    placement.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=migration_uuid, for_good=True))
    with pytest.raises(errors.ConsumerDeleted):
        cloud.client("scheduler").call(late)

    assert holds(cloud, uuid) == before
    with pytest.raises(errors.ConsumerDeleted):
        placement.call(structs.replace(fence, request_id=ids.fresh()))
