"""Test orders to guests of a host that is served by another agent than before, as after an agent was renamed."""

from collections.abc import Iterator

import pytest
from msgspec import structs
from support.conductor.builders import World, report
from support.conductor.fake_agent import FakeAgent
from support.conductor.moving_instances import Mover, becomes, built, rebuild, shelve, shown

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import BuildOnHost, DestroyOnHost, Done, RebuildOnHost, ReportHostsInCell, StartOnHost, StopOnHost


class FormerAgent(FakeAgent):
    """Builds guests until it is gone, but carries out no other order for host `a`."""

    is_gone = False
    #: It runs, and has lost host `a` to another agent.
    runs_without = False

    @serves(BuildOnHost)
    def build_instance(self, message: BuildOnHost) -> Done:
        if self.runs_without:
            self.require(message.host)
        if self.is_gone and message.host == "a":
            raise errors.NoReply(topic="host a", method=message.method, seconds=0.0)
        return super().build_instance(message)

    @serves(DestroyOnHost)
    def destroy_instance(self, message: DestroyOnHost) -> Done:
        self.require(message.host)
        return super().destroy_instance(message)

    def carry_out(self, message: StopOnHost | StartOnHost | RebuildOnHost, action: str) -> None:
        self.require(message.host)
        super().carry_out(message, action)

    def require(self, host: str) -> None:
        if host == "a":
            raise errors.HostNotFound(name=host)


@pytest.fixture
def server(world: World) -> str:
    """Return an instance that is active on a host whose agent is then gone."""
    former = world.replace(FormerAgent(world.bus))
    uuid = built(world)
    former.is_gone = True
    return uuid


@pytest.fixture
def current_agent(world: World, server: str) -> Iterator[FakeAgent]:
    """Serve the host of the instance by another agent, and return that agent."""
    agent = FakeAgent(world.bus)
    agent.guests = world.agent.guests
    bus_server = world.bus.server(world.compute, "current", [agent], 4)
    bus_server.start()
    described = structs.replace(report("a"), agent="current")
    world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="current", hosts=(described,)))
    yield agent
    bus_server.stop()
    agent.threads.shutdown()


def test_a_guest_is_destroyed_by_the_current_agent_of_its_host(
    world: World, server: str, current_agent: FakeAgent
) -> None:
    [attempt] = shown(world, server).attempts

    world.delete(server)

    becomes(world, server, "deleted")
    assert current_agent.destroyed == [attempt.attempt_id]
    assert world.placement.hosts_held() == set()


def test_a_guest_is_rebuilt_moved_and_shelved_by_the_current_agent_of_its_host(
    world: World, server: str, current_agent: FakeAgent
) -> None:
    rebuild(world, server, "other")
    assert becomes(world, server, "active").reason is None
    assert [type(order) for order in current_agent.orders] == [RebuildOnHost]
    move = Mover(world, server)
    move.move("b")
    becomes(world, server, "moved")
    move.end("revert")
    becomes(world, server, "active")

    shelve(world, server)

    becomes(world, server, "shelved")
    assert world.placement.hosts_held() == set()


@pytest.mark.usefixtures("server")
def test_a_build_falls_back_when_the_agent_on_record_does_not_have_the_host(world: World) -> None:
    assert isinstance(world.agent, FormerAgent)
    world.agent.runs_without = True

    [uuid] = world.build()

    assert becomes(world, uuid, "active").host == "b"


@pytest.mark.usefixtures("server")
def test_a_guest_is_built_by_the_current_agent_of_its_host_though_the_former_one_does_not_have_it_any_more(
    world: World, current_agent: FakeAgent
) -> None:
    assert isinstance(world.agent, FormerAgent)
    world.agent.runs_without = True

    [uuid] = world.build()

    assert becomes(world, uuid, "active").host == "a"
    assert [order.instance_uuid for order in current_agent.builds] == [uuid]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("hosts", [["a"], ["b", "a"]])
def test_a_guest_is_built_by_the_current_agent_of_its_host_though_a_scheduler_has_named_the_former_one(
    world: World, current_agent: FakeAgent, hosts: list[str]
) -> None:
    world.scheduler.hosts = hosts
    world.agent.failing = {"b"}

    [uuid] = world.build()

    assert becomes(world, uuid, "active").host == "a"
    assert [order.instance_uuid for order in current_agent.builds] == [uuid]
