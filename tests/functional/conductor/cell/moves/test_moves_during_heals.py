"""Test that a move is neither confirmed nor reverted while its instance is being healed."""

from typing import Literal

import pytest
from support.conductor.builders import FakePlacement, World, wait_until
from support.conductor.moving_instances import Mover, becomes, built, shown

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import HealConsumers, Healed, HealInCell
from moorage.model import SeenConsumer


class SlowHeals(FakePlacement):
    """Answers that a heal is in progress until ``is_ready`` is set."""

    is_ready = False

    @serves(HealConsumers)
    def heal(self, message: HealConsumers) -> Healed:
        if not self.is_ready:
            raise errors.RequestInProgress(request_id=message.request_id)
        return Healed(generations={}, released={})


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_move_does_not_end_while_its_instance_is_being_healed(
    world: World, outcome: Literal["confirm", "revert"]
) -> None:
    placement = world.replace(SlowHeals())
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    moved = becomes(world, uuid, "moved")
    seen = SeenConsumer(generation=placement.generations[uuid], claim_id=moved.claim_id)
    begun = world.cell_call(HealInCell(request_id=ids.fresh(), instances={uuid: {uuid: seen}}))
    assert list(begun.operations) == [uuid]

    with pytest.raises(errors.InvalidState, match=f"heal of instance {uuid}, is under way"):
        move.end(outcome)

    assert (move.shown().state, shown(world, uuid).state) == ("moved", "moved")
    placement.is_ready = True
    wait_until(lambda: world.pending("cell") == 0)
    move.end(outcome)
    assert becomes(world, uuid, "active").host == ("b" if outcome == "confirm" else "a")
