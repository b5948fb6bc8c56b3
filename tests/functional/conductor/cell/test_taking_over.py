"""Test operations of conductors that have died or were paused."""

import threading
import time

import pytest
from sqlalchemy import text
from support.conductor.builders import FakeAgent, FakePlacement, World, wait_until
from support.conductor.moving_instances import shelve
from support.processes.stopwatch import Stopwatch

from moorage.bus.bus import serves
from moorage.messages import AcknowledgeRequests, BuildOnHost, Claimed, Done, SwapClaim


@pytest.mark.short_calls
def test_a_build_of_a_dead_super_conductor_continues_when_its_lease_has_expired(world: World) -> None:
    world.stop("cell")
    [uuid] = world.build()
    wait_until(lambda: uuid in world.placement.held)
    world.die("super", "conductor", lease=1.0)
    died = time.monotonic()

    world.start("super")
    world.start("cell")

    world.becomes(uuid, "active")
    assert time.monotonic() - died >= 1.0
    assert len({request.request_id for request in world.scheduler.requests}) == 1


@pytest.mark.short_calls
def test_a_build_of_a_dead_cell_conductor_continues_when_its_lease_has_expired(world: World) -> None:
    class SlowAgent(FakeAgent):
        away = True

        @serves(BuildOnHost)
        def build_instance(self, message: BuildOnHost) -> Done:
            wait_until(lambda: not self.away, "the other conductor", 60.0)
            return super().build_instance(message)

    agent = world.replace(SlowAgent(world.bus))
    [uuid] = world.build()
    wait_until(lambda: bool(world.pending("cell")))
    world.die("cell", "cell", lease=1.0)
    agent.away = False

    world.start("cell")

    instance = world.becomes(uuid, "active")
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "active")]
    assert len(agent.guests) == 1


def test_an_operation_at_a_step_of_a_newer_release_is_released_and_not_taken_again(world: World) -> None:
    # With this lease, the conductor looks for due operations every half second.
    world.restart("cell", lease_seconds=1.0)
    world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    shelve(world, uuid)
    wait_until(lambda: world.pending("cell", "AND kind = 'shelve' AND tries > 0") == 1)
    # A conductor that works on it now finds that the step has changed, and records nothing.
    change(world, "UPDATE cell_operations SET step = 'pause', step_number = step_number + 1, due_at = 0")

    # A message makes it due; the conductor that does not know its step releases it.
    shelve(world, uuid)

    wait_until(lambda: world.pending("cell", "AND step = 'pause' AND lease_owner IS NULL") == 1)
    lease = leases(world)
    time.sleep(1.6)
    assert leases(world) == lease
    assert world.pending("cell", "AND step = 'pause' AND tries = 0 AND lease_owner IS NULL") == 1
    world.agent.no_reply_to_destroy = set()
    change(world, "UPDATE cell_operations SET step = 'destroy', step_number = step_number + 1")
    world.becomes(uuid, "shelved")


def change(world: World, statement: str) -> None:
    world.records.write(lambda connection: connection.execute(text(f"{statement} WHERE kind = 'shelve'")))


def leases(world: World) -> list[tuple[int, int]]:
    query = text("SELECT lease_number, tries FROM cell_operations WHERE kind = 'shelve'")
    return [tuple(row) for row in world.records.read(lambda connection: connection.execute(query).all())]


def test_a_conductor_that_was_superseded_in_the_middle_of_a_step_records_nothing(world: World) -> None:
    class TakenOver(FakePlacement):
        """During the first swap, another conductor takes over the operation and carries out the step."""

        swaps = 0

        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            self.swaps += 1
            answer = super().swap_claim(message)
            if self.swaps == 1:
                world.lose_leases()
                wait_until(lambda: self.swaps == 2 and len(world.agent.builds) == 2)
            return answer

    world.conf.set_override("call_timeout", 10.0, group="rpc")
    world.replace(TakenOver())
    world.restart("cell", workers=4)
    world.start("cell", "another")
    world.agent.failing = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    time.sleep(0.5)
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]
    assert world.placement.held[uuid].claim_id == world.show(uuid).claim_id
    assert len(world.agent.guests) == 1
    assert len(world.agent.builds) == 2


class AcknowledgesNothing(FakePlacement):
    def __init__(self) -> None:
        super().__init__()
        self.called, self.go_on = threading.Event(), threading.Event()

    @serves(AcknowledgeRequests)
    def acknowledge_requests(self, message: AcknowledgeRequests) -> Done:
        self.called.set()
        self.go_on.wait(60)
        return super().acknowledge_requests(message)


def test_a_conductor_stops_in_time_while_the_placement_role_takes_no_acknowledgements(world: World) -> None:
    placement = world.replace(AcknowledgesNothing())
    [uuid] = world.build()
    world.becomes(uuid, "active")
    assert placement.called.wait(60)
    watch = Stopwatch()
    world.stop("super")
    world.stop("cell")
    took = watch.seconds
    placement.go_on.set()
    # Each has ten seconds before it is ended by force, and a call to the placement role takes twenty.
    assert took < 18.0
