"""Test that the guest on the source of a move is unwanted from the beginning of its confirm, not only from its end."""

from typing import Any

import pytest
from support.conductor.builders import FakePlacement, World, node, wait_until
from support.conductor.host_reports import (
    ended_attempts,
    guest_of,
    report_gone,
    return_hosts,
    returning,
    start_hosts,
)
from support.conductor.moving_instances import Mover, becomes, built, shown

from moorage import errors
from moorage.messages import EndMove, ListHoldsInCell
from moorage.model import MoveKind


class EndsNoMove(FakePlacement):
    """Ends no move until ``is_ready`` is set."""

    is_ready = False

    def carry_out(self, message: Any) -> Any:
        if isinstance(message, EndMove) and not self.is_ready:
            raise errors.StoreUnavailable(schema="main", reason="away")
        return super().carry_out(message)


def confirming(world: World, kind: MoveKind) -> Mover:
    """Return the move of an instance that has arrived on host `b`, and that cannot be confirmed yet."""
    move = Mover(world, built(world), kind)
    world.agent.no_reply_to_destroy = {"a"}
    world.placement.declared_down = {"a"} if kind == "evacuation" else set()
    move.move("b")
    becomes(world, move.uuid, "moved")
    if kind == "cold-migration":
        move.end("confirm")
    assert move.shown().state == "confirming"
    return move


def the_returning_source_destroys_its_guest(world: World, move: Mover) -> None:
    """Let host `a` return with its guest; check that it destroys the guest before it counts as up."""
    build = world.agent.build_on("a")
    start_hosts(world, "a")
    [ended] = ended_attempts(world, "a")
    assert ended.attempt_id == build.attempt_id
    return_hosts(world, "a", guests=(guest_of(build),))
    assert returning(world, "a") == ("a",)
    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(build)
    world.agent.finish(build)
    assert {guest.host for guest in world.agent.guests.values()} == {"b"}
    report_gone(world, ended)
    return_hosts(world, "a")
    assert returning(world, "a") == ()
    assert shown(world, move.uuid).state == "moved"


def only_b_is_held(world: World, move: Mover) -> None:
    assert becomes(world, move.uuid, "active").host == "b"
    wait_until(lambda: world.pending("cell") == 0)
    assert world.placement.hosts_held() == {node("b")}
    assert [attempt.guest_left for attempt in shown(world, move.uuid).attempts] == [False, True]


@pytest.mark.parametrize("kind", ["evacuation", "live-migration", "cold-migration"])
def test_a_returning_source_destroys_its_guest_although_the_store_cannot_end_the_move(
    world: World, kind: MoveKind
) -> None:
    placement = world.replace(EndsNoMove())
    move = confirming(world, kind)

    the_returning_source_destroys_its_guest(world, move)

    placement.is_ready = True
    only_b_is_held(world, move)


def test_a_returning_source_destroys_its_guest_although_an_operator_must_repeat_the_confirm(world: World) -> None:
    world.restart("cell", consumer_conflict_policy="fail")
    world.placement.conflicts = 1
    move = confirming(world, "evacuation")
    wait_until(lambda: "consumer" in str(move.shown().reason))

    the_returning_source_destroys_its_guest(world, move)

    move.end("confirm")
    only_b_is_held(world, move)


def test_a_confirm_that_an_earlier_version_began_ends_the_attempt_on_the_source_too(world: World) -> None:
    placement = world.replace(EndsNoMove())
    move = confirming(world, "evacuation")
    world.stop("cell")
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE cell_attempts SET state = 'held' WHERE host = 'a'")
    world.start("cell")
    wait_until(lambda: shown(world, move.uuid).attempts[0].state == "ended")

    the_returning_source_destroys_its_guest(world, move)

    placement.is_ready = True
    only_b_is_held(world, move)


def test_the_records_of_an_unfinished_confirm_name_the_accepted_claim_of_the_source(world: World) -> None:
    world.replace(EndsNoMove())
    move = confirming(world, "cold-migration")
    source = world.agent.build_on("a")
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE cell_attempts SET accepted = NULL")  # as earlier versions left it
    wait_until(lambda: world.cell_call(ListHoldsInCell(uuids=(move.uuid,))).instances[0].settled)

    [recorded] = world.cell_call(ListHoldsInCell(uuids=(move.uuid,))).instances

    held = {hold.consumer_uuid: (hold.claim_id, hold.accepted_by, hold.accepted_host) for hold in recorded.holds}
    assert held[move.migration] == (source.claim_id, source.attempt_id, "a")


def test_an_evacuated_source_that_has_returned_before_the_arrival_destroys_its_guest(world: World) -> None:
    placement = world.replace(EndsNoMove())
    move = Mover(world, built(world), "evacuation")
    build = world.agent.build_on("a")
    placement.declared_down = {"a"}
    world.agent.may_finish.clear()
    move.move("b")
    wait_until(lambda: len(world.agent.guests) == 2)
    start_hosts(world, "a")
    assert ended_attempts(world, "a") == []
    return_hosts(world, "a", guests=(guest_of(build),))
    assert returning(world, "a") == ()

    world.agent.may_finish.set()

    wait_until(lambda: world.agent.destroyed == [build.attempt_id])
    assert shown(world, move.uuid).state == "moved"
    placement.is_ready = True
    only_b_is_held(world, move)
    assert placement.residues == {}


@pytest.mark.parametrize(("seen_before", "is_called"), [(1, True), (15, True), (30, False)])
def test_an_evacuated_source_is_called_if_its_last_record_before_the_order_could_be_that_of_a_living_host(
    world: World, seen_before: int, is_called: bool
) -> None:
    placement = world.replace(EndsNoMove())
    uuid = built(world)
    build = world.agent.build_on("a")
    placement.declared_down = {"a"}
    start_hosts(world, "a")
    return_hosts(world, "a", guests=(guest_of(build),))
    assert returning(world, "a") == ()
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE cell_hosts SET last_seen = last_seen - {seen_before}")
    move = Mover(world, uuid, "evacuation")

    move.move("b")

    wait_until(lambda: world.pending("cell", "AND step = 'end'") == 1)
    assert world.agent.destroyed == ([build.attempt_id] if is_called else [])
    assert move.shown().state == "confirming"
    placement.is_ready = True
    assert becomes(world, uuid, "active").host == "b"
