"""Test deletions at each point of the life of an instance."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.conductor.builders import CELL_1, SPEC, FakePlacement, World, selection, wait_until
from support.conductor.moving_instances import Mover, becomes, built, shelve, shown

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import BuildInCell, Claimed, DeleteInCell, InstanceBuild, ListInstances, SwapClaim
from moorage.messages.wire import Mutation


def test_a_deleted_instance_loses_its_guest_then_its_claim_and_is_listed_only_on_request(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")

    world.delete(uuid)
    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert world.agent.guests == {}
    assert world.placement.held == {}
    assert uuid in world.placement.deleted
    conductor = world.bus.client("conductor")
    assert conductor.call(ListInstances()) == []
    [instance] = conductor.call(ListInstances(deleted=True))
    assert (instance.state, instance.attempts[0].state) == ("deleted", "ended")
    world.delete(uuid)
    with pytest.raises(errors.InstanceNotFound):
        world.delete(ids.fresh())
    with pytest.raises(errors.InstanceNotFound):
        world.show(ids.fresh())


def test_an_instance_deleted_while_its_host_builds_it_leaves_nothing(world: World) -> None:
    world.agent.may_finish.clear()
    [uuid] = world.build()
    wait_until(lambda: len(world.agent.guests) == 1)

    world.delete(uuid)
    world.becomes(uuid, "deleted")
    world.agent.may_finish.set()
    world.agent.threads.shutdown()

    assert world.show(uuid).state == "deleted"
    assert world.agent.guests == {}
    assert world.placement.held == {}


def test_an_instance_deleted_while_its_claim_is_swapped_leaves_nothing(world: World) -> None:
    class SlowSwap(FakePlacement):
        swapping, may_answer = threading.Event(), threading.Event()

        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            answer = super().swap_claim(message)
            self.swapping.set()
            assert self.may_answer.wait(60)
            return answer

    placement = world.replace(SlowSwap())
    world.agent.failing = {"a"}
    [uuid] = world.build()
    assert placement.swapping.wait(60)

    world.delete(uuid)
    wait_until(lambda: shown(world, uuid).state in ("deleting", "deleted"))
    placement.may_answer.set()

    world.becomes(uuid, "deleted")
    time.sleep(0.3)
    assert world.show(uuid).state == "deleted"
    assert placement.held == {}
    assert len(world.agent.builds) == 1
    assert world.pending("cell") == 0


class LosesAnswers(FakePlacement):
    """Carries out requests without an answer while something is held as a residue, until ``losing`` is cleared."""

    losing = True

    def once(self, message: Mutation[Any], work: Callable[[], Any]) -> Any:
        answer = super().once(message, work)
        if self.losing and self.residues:
            raise errors.NoReply(topic="placement", method=message.method, seconds=0.0)
        return answer


def leaves_on_the_shelf(world: World) -> str:
    uuid = built(world)
    world.agent.no_reply_to_destroy = {"a"}
    shelve(world, uuid)
    world.placement.declared_down = {"a"}
    return uuid


def gives_back(world: World) -> str:
    uuid = built(world)
    world.agent.hanging = {"b"}
    Mover(world, uuid, "live-migration").move("b")
    return uuid


def swaps(world: World) -> str:
    world.agent.hanging = {"a"}
    [uuid] = world.build()
    return uuid


def releases(world: World) -> str:
    world.scheduler.hosts = ["a"]
    return swaps(world)


@pytest.mark.parametrize(
    ("begin", "step"),
    [(leaves_on_the_shelf, "leave"), (gives_back, "give_back"), (swaps, "swap"), (releases, "release")],
)
def test_an_unrecorded_residue_is_cleaned_up_by_a_deletion(
    world: World, begin: Callable[[World], str], step: str
) -> None:
    world.restart("cell", build_timeout=2.0)
    placement = world.replace(LosesAnswers())
    uuid = begin(world)
    wait_until(lambda: bool(placement.residues))
    assert world.pending("cell", f"AND step = '{step}'") == 1
    world.agent.no_reply_to_destroy = set()

    world.delete(uuid)
    wait_until(lambda: world.pending("cell", "AND kind = 'delete'") == 1)
    placement.losing = False

    becomes(world, uuid, "deleted")
    wait_until(lambda: not placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert placement.hosts_held() == set()


def test_a_delete_waits_for_a_host_that_does_not_answer_and_keeps_its_claim_until_then(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.servers.pop(f"compute.{CELL_1.uuid}").stop()

    world.delete(uuid)
    time.sleep(1.5)
    assert world.show(uuid).state == "deleting"
    assert uuid in world.placement.held
    world.replace(world.agent)

    world.becomes(uuid, "deleted")
    assert world.placement.held == {}


def test_an_instance_in_error_can_be_deleted(world: World) -> None:
    world.agent.failing = {"a", "b", "c"}
    [uuid] = world.build()
    world.becomes(uuid, "error")

    world.delete(uuid)

    world.becomes(uuid, "deleted")


def test_a_build_that_arrives_after_its_delete_builds_nothing(world: World) -> None:
    uuid = ids.fresh()
    world.cell_call(DeleteInCell(request_id="delete", instance_uuid=uuid))
    build = InstanceBuild(instance_uuid=uuid, request_spec=SPEC, selections=(selection("a", ids.fresh()),))

    world.cell_call(BuildInCell(request_id="build", builds=(build,)))

    wait_until(lambda: uuid in world.placement.deleted)
    wait_until(lambda: world.pending("cell") == 0)
    assert world.agent.builds == []


def test_a_build_without_a_claim_is_refused_by_the_cell(world: World) -> None:
    build = InstanceBuild(instance_uuid=ids.fresh(), request_spec=SPEC, selections=(selection("a"),))

    with pytest.raises(errors.InvalidRequest):
        world.cell_call(BuildInCell(request_id="build", builds=(build,)))
