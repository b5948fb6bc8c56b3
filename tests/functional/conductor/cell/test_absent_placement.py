"""Test a cell's conductor while the placement role does not answer."""

import threading
import time

from support.conductor.builders import FakePlacement, World, wait_until

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import AcceptClaim, Done, ShowInCell


class SilentPlacement(FakePlacement):
    """Answers no request to accept a claim before the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_accept = threading.Event()
        self.waiting = 0

    @serves(AcceptClaim)
    def accept_claim(self, message: AcceptClaim) -> Done:
        self.waiting += 1
        assert self.may_accept.wait(60)
        return super().accept_claim(message)


def test_attempts_that_wait_for_the_placement_role_leave_the_cell_threads_for_other_messages(world: World) -> None:
    world.conf.set_override("threads", 4, group="rpc")
    world.conf.set_override("call_timeout", 4.0, group="rpc")
    world.restart("cell")
    silent = SilentPlacement()
    world.replace(silent)
    world.agent.may_finish.clear()
    uuids = world.build(*(ids.fresh() for _ in range(8)))
    wait_until(lambda: silent.waiting >= 4)

    # The first calls time out. From then on the gate refuses, and the agents ask again.
    wait_until(lambda: _is_refused(world))
    begun = time.monotonic()
    found = world.cell_call(ShowInCell(instance_uuids=tuple(uuids)))
    assert time.monotonic() - begun < 1.0
    assert {one.uuid for one in found} == set(uuids)
    silent.may_accept.set()


def _is_refused(world: World) -> bool:
    try:
        world.agent.accept(world.agent.builds[0])
    except errors.RequestInProgress:
        return True
    except errors.Unavailable:
        return False
    raise AssertionError("the placement role has answered")
