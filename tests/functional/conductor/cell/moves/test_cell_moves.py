"""Test moves in their cell: preparation, fall-back, and the return to the source."""

import time

import pytest
from msgspec import structs
from support.conductor.builders import FakeAgent, World, node, report, wait_until
from support.conductor.host_reports import report_hosts
from support.conductor.moving_instances import BIGGER, Mover, becomes, built, shown

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import Done, EndMove, StartOnHost, StopOnHost, SwapClaim
from moorage.model import MoveKind

# --- Without trouble --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cold-migration", "resize"])
def test_a_moved_instance_waits_for_confirmation_and_then_has_its_new_flavor(world: World, kind: str) -> None:
    uuid = built(world)
    move = Mover(world, uuid, kind)  # type: ignore[arg-type]
    move.move("b", spec=BIGGER)

    moved = becomes(world, uuid, "moved")

    source, destination = moved.attempts
    assert (moved.host, moved.migration_uuid, moved.flavor) == ("b", move.migration, shown(world, uuid).flavor)
    assert (source.state, source.migration_uuid) == ("held", None)
    assert (destination.state, destination.migration_uuid) == ("active", move.migration)
    assert world.agent.stopped == {source.attempt_id}
    moving = world.agent.guests[destination.attempt_id].moving
    assert moving is not None
    assert (moving.kind, moving.source_host, moving.source_attempt_id) == (kind, "a", source.attempt_id)
    assert world.placement.hosts_held() == {node("a"), node("b")}
    assert (move.shown().state, move.shown().source_host, move.shown().destination_host) == ("moved", "a", "b")

    move.end("confirm")

    confirmed = becomes(world, uuid, "active")
    assert (confirmed.host, confirmed.migration_uuid, confirmed.flavor) == ("b", None, BIGGER.flavor)
    assert world.placement.hosts_held() == {node("b")}
    assert set(world.agent.guests) == {destination.attempt_id}
    assert [attempt.state for attempt in confirmed.attempts] == ["ended", "active"]
    assert (move.shown().state, [a.host for a in move.shown().attempts]) == ("confirmed", ["b"])
    assert world.pending("cell") == 0


def test_a_reverted_instance_runs_on_its_source_under_its_old_attempt_and_claim(world: World) -> None:
    uuid = built(world)
    before = shown(world, uuid)
    move = Mover(world, uuid, "resize")
    move.move("b", spec=BIGGER)
    becomes(world, uuid, "moved")

    move.end("revert")

    after = becomes(world, uuid, "active")
    assert (after.host, after.claim_id, after.flavor) == ("a", before.claim_id, before.flavor)
    assert (after.migration_uuid, after.reason) == (None, None)
    assert world.agent.stopped == set()
    assert set(world.agent.guests) == {before.attempts[0].attempt_id}
    assert world.placement.hosts_held() == {node("a")}
    assert [attempt.state for attempt in after.attempts] == ["active", "ended"]
    assert move.shown().state == "reverted"
    assert world.pending("cell") == 0


def test_a_live_migration_stops_nothing_and_confirms_itself(world: World) -> None:
    uuid = built(world)
    move = Mover(world, uuid, "live-migration")
    move.move("b")

    after = becomes(world, uuid, "active")

    assert after.host == "b"
    assert world.agent.orders == []
    assert world.placement.hosts_held() == {node("b")}
    assert {guest.host for guest in world.agent.guests.values()} == {"b"}
    assert move.shown().state == "confirmed"


def test_an_evacuation_leaves_a_residue_under_the_migration_until_its_host_has_cleaned_up(world: World) -> None:
    uuid = built(world)
    world.agent.no_reply_to_destroy = world.placement.declared_down = {"a"}
    move = Mover(world, uuid, "evacuation")
    move.move("b")

    after = becomes(world, uuid, "active")

    assert (after.host, move.shown().state) == ("b", "confirmed")
    assert world.placement.residues == {move.migration: node("a")}
    assert after.attempts[0].state == "ended"
    assert after.attempts[0].guest_left
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert {guest.host for guest in world.agent.guests.values()} == {"b"}


def test_an_instance_can_move_again_and_again(world: World) -> None:
    uuid = built(world)
    for number, host in enumerate(["b", "c", "a"], start=2):
        move = Mover(world, uuid, "live-migration")
        move.move(host)
        wait_until(lambda move=move: move.shown().state == "confirmed")  # type: ignore[misc]
        after = becomes(world, uuid, "active")
        assert (after.host, len(after.attempts)) == (host, number)
        assert world.placement.hosts_held() == {node(host)}


# --- Refused at once --------------------------------------------------------------------------------------------------


def test_only_an_active_instance_is_prepared_for_a_move_and_only_once(world: World) -> None:
    uuid = built(world)
    first = Mover(world, uuid)
    placement = first.prepare()
    assert (placement.selection.service_host, placement.claim_id) == ("a", shown(world, uuid).claim_id)

    with pytest.raises(errors.InvalidState, match="is moving; to be moved it must be active"):
        Mover(world, uuid).prepare()
    with pytest.raises(errors.InstanceNotFound):
        Mover(world, ids.fresh()).prepare()
    with pytest.raises(errors.InvalidState, match="waits to be confirmed"):
        first.end("confirm")


@pytest.mark.parametrize("kind", ["cold-migration", "resize", "live-migration"])
def test_from_a_host_that_is_declared_down_a_server_can_only_be_evacuated(world: World, kind: MoveKind) -> None:
    uuid = built(world)
    before = shown(world, uuid)
    world.placement.declared_down = {"a"}

    with pytest.raises(errors.InvalidState, match=r"on host a, which is forced down.*: evacuate it"):
        Mover(world, uuid, kind).prepare()
    assert shown(world, uuid) == before
    assert Mover(world, uuid, "evacuation").prepare().selection.service_host == "a"


def test_a_cancelled_move_leaves_everything_as_it_was(world: World) -> None:
    uuid = built(world)
    before = shown(world, uuid)
    move = Mover(world, uuid)
    placement = move.prepare()

    move.cancel()

    after = shown(world, uuid)
    assert structs.replace(after, updated_at=0.0) == structs.replace(before, updated_at=0.0)
    assert (move.shown().state, move.shown().reason) == ("failed", "no room")
    with pytest.raises(errors.InvalidState):
        move.hand_over(placement, ids.fresh(), ["b"])


def test_a_move_that_is_cancelled_before_it_is_prepared_is_never_prepared(world: World) -> None:
    uuid = built(world)
    move = Mover(world, uuid)

    move.cancel()

    with pytest.raises(errors.InvalidState, match="cancelled"):
        move.prepare()
    assert shown(world, uuid).state == "active"


def test_an_instance_without_a_host_cannot_be_evacuated(world: World) -> None:
    world.agent.failing = {"a", "b", "c"}
    [uuid] = world.build()
    becomes(world, uuid, "error")

    with pytest.raises(errors.InvalidState, match="on no host"):
        Mover(world, uuid, "evacuation").prepare()


# --- Falling back -----------------------------------------------------------------------------------------------------


def test_a_move_falls_back_to_its_alternates_and_each_swap_names_the_allocations_of_the_source(world: World) -> None:
    uuid = built(world)
    world.agent.failing = {"b"}
    world.placement.full = {node("c")}
    move = Mover(world, uuid)
    move.move("b", "c", "d")

    moved = becomes(world, uuid, "moved")

    assert [(a.host, a.state) for a in moved.attempts] == [
        ("a", "held"),
        ("b", "failed"),
        ("c", "skipped"),
        ("d", "active"),
    ]
    assert {a.migration_uuid for a in moved.attempts[1:]} == {move.migration}
    swaps = [call for call in world.placement.calls if isinstance(call, SwapClaim)]
    assert {swap.migration_uuid for swap in swaps} == {move.migration}
    assert all(swap.held is not None and swap.held.allocations.keys() == {node("a")} for swap in swaps)
    assert world.placement.hosts_held() == {node("a"), node("d")}
    assert move.shown().destination_host == "d"


@pytest.mark.parametrize("kind", ["cold-migration", "resize", "live-migration", "evacuation"])
def test_a_move_that_fails_everywhere_gives_the_source_back(world: World, kind: str) -> None:
    uuid = built(world)
    before = shown(world, uuid)
    world.agent.failing = {"b", "c"}
    if kind == "evacuation":
        world.placement.declared_down = {"a"}
    move = Mover(world, uuid, kind)  # type: ignore[arg-type]
    move.move("b", "c")

    wait_until(lambda: move.shown().state == "failed")

    after = becomes(world, uuid, "active")
    assert (after.host, after.claim_id, after.migration_uuid) == ("a", before.claim_id, None)
    assert move.shown().reason == "b: b is broken; c: c is broken"
    assert move.shown().destination_host is None
    assert [a.state for a in after.attempts] == ["active", "failed", "failed"]
    assert world.agent.stopped == set()
    assert set(world.agent.guests) == {before.attempts[0].attempt_id}
    assert world.placement.hosts_held() == {node("a")}
    assert world.pending("cell") == 0


def test_a_destination_that_hangs_keeps_a_residue_when_the_source_is_given_back(world: World) -> None:
    uuid = built(world)
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"b"}
    move = Mover(world, uuid)
    move.move("b")

    after = becomes(world, uuid, "active")

    late = after.attempts[1]
    assert (after.host, late.state, late.reason) == ("a", "failed", "timed out")
    assert world.placement.residues == {late.attempt_id: node("b")}
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)


def test_a_source_that_cannot_be_stopped_keeps_its_guest(world: World) -> None:
    uuid = built(world)
    world.agent.stuck = {"a"}
    move = Mover(world, uuid)
    move.move("b")
    wait_until(lambda: any(isinstance(call, EndMove) for call in world.placement.calls))
    world.agent.stuck = set()

    after = becomes(world, uuid, "active")

    assert after.host == "a"
    assert "could not be stopped" in str(move.shown().reason)
    assert {build.host for build in world.agent.builds} == {"a"}
    assert world.placement.hosts_held() == {node("a")}
    assert world.agent.stopped == set()


def test_a_source_that_does_not_answer_in_time_keeps_its_guest(world: World) -> None:
    uuid = built(world)
    world.restart("cell", build_timeout=0.5)
    world.agent.no_reply_to_orders = {"a"}
    move = Mover(world, uuid)
    move.move("b")
    wait_until(lambda: any(isinstance(call, EndMove) for call in world.placement.calls))
    world.agent.no_reply_to_orders = set()

    after = becomes(world, uuid, "active")

    assert (after.host, world.agent.stopped) == ("a", set())
    assert {build.host for build in world.agent.builds} == {"a"}


def test_an_instance_whose_guest_may_be_stopped_on_a_silent_source_is_in_error(world: World) -> None:
    class FallsSilent(FakeAgent):
        """Stops a guest without an answer; from then on its host reports nothing."""

        @serves(StopOnHost)
        def stop_instance(self, message: StopOnHost) -> Done:
            super().stop_instance(message)
            report_hosts(world, hosts=(report(message.host),))
            time.sleep(2.2)
            raise errors.NoReply(topic="agent", method=message.method, seconds=0.0)

    world.conf.set_override("host_down_after", 2.0, group="scheduler")
    world.restart("cell")
    world.replace(FallsSilent(world.bus))
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")

    wait_until(lambda: move.shown().state == "failed")

    after = shown(world, uuid)
    assert (after.state, after.host) == ("error", "a")
    assert "its guest does not run there: the host has not reported" in str(after.reason)
    assert world.agent.stopped == {after.attempts[0].attempt_id}
    assert {build.host for build in world.agent.builds} == {"a"}


def test_an_instance_whose_guest_does_not_start_again_is_in_error_and_can_be_evacuated(world: World) -> None:
    uuid = built(world)
    world.agent.failing = {"b"}
    move = Mover(world, uuid)
    world.agent.stopped = _Sticking(world)
    move.move("b")

    after = becomes(world, uuid, "error")

    assert "its guest does not run" in str(after.reason)
    assert (after.host, move.shown().state) == ("a", "failed")
    assert world.placement.hosts_held() == {node("a")}
    world.agent.stuck = set()
    world.placement.declared_down = {"a"}
    evacuation = Mover(world, uuid, "evacuation")
    evacuation.move("c")
    assert becomes(world, uuid, "active").host == "c"


def test_an_instance_whose_guest_does_not_start_again_in_time_is_in_error(world: World) -> None:
    class Slow(FakeAgent):
        @serves(StartOnHost)
        def start_instance(self, message: StartOnHost) -> Done:
            self.orders.append(message)
            raise errors.RequestInProgress(request_id=message.request_id)

    world.replace(Slow(world.bus))
    uuid = built(world)
    world.agent.failing = {"b"}
    move = Mover(world, uuid)
    move.move("b")
    # From then on, the short time does not apply to the destination.
    wait_until(lambda: world.pending("cell", "AND CAST(reason AS TEXT) LIKE '%has not finished it'") == 1)
    world.restart("cell", build_timeout=0.3)

    after = becomes(world, uuid, "error")

    why = "host a has not finished it within 0.3 s"
    assert after.reason == f"it is back on its host, and its guest does not run there: {why}"
    assert (after.host, move.shown().state) == ("a", "failed")
    assert len([order for order in world.agent.orders if isinstance(order, StartOnHost)]) > 1
    assert world.placement.hosts_held() == {node("a")}
    assert world.pending("cell") == 0


class _Sticking(set[str]):
    """A set of stopped attempts; host `a` is stuck as soon as one is added."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def add(self, attempt_id: str) -> None:
        super().add(attempt_id)
        self._world.agent.stuck = {"a"}
