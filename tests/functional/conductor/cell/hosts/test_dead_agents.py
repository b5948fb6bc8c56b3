"""Test that an agent which answers no orders does not hold up builds on the hosts of other agents."""

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from support.conductor.builders import CALL_TIMEOUT, CELL_1, FakeScheduler, World, wait_until
from support.conductor.fake_agent import FakeAgent

from moorage.bus.bus import serves
from moorage.messages import BuildOnHost, Done, SelectDestinations
from moorage.model import Selection

#: Builds on the hosts of the agent that hangs: more than a conductor has workers.
MANY = 40


class TwoAgents(FakeScheduler):
    """Places instances on a host of the agent that the test chooses."""

    agent = "agent"

    def decide(self, message: SelectDestinations) -> list[list[Selection]]:
        return [[msgspec.structs.replace(first, agent=self.agent)] for [first, *_] in super().decide(message)]


class HangingAgent(FakeAgent):
    """Answers no order to build until a test sets ``go_on``."""

    def __init__(self, world: World) -> None:
        super().__init__(world.bus)
        self.go_on = threading.Event()

    @serves(BuildOnHost)
    def build_instance(self, message: BuildOnHost) -> Done:
        self.go_on.wait(60)
        return super().build_instance(message)


@pytest.fixture
def hanging(world: World) -> Iterator[HangingAgent]:
    agent = HangingAgent(world)
    server = world.bus.server(f"compute.{CELL_1.uuid}", "hanging", [agent], 4)
    server.start()
    yield agent
    agent.go_on.set()
    server.stop()
    agent.threads.shutdown()


def build_some(world: World) -> float:
    begun = time.monotonic()
    for _ in range(5):
        world.becomes(world.build()[0], "active")
    return time.monotonic() - begun


def build_beside(world: World, agent: str) -> list[str]:
    """Order more builds on the hosts of an agent than a conductor has workers; later builds go to the other agent."""
    scheduler = world.replace(TwoAgents(world.placement))
    scheduler.agent = agent
    doomed = [world.build()[0] for _ in range(MANY)]
    scheduler.agent = "agent"
    return doomed


@pytest.mark.short_calls
def test_builds_of_other_agents_do_not_wait_for_unanswered_orders(world: World, hanging: HangingAgent) -> None:
    # No call times out meanwhile, so a build that waits for one would take long.
    world.conf.set_override("call_timeout", 30 * CALL_TIMEOUT, group="rpc")
    world.restart("cell")
    doomed = build_beside(world, "hanging")
    assert build_some(world) < 15 * CALL_TIMEOUT
    hanging.go_on.set()
    wait_until(lambda: all(world.show(uuid).state == "active" for uuid in doomed))


@pytest.mark.short_calls
@pytest.mark.parametrize("tries", [1, 3])
def test_builds_of_other_agents_continue_while_orders_time_out(world: World, hanging: HangingAgent, tries: int) -> None:
    timeout = 2 * CALL_TIMEOUT
    world.conf.set_override("call_timeout", timeout, group="rpc")
    world.restart("cell", max_unanswered_retries=tries)
    alone = build_some(world)
    doomed = build_beside(world, "hanging")
    at_first = build_some(world)
    time.sleep(timeout)
    later = build_some(world)

    # Five builds that each wait for an order take longer.
    assert at_first <= 3 * alone + 2 * timeout, (alone, at_first)
    assert later <= 3 * alone + 2 * timeout, (alone, later)
    hanging.go_on.set()
    wait_until(lambda: all(world.show(uuid).state in ("active", "error") for uuid in doomed))
    wait_until(lambda: world.pending("cell") == 0)
