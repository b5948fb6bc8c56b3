"""Test that foreign amounts on a deleted instance are deleted or kept as the option says, and are recorded."""

from typing import Any

import pytest
from support.conductor.builders import FakePlacement, World, node, wait_until

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import DeleteAllocations, ListOperations, MigrateInstance, Released
from moorage.model.inspection import OperationSummary

GPU = ids.derived("gpu")
WORDS = f"2 VGPU of provider {GPU}"
KEPT = "foreign allocations stay"


def put_foreign_amounts(world: World, uuid: str) -> None:
    world.placement.put_beside(uuid, GPU, VGPU=2)


def deletes(world: World) -> list[DeleteAllocations]:
    return [call for call in world.placement.calls if isinstance(call, DeleteAllocations) and call.for_good]


def under_way(world: World) -> list[OperationSummary]:
    return world.bus.client("conductor").call(ListOperations())


def outcome(deleted: bool) -> str:
    """Return the reason in the record of an instance whose foreign amounts were deleted or kept."""
    return f"foreign allocations were deleted: {WORDS}" if deleted else f"{KEPT}: {WORDS}"


@pytest.mark.parametrize("deleted", [True, False])
def test_the_record_of_a_deleted_instance_says_whether_foreign_amounts_were_released(
    world: World, moorage: Any, deleted: bool
) -> None:
    world.restart("cell", delete_foreign_amounts=deleted)
    [uuid] = world.build()
    claim_id = world.becomes(uuid, "active").claim_id
    put_foreign_amounts(world, uuid)

    world.delete(uuid)
    reason = world.becomes(uuid, "deleted").reason

    assert reason == outcome(deleted)
    assert (uuid in world.placement.foreign) is not deleted
    [message] = deletes(world)
    assert (list(message.claimed_with), message.keep_extras) == ([claim_id], not deleted)
    _status, shown = moorage("instance", "show", uuid)
    assert shown["reason"] == reason
    assert shown["holds"] == ("nothing" if deleted else f"foreign allocations: {WORDS}")


def test_an_instance_without_foreign_amounts_is_deleted_without_a_reason(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.delete(uuid)
    assert world.becomes(uuid, "deleted").reason is None


def test_released_foreign_amounts_are_recorded_although_the_first_answers_are_lost(world: World) -> None:
    class LosesAnswers(FakePlacement):
        lost = 0

        @serves(DeleteAllocations)
        def delete_allocations(self, message: DeleteAllocations) -> Released:
            answer = super().delete_allocations(message)
            self.lost += 1
            if self.lost < 3:
                raise errors.NoReply(topic="placement", method="delete_allocations", seconds=0.0)
            return answer

    world.replace(LosesAnswers())
    [uuid] = world.build()
    world.becomes(uuid, "active")
    put_foreign_amounts(world, uuid)

    world.delete(uuid)

    assert str(world.becomes(uuid, "deleted").reason).endswith(WORDS)
    assert len({message.request_id for message in deletes(world)}) == 1


def test_all_amounts_of_an_instance_in_error_are_foreign(world: World) -> None:
    world.restart("cell", delete_foreign_amounts=False)
    world.agent.failing = {"a", "b", "c"}
    [uuid] = world.build()
    world.becomes(uuid, "error")
    put_foreign_amounts(world, uuid)

    world.delete(uuid)

    assert world.becomes(uuid, "deleted").reason == outcome(deleted=False)
    assert deletes(world)[-1].claimed_with == {}


def test_the_delete_of_a_moved_instance_names_both_claims(world: World) -> None:
    [uuid] = world.build()
    source = world.becomes(uuid, "active").claim_id
    world.bus.client("conductor").call(MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host="b"))
    destination = world.becomes(uuid, "moved").claim_id
    put_foreign_amounts(world, uuid)

    world.delete(uuid)

    assert str(world.becomes(uuid, "deleted").reason).endswith(WORDS)
    [message] = [each for each in deletes(world) if each.consumer_uuid == uuid]
    named = {claim_id: list(one.allocations) for claim_id, one in message.claimed_with.items()}
    assert named == {source: [node("a")], destination: [node("b")]}


@pytest.mark.parametrize("deleted", [True, False])
def test_foreign_amounts_of_an_instance_without_a_cell_are_deleted_or_kept_in_the_same_way(
    world: World, deleted: bool
) -> None:
    world.restart("super", delete_foreign_amounts=deleted)
    world.scheduler.hosts = []
    [uuid] = world.build()
    world.becomes(uuid, "error")
    put_foreign_amounts(world, uuid)

    world.delete(uuid)

    assert world.becomes(uuid, "deleted").reason == outcome(deleted)
    assert (uuid in world.placement.foreign) is not deleted
    assert uuid in world.placement.deleted


# --- Others who write at the same time --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
@pytest.mark.parametrize("half", ["cell", "super"])
def test_a_generation_conflict_delays_a_delete_and_does_not_change_its_end(
    world: World, policy: str, half: str
) -> None:
    world.restart(half, consumer_conflict_policy=policy)
    if half == "super":
        world.scheduler.hosts = []
    [uuid] = world.build()
    world.becomes(uuid, "active" if half == "cell" else "error")
    if half == "super":
        world.placement.put_beside(uuid, GPU)  # a consumer that holds nothing
    world.placement.conflicts = 2

    world.delete(uuid)

    if policy == "fail":
        for tries in (1, 2):
            wait_until(lambda tries=tries: len(deletes(world)) == tries)  # type: ignore[misc]
            wait_until(lambda: any("Order it again" in str(one.reason) for one in under_way(world)))
            assert world.show(uuid).state == "deleting"
            world.delete(uuid)
    world.becomes(uuid, "deleted")
    assert uuid in world.placement.deleted
    named = {message.consumer_generation is not None for message in deletes(world)}
    assert (len(deletes(world)), named) == ((1, {False}) if policy == "combine" else (3, {True}))
