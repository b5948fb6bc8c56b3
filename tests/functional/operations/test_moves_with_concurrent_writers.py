"""Test moves and unshelving on a whole cloud of one process, while other clients write to the consumers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs
from support.operations.move_scenario import SPEC, MoveScenario, plan

from harness.cloud import RunningCloud
from harness.waiting import wait_until
from moorage import errors, failpoints, ids
from moorage.messages import (
    CreateResourceProvider,
    DeleteAllocations,
    GetAllocations,
    PutAllocations,
    SelectDestinations,
    SetHost,
    SetInventory,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.model import AllocationRequest, ConsumerAllocations, Inventory, Move, ProviderAmounts


@pytest.fixture(scope="module")
def stage() -> Iterator[MoveScenario]:
    with RunningCloud(plan()) as cloud:
        yield MoveScenario(cloud)


def holds(stage: MoveScenario, uuid: str) -> dict[str, ProviderAmounts]:
    found = stage.cloud.client("placement").call(GetAllocations(consumer_uuid=uuid)).allocations
    return {provider: structs.replace(part, generation=None) for provider, part in found.items()}


def put(stage: MoveScenario, uuid: str, further: dict[str, ProviderAmounts] | None = None) -> None:
    """Write the allocations of a consumer again, with further ones."""
    placement = stage.cloud.client("placement")
    consumer = placement.call(GetAllocations(consumer_uuid=uuid))
    wanted = ConsumerAllocations(
        allocations=holds(stage, uuid) | (further or {}),
        project_id="p",
        user_id="u",
        consumer_generation=consumer.generation,
    )
    placement.call(PutAllocations(request_id=ids.fresh(), consumer_uuid=uuid, wanted=wanted))


@contextmanager
def others_writing(stage: MoveScenario, uuid: str) -> Iterator[None]:
    """Keep writing to a consumer, with the generation that was read before each write."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.03):
            try:
                put(stage, uuid)
            except errors.MoorageError:
                continue

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def test_servers_are_moved_and_unshelved_while_other_clients_keep_writing(stage: MoveScenario) -> None:
    uuid = stage.build()
    before = sorted(part.resources.items() for part in holds(stage, uuid).values())
    with others_writing(stage, uuid):
        ordered = stage.migrate(uuid)
        stage.ends(ordered, "moved")
        stage.confirm(uuid)
        stage.ends(ordered, "confirmed")
        stage.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        stage.becomes(uuid, "shelved")
        stage.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        stage.becomes(uuid, "active")

    assert sorted(part.resources.items() for part in holds(stage, uuid).values()) == before
    with pytest.raises(errors.ConsumerNotFound):
        holds(stage, ordered.migration_uuid)


def test_foreign_amounts_on_the_source_refuse_a_move_or_go_to_the_migration_and_return_with_a_revert(
    stage: MoveScenario,
) -> None:
    uuid = stage.build()
    [(source, own)] = holds(stage, uuid).items()
    more = ProviderAmounts(resources={**own.resources, "VCPU": 3})
    put(stage, uuid, {source: more})

    assert "foreign allocations" in str(stage.ends(stage.migrate(uuid), "failed").reason)
    assert holds(stage, uuid) == {source: more}
    ordered = stage.migrate(uuid, drop_extras=True)
    stage.ends(ordered, "moved")
    assert holds(stage, ordered.migration_uuid) == {source: more}
    assert list(holds(stage, uuid).values()) == [own]
    stage.revert(uuid)

    stage.ends(ordered, "reverted")
    assert holds(stage, uuid) == {source: more}


def test_foreign_amounts_of_a_shelved_server_survive_its_unshelving(stage: MoveScenario) -> None:
    placement = stage.cloud.client("placement")
    pool = ids.fresh()
    placement.call(CreateResourceProvider(request_id=ids.fresh(), uuid=pool, name=f"pool-{pool}"))
    placement.call(
        SetInventory(
            request_id=ids.fresh(), uuid=pool, resource_class="IPV4_ADDRESS", inventory=Inventory(total=8), generation=0
        )
    )
    uuid = stage.build()
    stage.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    stage.becomes(uuid, "shelved")
    address = {pool: ProviderAmounts(resources={"IPV4_ADDRESS": 1})}
    put(stage, uuid, address)

    stage.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))

    stage.becomes(uuid, "active")
    assert len(holds(stage, uuid)) == 2
    assert holds(stage, uuid)[pool] == address[pool]


# --- Fences of a cancelled unshelving and a cancelled move ------------------------------------------------------------


def disable_all(stage: MoveScenario, *, disabled: bool = True) -> None:
    """Disable all hosts, or enable them."""
    for host in stage.cloud.hosts():
        message = SetHost(request_id=ids.fresh(), service_host=host.service_host, disabled=disabled)
        stage.cloud.client("scheduler").call(message)


def test_a_late_request_cannot_place_a_server_whose_unshelving_has_ended(stage: MoveScenario) -> None:
    placement = stage.cloud.client("placement")
    uuid = stage.build()
    stage.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    stage.becomes(uuid, "shelved")
    read = placement.call(GetAllocations(consumer_uuid=uuid)).generation
    disable_all(stage)
    message = UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid)
    lost: list[str] = []

    def lose(name: str) -> None:
        if name == "step.unshelve.select.send.scheduler.select_destinations" and not lost:
            lost.append(name)
            raise failpoints.Dropped(name)

    with failpoints.observed(lose):
        stage.order(message)
        wait_until(lambda: bool(lost), "the first request to be lost")
        stage.becomes(uuid, "shelved")
    disable_all(stage, disabled=False)

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
        stage.cloud.client("scheduler").call(late)

    assert holds(stage, uuid) == {}
    stage.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    stage.becomes(uuid, "active")


def test_a_late_request_cannot_begin_a_move_whose_migration_was_created_empty_or_deleted_for_good(
    stage: MoveScenario,
) -> None:
    placement = stage.cloud.client("placement")
    uuid, migration_uuid = stage.build(), ids.fresh()
    consumer = placement.call(GetAllocations(consumer_uuid=uuid))
    before = holds(stage, uuid)
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
        stage.cloud.client("scheduler").call(late)
    placement.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=migration_uuid, for_good=True))
    with pytest.raises(errors.ConsumerDeleted):
        stage.cloud.client("scheduler").call(late)

    assert holds(stage, uuid) == before
    with pytest.raises(errors.ConsumerDeleted):
        placement.call(structs.replace(fence, request_id=ids.fresh()))
