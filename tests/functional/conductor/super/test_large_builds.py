"""Test builds with large request specs: the broker accepts every message to their cell, or the order is refused."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from msgspec import structs
from support.conductor.builders import wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.moving_world import MovingPlacement, MovingWorld

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.bus.message_size import MAX_MESSAGE
from moorage.messages import (
    BuildInCell,
    BuildInstances,
    DeleteAllocations,
    Done,
    ListInstances,
    ListOperations,
    RebuildInstance,
    ResizeInstance,
    ShowInstance,
)
from moorage.messages.wire import Mutation, R, encode
from moorage.model import Flavor, Image, RequestSpec, ResourceGroup

#: The request specs of this number of instances have 24 MiB, and RabbitMQ 4 accepts messages of 16 MiB.
COUNT = 48
PROPERTIES = {f"p{number}": "x" * 4096 for number in range(127)}
SMALL = Flavor(vcpus=1, memory_mb=1024)
SPEC = RequestSpec(project_id="p", user_id="u", flavor=SMALL, image=Image(properties=PROPERTIES))


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


class AwayOnce(MovingPlacement):
    """Is away once, when it is to release the last one of the instances."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.last = last
        self.asked: Counter[str] = Counter()

    def once(self, message: Mutation[Any], work: Callable[[], R]) -> R:
        if isinstance(message, DeleteAllocations):
            self.asked[message.consumer_uuid] += 1
            if message.consumer_uuid == self.last and self.asked[self.last] == 1:
                raise errors.StoreUnavailable(schema="main", reason="it is away")
        return super().once(message, work)


def test_instances_that_a_cell_has_refused_are_released_in_parts_so_that_an_interruption_repeats_only_one(
    world: MovingWorld,
) -> None:
    uuids = [ids.fresh() for _ in range(COUNT)]
    placement = world.replace(AwayOnce(uuids[-1]))
    world.cell.refusing["build_instances"] = "it takes nothing"

    world.build(*uuids)

    wait_until(lambda: uuids[-1] in placement.deleted)
    wait_until(lambda: world.pending("conductor") == 0)
    assert placement.deleted == set(uuids)
    assert placement.asked[uuids[-1]] == 2
    assert placement.asked[uuids[0]] == 1
    assert {world.show(uuid).reason for uuid in uuids} == {"Not possible now: it takes nothing."}


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


# --- Limits of request specs ------------------------------------------------------------------------------------------

#: More than a request spec may have.
LARGE = {f"p{number}": "x" * 4096 for number in range(200)}
#: Almost as much as a message may have.
VERY_LARGE = ResourceGroup(any_of=(tuple(f"CUSTOM_{'X' * 200}_{number}" for number in range(50_000)),))


@pytest.mark.parametrize(
    ("instances", "spec"),
    [
        (1, structs.replace(SPEC, image=Image(properties=LARGE))),
        (1000, structs.replace(SPEC, image=Image(properties=LARGE))),
        (1000, structs.replace(SPEC, image=Image(properties=dict(islice(LARGE.items(), 20))))),
        (1, structs.replace(SPEC, groups={"_port": VERY_LARGE})),
    ],
    ids=["large", "large and many", "many", "very large"],
)
def test_a_build_whose_specs_are_too_large_is_refused_and_nothing_is_recorded(
    world: MovingWorld, instances: int, spec: RequestSpec
) -> None:
    uuids = tuple(ids.fresh() for _ in range(instances))
    with pytest.raises(errors.InvalidRequest) as refusal:
        world.order(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=uuids))
    assert refusal.value.path == "$.request_spec"
    assert world.order(ListInstances()) == []
    assert world.order(ListOperations(ended=True)) == []


def test_a_build_may_ignore_ten_thousand_hosts(world: MovingWorld) -> None:
    spec = structs.replace(SPEC, image=Image(), ignore_hosts=tuple(f"host{number:0>40}" for number in range(10_000)))
    [uuid] = world.order(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(ids.fresh(),)))
    world.becomes(uuid, "active")
    wait_until(lambda: world.pending("conductor") == 0)
    shown = world.order(ShowInstance(instance_uuid=uuid, with_request=True))
    assert shown.request_spec == spec


def test_a_resize_and_a_rebuild_with_too_large_a_part_of_a_spec_are_refused(world: MovingWorld) -> None:
    uuid = world.active()
    flavor = structs.replace(SMALL, extra_specs=LARGE)
    with pytest.raises(errors.InvalidRequest, match=r"\$\.flavor"):
        world.order(ResizeInstance(request_id=ids.fresh(), instance_uuid=uuid, flavor=flavor))
    with pytest.raises(errors.InvalidRequest, match=r"\$\.image"):
        world.order(RebuildInstance(request_id=ids.fresh(), instance_uuid=uuid, image=Image(properties=LARGE)))
    assert world.show(uuid).state == "active"


def test_a_repeated_build_is_answered_although_more_attempts_for_each_instance_are_configured_by_now(
    world: MovingWorld,
) -> None:
    uuids = tuple(ids.fresh() for _ in range(101))
    spec = RequestSpec(project_id="p", user_id="u", flavor=SMALL)
    message = BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=uuids)
    answer = world.order(message)
    wait_until(lambda: world.pending("conductor") == 0)
    world.restart("super", max_attempts=100)

    assert world.order(message) == answer
    with pytest.raises(errors.InvalidRequest, match="order at most 100 instances"):
        world.order(structs.replace(message, request_id=ids.fresh()))
