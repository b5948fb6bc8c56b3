"""Test orders that arrive after their senders have abandoned them and ordered something else: they do nothing.

An order names the last order or the migration that its sender knew, and is refused if that has changed. Orders that
name only their subject (builds, deletes, and the writes of operators) are refused after their deadline.
"""

from collections.abc import Callable
from typing import Any

import pytest
from support.bus.deliveries import Delivery
from support.bus.late_messages import PatientCloud, Recorder, snapshot
from support.bus.late_stories import Story
from support.bus.patient_story import patient_cloud, recorder_of_calls, story_of_a_server  # noqa: F401 - fixtures
from support.operations.port_room import PORT, bandwidth
from support.operations.random_aftermath import settle
from support.operations.room import LARGE, Room

from moorage import errors, ids
from moorage.messages import (
    AbortMigration,
    AttachResource,
    BuildInstances,
    ConfirmMigration,
    CreateHostAggregate,
    DeleteInstance,
    DetachResource,
    EnsureTrait,
    EvacuateInstance,
    LiveMigrateInstance,
    MigrateInstance,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    SetHost,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation
from moorage.model import Image


@pytest.fixture
def give_up(cloud: PatientCloud, recorder: Recorder) -> Callable[[Mutation[Any]], Delivery]:
    """Return a function that sends an order which does not arrive before its sender gives up; it returns the order."""

    def given_up(message: Mutation[Any]) -> Delivery:
        with (
            recorder.losing(lambda delivery: delivery.arguments.get("request_id") == message.request_id) as held,
            pytest.raises(errors.NoReply),
        ):
            cloud.impatient(message.topic).call(message)
        [delivery] = held
        return delivery

    return given_up


GiveUp = Callable[[Mutation[Any]], Delivery]


def refusal(delivery: Delivery, room: Room, seconds_left: float | None = None) -> str:
    """Deliver an order late; return the error that refuses it, and fail if it changes anything."""
    settle(room.cloud)
    before = snapshot(room.cloud)
    failure = delivery.deliver(30.0, seconds_left)["failure"]
    assert failure is not None, "it is accepted"
    settle(room.cloud)
    assert before.differs(snapshot(room.cloud)) == []
    [name] = [one for one in ("StaleOrder", "DeadlineExceeded", "InvalidState") if f'"{one}"' in failure]
    return name


def order(story: Story, kind: Callable[..., Mutation[Any]], **fields: Any) -> Mutation[Any]:
    """Return an order about the server that names the last one."""
    last = story.room.show(story.uuid).last_order
    assert last is not None
    return kind(request_id=ids.fresh(), instance_uuid=story.uuid, last_order=last, **fields)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (RebuildInstance, {"image": Image(id="another")}),
        (MigrateInstance, {}),
        (ResizeInstance, {"flavor": LARGE}),
        (LiveMigrateInstance, {}),
        (ShelveInstance, {}),
        (AttachResource, {"suffix": PORT, "group": bandwidth()}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_an_order_that_arrives_after_its_sender_has_ordered_something_else_does_nothing(
    story: Story, give_up: GiveUp, kind: type[Mutation[Any]], fields: dict[str, Any]
) -> None:
    late = give_up(order(story, kind, **fields))
    story.rebuild()
    assert refusal(late, story.room) == "StaleOrder"


def test_an_abandoned_detachment_does_not_detach_a_port_that_was_attached_again(story: Story, give_up: GiveUp) -> None:
    story.attach()
    late = give_up(order(story, DetachResource, suffix=PORT))
    story.detach()
    story.attach()
    assert refusal(late, story.room) == "StaleOrder"
    story.detach()


def test_an_abandoned_evacuation_does_nothing_when_the_host_is_down_again(story: Story, give_up: GiveUp) -> None:
    late = give_up(order(story, EvacuateInstance))
    story.rebuild()
    host = story.room.show(story.uuid).host
    role = next(role for role, name in story.room.hosts.items() if name == host)
    story.room.force_down(role)
    assert refusal(late, story.room) == "StaleOrder"
    story.room.force_down(role, False)


def test_an_abandoned_unshelving_does_not_unshelve_a_server_that_was_shelved_again(
    story: Story, give_up: GiveUp
) -> None:
    story.shelve()
    late = give_up(order(story, UnshelveInstance))
    story.unshelve()
    story.shelve()
    assert refusal(late, story.room) == "StaleOrder"
    story.unshelve()


@pytest.mark.parametrize(("late", "instead"), [(ConfirmMigration, "revert"), (RevertMigration, "confirm")])
def test_an_abandoned_confirm_or_revert_does_not_end_the_next_move(
    story: Story, give_up: GiveUp, late: type[Mutation[Any]], instead: str
) -> None:
    story.begin_to_move()
    end = {
        "request_id": ids.fresh(),
        "instance_uuid": story.uuid,
        "migration_uuid": story.room.migration_of(story.uuid),
    }
    delivery = give_up(late(**end))
    story.end_move(instead)
    story.begin_to_move()
    assert refusal(delivery, story.room) == "StaleOrder"
    story.end_move("revert")


def test_an_abandoned_abort_does_not_abort_the_next_live_migration(story: Story, give_up: GiveUp) -> None:
    first = story.begin_to_hang()
    late = give_up(AbortMigration(request_id=ids.fresh(), instance_uuid=story.uuid, migration_uuid=first))
    story.abort_move(first)
    second = story.begin_to_hang()
    failure = late.deliver(30.0)["failure"]
    assert '"StaleOrder"' in failure
    assert story.room.show(story.uuid).migration_uuid == second
    story.abort_move(second)


@pytest.mark.parametrize("kind", [BuildInstances, DeleteInstance, SetHost, CreateHostAggregate, EnsureTrait])
def test_an_order_that_names_only_its_subject_is_refused_after_its_deadline(
    story: Story, give_up: GiveUp, kind: type[Mutation[Any]]
) -> None:
    room, new = story.room, ids.fresh()
    fields: dict[type[Mutation[Any]], dict[str, Any]] = {
        BuildInstances: {"request_spec": room.spec(), "instance_uuids": (new,)},
        DeleteInstance: {"instance_uuid": story.uuid},
        SetHost: {"service_host": room.hosts["source"], "forced_down": True},
        CreateHostAggregate: {"name": new},
        EnsureTrait: {"name": f"CUSTOM_{new.upper().replace('-', '_')}"},
    }
    late = give_up(kind(request_id=ids.fresh(), **fields[kind]))
    assert refusal(late, room, seconds_left=0.0) == "DeadlineExceeded"
