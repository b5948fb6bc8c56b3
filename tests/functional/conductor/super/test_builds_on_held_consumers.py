"""Test builds of instances whose consumers are placed already, or have allocations on a node."""

import threading

from support.conductor.builders import FakeScheduler, node
from support.conductor.moving_world import MovingPlacement, MovingWorld
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import GetAllocations, PutAllocations, SelectDestinations
from moorage.model import Consumer, Destination, Selection


class HeldUpPlacement(MovingPlacement):
    """Answers a question about one consumer only when a test allows it."""

    def __init__(self, consumer: str) -> None:
        super().__init__()
        self.consumer = consumer
        self.asked, self.may_answer = threading.Event(), threading.Event()

    @serves(GetAllocations)
    def get_allocations(self, message: GetAllocations) -> Consumer:
        if message.consumer_uuid == self.consumer:
            self.asked.set()
            assert self.may_answer.wait(20)
        return super().get_allocations(message)


def test_a_build_that_the_scheduler_has_answered_does_not_ask_it_again_because_the_placement_role_is_busy(
    world: MovingWorld,
) -> None:
    deleted, placed = ids.fresh(), ids.fresh()
    world.restart("super", workers=4)  # one call at a time to the placement role
    placement = world.replace(HeldUpPlacement(deleted))
    claim_id = placement.claim(placed, node("a"))
    world.scheduler.hosts = []
    world.build(deleted)
    world.becomes(deleted, "error")
    world.scheduler.hosts = ["a"]
    world.scheduler.requests.clear()

    world.delete(deleted)
    assert placement.asked.wait(20)
    try:
        world.build(placed)
        assert f"it is placed already, by claim {claim_id}" in str(world.becomes(placed, "error").reason)
    finally:
        placement.may_answer.set()
    # A step that begins again sends its request again.
    sent = [message.request_id for message in world.scheduler.requests]
    assert len(set(sent)) == len(sent) == 2


class HeldOnHostA(FakeScheduler):
    """Prefers host `b`; existing consumers have allocations on host `a`, and a claim on another host is refused."""

    def claim(self, message: SelectDestinations, uuid: str, host: str) -> str:
        generation = message.consumer_generations.get(uuid)
        if generation is not None and host != "a":
            raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=generation, found=generation)
        return super().claim(message, uuid, host)


class FormerSelectDestinations(SelectDestinations, frozen=True, kw_only=True):
    """The message as a former release serves it."""

    method = "select_destinations"

    @classmethod
    def newest_version(cls) -> str:
        return "1.7"


class FormerScheduler(HeldOnHostA):
    """A scheduler of a former release, which finds nodes only by their names."""

    @serves(FormerSelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        return super().select_destinations(message)

    def chosen(self, message: SelectDestinations) -> list[str]:
        wanted = message.request_spec.requested_destination
        if wanted is not None and wanted.node not in (None, *self.hosts):
            raise errors.NoValidHost(
                instances=1, summary="3 not where the request wants to go", explanation={"hosts": 3}
            )
        return super().chosen(message)


def build_on_host_a(world: MovingWorld, scheduler: FakeScheduler) -> str:
    """Order an instance whose consumer has allocations on host `a`; return its uuid."""
    world.replace(scheduler).hosts = ["b", "a", "c"]
    uuid = ids.fresh()
    world.placement.put_beside(uuid, node("a"), VGPU=1)
    world.build(uuid)
    return uuid


def test_an_instance_is_built_on_the_node_of_its_consumers_allocations_which_is_requested_by_uuid(
    world: MovingWorld,
) -> None:
    uuid = build_on_host_a(world, HeldOnHostA(world.placement))

    assert world.becomes(uuid, "active").host == "a"
    wanted = [message.request_spec.requested_destination for message in world.scheduler.requests]
    assert wanted == [None, None, Destination(node_uuid=node("a"))]


def test_a_former_scheduler_refuses_the_version_of_a_request_for_a_node_by_its_uuid(world: MovingWorld) -> None:
    uuid = build_on_host_a(world, FormerScheduler(world.placement))

    reason = world.becomes(uuid, "error").reason
    assert "select_destinations is not served on scheduler at version 1.9" in str(reason)
    assert world.placement.foreign[uuid] == {(node("a"), "VGPU"): 1}, "they stay"


class EmptiedPlacement(MovingPlacement):
    """Another client removes what a consumer has just before it is read."""

    @serves(GetAllocations)
    def get_allocations(self, message: GetAllocations) -> Consumer:
        held = self.model.holders[message.consumer_uuid]
        wanted = Store.wanted({}, held.generation, project_id="p", user_id="u")
        self.carry_out(PutAllocations(request_id=ids.fresh(), consumer_uuid=message.consumer_uuid, wanted=wanted))
        return super().get_allocations(message)


def test_a_build_whose_consumer_has_lost_its_allocations_meanwhile_fails_with_that_reason(world: MovingWorld) -> None:
    world.replace(EmptiedPlacement())
    uuid = build_on_host_a(world, HeldOnHostA(world.placement))

    assert "its allocations have been released in the meantime" in str(world.becomes(uuid, "error").reason)
