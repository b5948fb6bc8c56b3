"""Test that foreign amounts on a deleted instance are deleted or kept as the option says, and are recorded."""

import json
from pathlib import Path

import pytest
from support.conductor.builders import FakePlacement, World, node, wait_until

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.cli.shell import main
from moorage.messages import DeleteAllocations, ListOperations, MigrateInstance, Released
from moorage.model.inspection import OperationSummary

GPU = ids.derived("gpu")
WORDS = f"2 VGPU of provider {GPU}"


def others_put(world: World, uuid: str) -> None:
    world.placement.put_beside(uuid, GPU, VGPU=2)


def deletes(world: World) -> list[DeleteAllocations]:
    return [call for call in world.placement.calls if isinstance(call, DeleteAllocations) and call.for_good]


def under_way(world: World) -> list[OperationSummary]:
    return world.bus.client("conductor").call(ListOperations())


def shown(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], uuid: str) -> dict[str, str]:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {world.conf.transport_url}\n")
    capsys.readouterr()
    assert main(["--config-file", str(file), "instance", "show", uuid, "-f", "json"]) == 0
    found: dict[str, str] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("goes", [True, False])
def test_the_record_of_a_deleted_instance_says_what_has_become_of_what_others_had_put_there(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], goes: bool
) -> None:
    world.restart("cell", delete_foreign_amounts=goes)
    [uuid] = world.build()
    claim_id = world.becomes(uuid, "active").claim_id
    others_put(world, uuid)

    world.delete(uuid)
    reason = world.becomes(uuid, "deleted").reason

    expected = "with it went what others had put there" if goes else "what others had put there stays"
    assert reason == f"{expected}: {WORDS}"
    assert (uuid in world.placement.foreign) is not goes
    [message] = deletes(world)
    assert (list(message.claimed_with), message.keep_extras) == ([claim_id], not goes)
    told = shown(world, tmp_path, capsys, uuid)
    assert told["reason"] == reason
    assert told["holds"] == ("nothing" if goes else f"what others have put there: {WORDS}")


def test_an_instance_on_which_nobody_has_put_anything_is_deleted_without_a_word(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.delete(uuid)
    assert world.becomes(uuid, "deleted").reason is None


def test_what_was_named_in_an_answer_that_was_lost_is_on_record_all_the_same(world: World) -> None:
    class LosesAnswers(FakePlacement):
        lost = 0

        @serves(DeleteAllocations)
        def delete_allocations(self, message: DeleteAllocations) -> Released:
            answer = super().delete_allocations(message)
            self.lost += 1
            if self.lost < 3:
                raise errors.NoReply(topic="placement", method="delete_allocations", seconds=0.0)
            return answer

    world.put(LosesAnswers())
    [uuid] = world.build()
    world.becomes(uuid, "active")
    others_put(world, uuid)

    world.delete(uuid)

    assert str(world.becomes(uuid, "deleted").reason).endswith(WORDS)
    assert len({message.request_id for message in deletes(world)}) == 1


def test_of_an_instance_in_error_all_that_is_held_is_others(world: World) -> None:
    world.restart("cell", delete_foreign_amounts=False)
    world.agent.failing = {"a", "b", "c"}
    [uuid] = world.build()
    world.becomes(uuid, "error")
    others_put(world, uuid)

    world.delete(uuid)

    assert world.becomes(uuid, "deleted").reason == f"what others had put there stays: {WORDS}"
    assert deletes(world)[-1].claimed_with == {}


def test_of_an_instance_that_moves_both_claims_are_named(world: World) -> None:
    [uuid] = world.build()
    source = world.becomes(uuid, "active").claim_id
    world.bus.client("conductor").call(MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host="b"))
    destination = world.becomes(uuid, "moved").claim_id
    others_put(world, uuid)

    world.delete(uuid)

    assert str(world.becomes(uuid, "deleted").reason).endswith(WORDS)
    [message] = [each for each in deletes(world) if each.consumer_uuid == uuid]
    named = {claim_id: list(one.allocations) for claim_id, one in message.claimed_with.items()}
    assert named == {source: [node("a")], destination: [node("b")]}


@pytest.mark.parametrize("goes", [True, False])
def test_an_instance_that_no_cell_has_is_deleted_in_the_same_way(world: World, goes: bool) -> None:
    world.restart("super", delete_foreign_amounts=goes)
    world.scheduler.hosts = []
    [uuid] = world.build()
    world.becomes(uuid, "error")
    others_put(world, uuid)

    world.delete(uuid)

    expected = "with it went what others had put there" if goes else "what others had put there stays"
    assert world.becomes(uuid, "deleted").reason == f"{expected}: {WORDS}"
    assert (uuid in world.placement.foreign) is not goes
    assert uuid in world.placement.deleted


# --- Others who write at the same time --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
@pytest.mark.parametrize("half", ["cell", "super"])
def test_a_conflict_makes_a_delete_end_later_and_never_otherwise(world: World, policy: str, half: str) -> None:
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
