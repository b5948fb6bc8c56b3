"""Test the abort of a live migration during a swap, while the former host has begun the build after all."""

from collections.abc import Callable

from support.conductor.builders import FakePlacement, World, node, wait_until
from support.conductor.fake_agent import FakeAgent
from support.conductor.moving_instances import Mover, becomes, built

from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import BuildOnHost, Claimed, Done, SwapClaim


class BuildsAndRefuses(FakeAgent):
    """Begins a build on host `b`, and answers that there is no such host."""

    @serves(BuildOnHost)
    def build_instance(self, message: BuildOnHost) -> Done:
        done = super().build_instance(message)
        if message.host == "b":
            wait_until(lambda: message.attempt_id in self.guests)
            raise errors.HostNotFound(name="b")
        return done


class Interrupted(FakePlacement):
    """Calls a function before each swap."""

    def __init__(self, before: Callable[[], object]) -> None:
        super().__init__()
        self.before = before

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        self.before()
        return super().swap_claim(message)


def test_a_live_migration_is_aborted_during_a_swap_although_the_former_host_takes_up_the_build(world: World) -> None:
    placement = world.replace(Interrupted(lambda: move.end("abort")))
    world.replace(BuildsAndRefuses(world.bus))
    move = Mover(world, built(world), "live-migration")
    world.agent.may_finish.clear()

    move.move("b", "c")

    wait_until(lambda: any(isinstance(call, SwapClaim) for call in placement.calls))
    wait_until(lambda: world.pending("cell", "AND step = 'swap'") == 0)
    world.agent.may_finish.set()
    assert becomes(world, move.uuid, "active").host == "a"
    assert (move.shown().state, move.shown().reason) == ("failed", "it was broken off")
    wait_until(lambda: world.pending("cell") == 0)
    assert placement.hosts_held() == {node("a")}
    assert {guest.host for guest in world.agent.guests.values()} == {"a"}
