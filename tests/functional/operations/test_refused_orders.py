"""Test that a copy of a refused order is refused too when it arrives, although the order has become possible."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.bus.deliveries import Delivery
from support.bus.late_messages import Recorder, snapshot
from support.bus.late_stories import Story
from support.bus.patient_story import patient_cloud, recorder_of_calls, story_of_a_server  # noqa: F401 - fixtures
from support.operations.port_room import PORT, bandwidth
from support.operations.random_aftermath import settle
from support.operations.room import LARGE

from moorage import errors, ids
from moorage.messages import (
    AbortMigration,
    AddAggregateHost,
    AttachResource,
    ConfirmMigration,
    CreateHostAggregate,
    CreateResourceProvider,
    DetachResource,
    EvacuateInstance,
    LiveMigrateInstance,
    MigrateInstance,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation
from moorage.model import Image


@pytest.fixture
def refuse(story: Story, recorder: Recorder) -> Callable[[Mutation[Any]], Delivery]:
    """Return a function that sends an order which is refused in the current state; it returns the message."""

    def refused(message: Mutation[Any]) -> Delivery:
        recorder.take()
        with pytest.raises((errors.InvalidState, errors.NotFound)):
            story.room.cloud.client(message.topic).call(message)
        [delivery] = [each for each in recorder.take() if each.arguments.get("request_id") == message.request_id]
        return delivery

    return refused


Refuse = Callable[[Mutation[Any]], Delivery]


def order(story: Story, kind: Callable[..., Mutation[Any]], **fields: Any) -> Mutation[Any]:
    return kind(request_id=ids.fresh(), instance_uuid=story.uuid, **fields)


def is_not_accepted(delivery: Delivery) -> None:
    failure = delivery.deliver(30.0, 20.0)["failure"]
    assert failure is not None, "it is accepted"
    assert re.search(r'"(InvalidState|StaleOrder|\w*NotFound)"', failure), failure


def is_refused_again(story: Story, delivery: Delivery) -> None:
    """Deliver a copy in time, and fail if it is accepted or changes anything."""
    settle(story.room.cloud)
    before = snapshot(story.room.cloud)
    is_not_accepted(delivery)
    settle(story.room.cloud)
    assert before.differs(snapshot(story.room.cloud)) == []


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (MigrateInstance, {}),
        (ResizeInstance, {"flavor": LARGE}),
        (LiveMigrateInstance, {}),
        (ShelveInstance, {}),
        (RebuildInstance, {"image": Image(id="another")}),
        (AttachResource, {"suffix": PORT, "group": bandwidth()}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_an_order_refused_while_the_server_was_moved_is_refused_when_it_is_active(
    story: Story, refuse: Refuse, kind: type[Mutation[Any]], fields: dict[str, Any]
) -> None:
    story.begin_to_move()
    copy = refuse(order(story, kind, **fields))
    story.end_move("confirm")
    is_refused_again(story, copy)


@pytest.mark.parametrize("kind", [ConfirmMigration, RevertMigration])
def test_a_confirm_or_revert_without_a_migration_does_not_end_a_later_one(
    story: Story, refuse: Refuse, kind: type[Mutation[Any]]
) -> None:
    copy = refuse(order(story, kind))
    story.begin_to_move()
    is_refused_again(story, copy)
    story.end_move("confirm")


def test_an_abort_without_a_migration_does_not_abort_a_later_one(story: Story, refuse: Refuse) -> None:
    copy = refuse(order(story, AbortMigration))
    migration_uuid = story.begin_to_hang()
    is_not_accepted(copy)
    story.abort_move(migration_uuid)


def test_an_unshelving_refused_while_the_server_was_active_is_refused_when_it_is_shelved(
    story: Story, refuse: Refuse
) -> None:
    copy = refuse(order(story, UnshelveInstance))
    story.shelve()
    is_refused_again(story, copy)
    story.unshelve()


def test_a_detachment_refused_without_a_port_is_refused_when_one_is_attached(story: Story, refuse: Refuse) -> None:
    copy = refuse(order(story, DetachResource, suffix=PORT))
    story.attach()
    is_refused_again(story, copy)
    story.detach()


def test_an_evacuation_that_was_refused_while_the_host_was_up_is_refused_when_it_is_down(
    story: Story, refuse: Refuse
) -> None:
    copy = refuse(order(story, EvacuateInstance))
    host = story.room.show(story.uuid).host
    role = next(role for role, name in story.room.hosts.items() if name == host)
    story.room.force_down(role)
    try:
        is_refused_again(story, copy)
    finally:
        story.room.force_down(role, False)


def test_a_refused_order_that_its_caller_repeats_is_carried_out(story: Story, refuse: Refuse) -> None:
    story.begin_to_move()
    message = order(story, MigrateInstance)
    refuse(message)
    story.end_move("confirm")
    assert story.room.order(message).migration_uuid == story.room.order(message).migration_uuid
    story.room.becomes(story.uuid, "moved")
    story.end_move("confirm")


# --- What operators write ---------------------------------------------------------------------------------------------


def test_adding_a_host_to_an_unknown_aggregate_is_refused_when_the_aggregate_exists(
    story: Story, refuse: Refuse
) -> None:
    host = next(iter(story.room.hosts.values()))
    cell_uuid = story.room.show(story.uuid).cell_uuid
    assert cell_uuid is not None
    copy = refuse(AddAggregateHost(request_id=ids.fresh(), aggregate="late", service_host=host, cell_uuid=cell_uuid))
    story.room.cloud.client("scheduler").call(CreateHostAggregate(request_id=ids.fresh(), name="late"))
    is_refused_again(story, copy)


def test_creating_a_child_of_an_unknown_provider_is_refused_when_the_provider_exists(
    story: Story, refuse: Refuse
) -> None:
    parent = ids.fresh()
    copy = refuse(
        CreateResourceProvider(request_id=ids.fresh(), uuid=ids.fresh(), name="child", parent_provider_uuid=parent)
    )
    story.room.placement.call(CreateResourceProvider(request_id=ids.fresh(), uuid=parent, name="parent"))
    is_refused_again(story, copy)
