"""Test builds of many instances with large request specs: the broker accepts every message to their cell."""

import json

from support.conductor.builders import wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.moving_world import MovingWorld

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.bus.message_size import MAX_MESSAGE
from moorage.messages import BuildInCell, BuildInstances, Done
from moorage.messages.wire import encode
from moorage.model import Flavor, Image, RequestSpec

#: The request specs of this number of instances have 24 MiB, and RabbitMQ 4 accepts messages of 16 MiB.
COUNT = 24
PROPERTIES = {f"p{number}": "x" * 4096 for number in range(256)}
SPEC = RequestSpec(
    project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024), image=Image(properties=PROPERTIES)
)


def order(world: MovingWorld) -> list[str]:
    uuids = tuple(ids.fresh() for _ in range(COUNT))
    return world.order(BuildInstances(request_id=ids.fresh(), request_spec=SPEC, instance_uuids=uuids))


def handed_over(world: MovingWorld) -> list[BuildInCell]:
    return [message for message in world.cell.received if isinstance(message, BuildInCell)]


def size(message: BuildInCell) -> int:
    """Return the bytes of a message on the bus, where the library encodes it twice."""
    return len(json.dumps(json.dumps(encode(message))))


def test_a_build_is_handed_over_in_messages_that_the_broker_takes(world: MovingWorld) -> None:
    uuids = order(world)

    wait_until(lambda: set(uuids) <= set(world.cell.instances))
    wait_until(lambda: world.pending("conductor") == 0)
    messages = handed_over(world)
    assert max(size(message) for message in messages) <= MAX_MESSAGE
    assert [build.instance_uuid for message in messages for build in message.builds] == uuids
    assert len({message.request_id for message in messages}) == len(messages)


class RefusingAPart(FakeCell):
    """Refuses the second message with builds, and accepts it when it is repeated."""

    @serves(BuildInCell)
    def build_instances(self, message: BuildInCell) -> Done:
        if len(self.received) == 1:
            self.received.append(message)
            raise errors.InvalidState(reason="not now")
        return super().build_instances(message)


def test_a_build_of_which_the_cell_has_refused_a_part_is_sent_again(world: MovingWorld) -> None:
    world.replace_cell(RefusingAPart(world.placement))
    uuids = order(world)

    wait_until(lambda: set(uuids) <= set(world.cell.instances))
    wait_until(lambda: world.pending("conductor") == 0)
    assert {world.show(uuid).state for uuid in uuids} == {"active"}
    assert set(world.placement.held) == set(uuids)
