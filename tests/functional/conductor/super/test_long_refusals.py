"""Test that an instance that was not placed is free again, however long the scheduler's refusal is."""

from collections.abc import Callable
from typing import Any

import pytest
from support.conductor.builders import FakeScheduler, wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.moving_world import MovingWorld

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import MigrateInstance, SelectDestinations, ShelveInstance, UnshelveInstance
from moorage.messages.wire import Mutation
from moorage.model import LONGEST_TEXT, Selection


class LongRefusals(FakeScheduler):
    """Refuses every request, with more words than a cell takes."""

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        raise errors.InvalidRequest(path="$", reason="x" * LONGEST_TEXT)


class OnceMisread(FakeCell):
    """Refuses the first message that cancels as malformed."""

    def once(self, message: Mutation[Any], work: Callable[[], Any]) -> Any:
        if message.method.startswith("cancel_") and message.method not in self.methods():
            self.received.append(message)
            raise errors.InvalidRequest(path="$", reason="it is garbled")
        return super().once(message, work)


@pytest.mark.parametrize("kind", [FakeCell, OnceMisread])
@pytest.mark.parametrize("state", ["active", "shelved"])
def test_an_instance_is_free_again_after_a_refusal_that_is_longer_than_its_cell_takes(
    world: MovingWorld, kind: type[FakeCell], state: str
) -> None:
    uuid = world.active()
    cell = world.replace_cell(kind(world.placement))
    if state == "shelved":
        world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    world.replace(LongRefusals(world.placement))

    if state == "shelved":
        world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    else:
        world.order(MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid))

    wait_until(lambda: world.pending("conductor") == 0)
    assert cell.instances[uuid].state == state
    assert [migration.state for migration in cell.migrations.values()] == ["failed"] * (state == "active")
