"""Test the lists of operations, attempts, residues and unknown guests that operators read."""

import time

import pytest
from support.conductor.builders import World, node, wait_until
from support.conductor.host_reports import return_hosts, start_hosts

from conductor.cell.endpoints.inspection import CellInspection
from conductor.commands.timeline import holdings, timeline
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    ListClaims,
    ListOperations,
    ListOperationsInCell,
    ListStrangers,
    ShowOperation,
)
from moorage.model import Guest
from moorage.model.inspection import OperationSummary


def listed(world: World, *, ended: bool = False, instance: str | None = None) -> list[OperationSummary]:
    return world.bus.client("conductor").call(ListOperations(ended=ended, instance_uuid=instance))


def test_operations_are_listed_while_they_are_under_way_and_ended_ones_on_request(world: World) -> None:
    world.agent.may_finish.clear()
    [uuid] = world.build(request_id="req-1")
    wait_until(lambda: world.waiting() == 1 and world.pending("conductor") == 0)

    [building] = listed(world)

    assert (building.kind, building.subject, building.step, building.state) == ("build", uuid, "wait", "pending")
    assert (building.cell_uuid is not None, building.request_id, building.lease_owner) == (True, "req-1", None)
    assert 0 <= building.idle <= building.age < 60
    world.agent.may_finish.set()
    world.becomes(uuid, "active")
    assert listed(world) == []
    assert [(each.kind, each.cell_uuid is None) for each in listed(world, ended=True)] == [
        ("build", True),
        ("build", False),
    ]


@pytest.mark.parametrize("restarted", [False, True])
def test_operations_are_listed_while_the_placement_role_does_not_answer(world: World, restarted: bool) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.conf.set_override("call_timeout", 3.0, group="rpc")
    world.restart("super")
    own, in_cell = listed(world, ended=True)
    assert (own.cell_uuid, in_cell.cell_uuid is None) == (None, False)
    if restarted:
        world.restart("super")
    world.servers.pop("placement").stop()

    conductor = world.bus.client("conductor", timeout=10.0)
    found = conductor.call(ListOperations(ended=True))

    # A super conductor that has just started knows no cells.
    assert [each.uuid for each in found] == ([own.uuid] if restarted else [own.uuid, in_cell.uuid])
    with pytest.raises(errors.NoReply):
        conductor.call(ShowOperation(uuid=ids.fresh()))


def test_a_build_is_listed_before_its_part_in_the_cell_although_the_cell_answers_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_in_cell = CellInspection.list_operations

    def slowly(cell: CellInspection, message: ListOperationsInCell) -> list[OperationSummary]:
        time.sleep(1.0)
        return list_in_cell(cell, message)

    monkeypatch.setattr(CellInspection, "list_operations", serves(ListOperationsInCell)(slowly))
    world.restart("cell")
    [uuid] = world.build()
    world.becomes(uuid, "active")

    assert [each.cell_uuid is None for each in listed(world, ended=True)] == [True, False]


def test_the_operations_of_an_instance_include_its_build_and_the_cleaning_after_a_failed_attempt(
    world: World,
) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    uuid, other = world.build(ids.fresh(), ids.fresh())
    for each in (uuid, other):
        world.becomes(each, "active")

    [cleaning] = listed(world, instance=uuid)

    assert (cleaning.kind, cleaning.step) == ("clean", "destroy")
    assert {each.kind for each in listed(world, ended=True, instance=uuid)} == {"build", "clean"}
    assert len(listed(world, ended=True, instance=uuid)) == 3
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: listed(world) == [])


@pytest.mark.short_calls
def test_an_operation_of_the_super_conductor_or_of_a_cell_is_shown_by_its_uuid(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    conductor = world.bus.client("conductor")

    for state in listed(world, ended=True):
        assert conductor.call(ShowOperation(uuid=state.uuid)).cell_uuid == state.cell_uuid
    with pytest.raises(errors.NotFound):
        conductor.call(ShowOperation(uuid=ids.fresh()))
    world.stop("cell")
    assert [each.cell_uuid for each in listed(world, ended=True)] == [None]
    with pytest.raises(errors.CellUnreachable):
        conductor.call(ShowOperation(uuid=ids.fresh()))


def test_unknown_guests_are_listed(world: World) -> None:
    unknown = Guest(instance_uuid=ids.fresh(), host="a", attempt_id=ids.fresh(), claim_id=ids.fresh())
    start_hosts(world, "a")
    return_hosts(world, "a", guests=(unknown,))

    assert [each.guest for each in world.bus.client("conductor").call(ListStrangers())] == [unknown]


def test_a_timeline_shows_each_attempt_its_claim_and_its_residue(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()
    instance = world.becomes(uuid, "active")
    consumers = (uuid, *(attempt.attempt_id for attempt in instance.attempts))
    claims = world.bus.client("placement").call(ListClaims(consumer_uuids=consumers, residues=True))

    shown = timeline(instance) | holdings(instance, claims)

    assert list(shown) == ["asked_for", "attempt_1", "attempt_2", "last_changed", "holds", "residue_1"]
    assert shown["attempt_1"].startswith("a, failed: timed out (20")
    assert shown["attempt_1"].endswith("; its guest may be left)")
    assert shown["attempt_2"].startswith("b, active (20")
    assert shown["holds"].startswith(f"{node('b')}, accepted on b, claimed 1 s ago")
    assert shown["residue_1"] == f"{node('a')}, for the guest of attempt 1, 1 s old"
    assert holdings(instance, [])["holds"] == "nothing"
