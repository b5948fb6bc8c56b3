"""Test builds of instances whose consumers are placed already."""

import threading

from support.conductor.builders import node
from support.conductor.moving_world import MovingPlacement, MovingWorld

from moorage import ids
from moorage.bus.bus import serves
from moorage.messages import GetAllocations
from moorage.model import Consumer


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
