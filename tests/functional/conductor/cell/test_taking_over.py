"""Operations of conductors that have died or were stopped for a while."""

import threading
import time

import pytest
from sqlalchemy import text
from support.conductor.builders import CALL_TIMEOUT, FakeAgent, FakePlacement, World, wait_until
from support.conductor.moving_instances import shelve

from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import AcknowledgeRequests, BuildOnHost, Claimed, Done, SwapClaim


@pytest.mark.short_calls
def test_what_a_dead_super_conductor_had_is_gone_on_with_when_its_lease_has_run_out(world: World) -> None:
    world.stop("cell")
    [uuid] = world.build()
    wait_until(lambda: uuid in world.placement.held)
    world.die("super", "conductor", lease=1.0)
    died = time.monotonic()

    world.start("super")
    world.start("cell")

    world.becomes(uuid, "active")
    assert time.monotonic() - died >= 1.0
    assert len({asked.request_id for asked in world.scheduler.asked}) == 1


@pytest.mark.short_calls
def test_what_a_dead_cell_conductor_had_is_gone_on_with_when_its_lease_has_run_out(world: World) -> None:
    class Refuses(FakeAgent):
        away = True

        @serves(BuildOnHost)
        def build_instance(self, message: BuildOnHost) -> Done:
            if self.away:
                time.sleep(CALL_TIMEOUT * 1.2)
            return super().build_instance(message)

    agent = world.put(Refuses(world.bus))
    [uuid] = world.build()
    wait_until(lambda: bool(world.pending("cell")))
    world.die("cell", "cell", lease=1.0)
    agent.away = False

    world.start("cell")

    instance = world.becomes(uuid, "active")
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "active")]
    assert len(agent.guests) == 1


def test_an_operation_at_a_step_of_a_newer_release_is_let_go_and_not_taken_again(world: World) -> None:
    # Then it looks every half second for what is due.
    world.restart("cell", lease_seconds=1.0)
    world.agent.deaf = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    shelve(world, uuid)
    wait_until(lambda: world.pending("cell", "AND kind = 'shelve' AND tries > 0") == 1)
    # Nobody has it while it is changed: whoever had it finds that the step is another one by now.
    change(world, "UPDATE cell_operations SET step = 'pause', step_number = step_number + 1, due_at = 0")

    # Moved by a message, it is let go by the conductor that finds its step.
    shelve(world, uuid)

    wait_until(lambda: world.pending("cell", "AND step = 'pause' AND lease_owner IS NULL") == 1)
    lease = leases(world)
    time.sleep(1.6)
    assert leases(world) == lease
    assert world.pending("cell", "AND step = 'pause' AND tries = 0 AND lease_owner IS NULL") == 1
    world.agent.deaf = set()
    change(world, "UPDATE cell_operations SET step = 'destroy', step_number = step_number + 1")
    world.becomes(uuid, "shelved")


def change(world: World, statement: str) -> None:
    database = Database(world.conf.database.connection, "test")
    try:
        database.write(lambda connection: connection.execute(text(f"{statement} WHERE kind = 'shelve'")))
    finally:
        database.close()


def leases(world: World) -> list[tuple[int, int]]:
    database = Database(world.conf.database.connection, "test")
    query = text("SELECT lease_number, tries FROM cell_operations WHERE kind = 'shelve'")
    try:
        return [tuple(row) for row in database.read(lambda connection: connection.execute(query).all())]
    finally:
        database.close()


def test_a_conductor_that_comes_back_in_the_middle_of_a_step_finds_itself_superseded(world: World) -> None:
    class TakenOver(FakePlacement):
        """While the first swap is under way, its operation changes hands, is done, and goes on."""

        swaps = 0

        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            self.swaps += 1
            answer = super().swap_claim(message)
            if self.swaps == 1:
                world.lose_leases("cell")
                wait_until(lambda: self.swaps == 2 and len(world.agent.taken) == 2)
            return answer

    placement = TakenOver()
    world.conf.set_override("call_timeout", 10.0, group="rpc")
    world.put(placement)
    world.restart("cell", workers=4)
    world.start("cell", "another")
    world.agent.failing = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    time.sleep(0.5)
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]
    assert world.placement.held[uuid].claim_id == world.show(uuid).claim_id
    assert len(world.agent.guests) == 1
    assert len(world.agent.taken) == 2


class AcknowledgesNothing(FakePlacement):
    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    @serves(AcknowledgeRequests)
    def acknowledge_requests(self, message: AcknowledgeRequests) -> Done:
        self.asked.set()
        self.go_on.wait(60)
        return super().acknowledge_requests(message)


def test_a_conductor_stops_in_time_while_the_placement_role_takes_no_acknowledgements(world: World) -> None:
    placement = world.put(AcknowledgesNothing())
    [uuid] = world.build()
    world.becomes(uuid, "active")
    assert placement.asked.wait(60)
    begun = time.monotonic()
    world.stop("super")
    world.stop("cell")
    took = time.monotonic() - begun
    placement.go_on.set()
    # Each has ten seconds until it is ended by force, and a call to the placement role twenty.
    assert took < 18.0
