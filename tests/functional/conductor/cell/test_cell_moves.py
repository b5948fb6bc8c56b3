"""Moves in their cell: straight, from host to host, given back, confirmed, reverted, broken off."""

import pytest
from msgspec import structs
from support.conductor.builders import World, node, wait_until
from support.conductor.moving_instances import BIGGER, Mover, becomes, built, shown

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import EndMove, ListHostsDeclaredDown, SwapClaim

# --- Straight ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cold-migration", "resize"])
def test_a_moved_instance_waits_and_is_confirmed_with_what_was_asked_for(world: World, kind: str) -> None:
    uuid = built(world)
    move = Mover(world, uuid, kind)  # type: ignore[arg-type]
    move.move("b", spec=BIGGER)

    moved = becomes(world, uuid, "moved")

    source, destination = moved.attempts
    assert (moved.host, moved.migration_uuid, moved.flavor) == ("b", move.migration, shown(world, uuid).flavor)
    assert (source.state, source.migration_uuid) == ("held", None)
    assert (destination.state, destination.migration_uuid) == ("active", move.migration)
    assert world.agent.stopped == {source.attempt_id}
    taken = world.agent.guests[destination.attempt_id].moving
    assert taken is not None
    assert (taken.kind, taken.source_host, taken.source_attempt_id) == (kind, "a", source.attempt_id)
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
    world.agent.deaf = {"a"}
    move = Mover(world, uuid, "evacuation")
    move.move("b")

    after = becomes(world, uuid, "active")

    assert (after.host, move.shown().state) == ("b", "confirmed")
    assert world.placement.residues == {move.migration: node("a")}
    assert after.attempts[0].state == "ended"
    assert after.attempts[0].guest_left
    world.agent.deaf = set()
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


def test_only_what_is_active_is_taken_for_a_move_and_only_once(world: World) -> None:
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


def test_a_move_falls_back_on_its_alternates_and_names_what_the_source_holds(world: World) -> None:
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
    world.restart("cell", build_timeout=1.0)
    world.agent.hanging = world.agent.deaf = {"b"}
    move = Mover(world, uuid)
    move.move("b")

    after = becomes(world, uuid, "active")

    late = after.attempts[1]
    assert (after.host, late.state, late.reason) == ("a", "failed", "timed out")
    assert world.placement.residues == {late.attempt_id: node("b")}
    world.agent.deaf = set()
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
    assert {taken.host for taken in world.agent.taken} == {"a"}
    assert world.placement.hosts_held() == {node("a")}
    assert world.agent.stopped == set()


def test_a_source_that_does_not_answer_in_time_keeps_its_guest(world: World) -> None:
    uuid = built(world)
    world.restart("cell", build_timeout=0.5)
    world.agent.mute = {"a"}
    move = Mover(world, uuid)
    move.move("b")
    wait_until(lambda: any(isinstance(call, EndMove) for call in world.placement.calls))
    world.agent.mute = set()

    after = becomes(world, uuid, "active")

    assert (after.host, world.agent.stopped) == ("a", set())
    assert {taken.host for taken in world.agent.taken} == {"a"}


def test_a_guest_that_does_not_start_again_leaves_its_instance_in_error_and_to_be_evacuated(world: World) -> None:
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
    evacuation = Mover(world, uuid, "evacuation")
    evacuation.move("c")
    assert becomes(world, uuid, "active").host == "c"


class _Sticking(set[str]):
    """A set of stopped attempts that makes host `a` stuck as soon as one is added."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def add(self, attempt_id: str) -> None:
        super().add(attempt_id)
        self._world.agent.stuck = {"a"}


# --- Ending -----------------------------------------------------------------------------------------------------------


def test_a_confirm_waits_for_the_host_of_the_source_and_can_be_ordered_again(world: World) -> None:
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    becomes(world, uuid, "moved")
    world.agent.deaf = {"a"}

    move.end("confirm")
    wait_until(lambda: "a: " in str(move.shown().reason))
    move.end("confirm")

    assert (move.shown().state, shown(world, uuid).state) == ("confirming", "moved")
    with pytest.raises(errors.InvalidState, match="is confirming"):
        move.end("revert")
    world.agent.deaf = set()
    becomes(world, uuid, "active")
    assert world.placement.hosts_held() == {node("b")}
    with pytest.raises(errors.InvalidState):
        move.end("confirm")


@pytest.mark.parametrize("kind", ["cold-migration", "resize"])
def test_a_confirm_is_completed_once_the_dead_source_is_declared_down(world: World, kind: str) -> None:
    uuid = built(world)
    move = Mover(world, uuid, kind)  # type: ignore[arg-type]
    move.move("b", spec=BIGGER)
    becomes(world, uuid, "moved")
    world.agent.deaf = {"a"}
    move.end("confirm")
    wait_until(lambda: "moorage host set a --forced-down" in str(move.shown().reason))
    assert world.placement.hosts_held() == {node("a"), node("b")}
    assert not world.placement.residues

    world.placement.declared_down = {"a"}

    after = becomes(world, uuid, "active")
    assert (after.host, after.migration_uuid, after.flavor) == ("b", None, BIGGER.flavor)
    assert (move.shown().state, move.shown().reason) == ("confirmed", None)
    assert world.placement.residues == {move.migration: node("a")}
    assert (after.attempts[0].state, after.attempts[0].guest_left) == ("ended", True)
    world.agent.deaf = set()
    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert {guest.host for guest in world.agent.guests.values()} == {"b"}
    assert world.placement.hosts_held() == {node("b")}


def test_a_confirm_of_a_declared_down_source_that_answers_leaves_nothing(world: World) -> None:
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    becomes(world, uuid, "moved")
    world.placement.declared_down = {"a"}

    move.end("confirm")

    becomes(world, uuid, "active")
    assert not world.placement.residues
    assert world.placement.hosts_held() == {node("b")}
    assert {guest.host for guest in world.agent.guests.values()} == {"b"}


def test_an_ending_move_does_not_wait_for_a_host_that_is_declared_down(world: World) -> None:
    world.restart("cell", delete_patience=3600.0)
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    arrived = becomes(world, uuid, "moved").attempts[1]
    world.agent.deaf = world.placement.declared_down = {"b"}

    move.end("revert")

    assert becomes(world, uuid, "active").host == "a"
    assert world.placement.residues == {arrived.attempt_id: node("b")}


def test_a_confirm_waits_on_where_nobody_says_whether_the_source_is_declared_down(world: World) -> None:
    class Ignorant(type(world.placement)):  # type: ignore[misc]
        @serves(ListHostsDeclaredDown)
        def list_hosts_declared_down(self, message: ListHostsDeclaredDown) -> list[str]:
            raise errors.StoreUnavailable(reason="it is away")

    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    becomes(world, uuid, "moved")
    knowing = world.placement
    ignorant = Ignorant()
    ignorant.__dict__.update(knowing.__dict__)
    world.agent.deaf = knowing.declared_down = {"a"}
    world.serve("placement", ignorant)

    move.end("confirm")

    wait_until(lambda: "It is waited for" in str(move.shown().reason))
    assert (move.shown().state, shown(world, uuid).state) == ("confirming", "moved")
    world.serve("placement", knowing)
    assert becomes(world, uuid, "active").host == "b"


def test_a_live_migration_leaves_a_residue_where_its_source_does_not_answer(world: World) -> None:
    world.restart("cell", delete_patience=0.3)
    uuid = built(world)
    world.agent.deaf = {"a"}
    move = Mover(world, uuid, "live-migration")
    move.move("b")

    becomes(world, uuid, "active")

    assert world.placement.residues == {move.migration: node("a")}
    world.agent.deaf = set()
    wait_until(lambda: not world.placement.residues)


def test_a_revert_is_given_up_where_the_source_has_no_guest_to_go_back_to_and_the_server_runs_on(world: World) -> None:
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    source, arrived = becomes(world, uuid, "moved").attempts
    lost = world.agent.guests.pop(source.attempt_id)

    move.end("revert")

    wait_until(lambda: move.shown().reason is not None)
    assert (move.shown().state, shown(world, uuid).state) == ("moved", "moved")
    assert f"its source is not there to go back to, a: Not possible now: attempt {source.attempt_id}" in str(
        move.shown().reason
    )
    assert (arrived.attempt_id in world.agent.guests, world.agent.destroyed) == (True, [])
    assert shown(world, uuid).attempts[1].state == "active"
    # When it is there again, the same order is carried out.
    world.agent.guests[source.attempt_id] = lost
    move.end("revert")
    assert becomes(world, uuid, "active").host == "a"
    assert world.agent.destroyed == [arrived.attempt_id]


def test_a_revert_waits_for_the_host_of_its_source_for_a_time_and_destroys_nothing_meanwhile(world: World) -> None:
    world.restart("cell", delete_patience=0.5)
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    becomes(world, uuid, "moved")
    world.agent.mute = {"a"}

    move.end("revert")

    wait_until(lambda: move.shown().state == "moved" and move.shown().reason is not None)
    assert world.agent.destroyed == []
    move.end("confirm")
    assert becomes(world, uuid, "active").host == "b"


def test_a_revert_leaves_a_residue_where_its_destination_does_not_answer(world: World) -> None:
    world.restart("cell", delete_patience=0.3)
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    moved = becomes(world, uuid, "moved")
    world.agent.deaf = {"b"}

    move.end("revert")

    assert becomes(world, uuid, "active").host == "a"
    assert world.placement.residues == {moved.attempts[1].attempt_id: node("b")}
    world.agent.deaf = set()
    wait_until(lambda: not world.placement.residues)


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
def test_a_conflict_makes_a_move_end_later_and_never_otherwise(world: World, policy: str, outcome: str) -> None:
    world.restart("cell", consumer_conflict_policy=policy)
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    becomes(world, uuid, "moved")
    world.placement.conflicts = 2

    move.end(outcome)  # type: ignore[arg-type]

    if policy == "fail":
        for _ in range(2):
            wait_until(lambda: "Order it again" in str(move.shown().reason))
            assert shown(world, uuid).state == "moved"
            move.end(outcome)  # type: ignore[arg-type]
    becomes(world, uuid, "active")
    assert world.placement.hosts_held() == {node("b" if outcome == "confirm" else "a")}
    ends = [call for call in world.placement.calls if isinstance(call, EndMove)]
    named = {end.consumer_generation is not None for end in ends}
    assert (len(ends), named) == ((1, {False}) if policy == "combine" else (3, {True}))


@pytest.mark.parametrize("goes", [True, False])
def test_the_record_of_a_confirmed_move_says_what_has_become_of_what_others_had_put_on_its_migration(
    world: World, goes: bool
) -> None:
    world.restart("cell", delete_foreign_amounts=goes)
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    becomes(world, uuid, "moved")
    world.placement.put_beside(move.migration, node("a"), VGPU=2)

    move.end("confirm")

    becomes(world, uuid, "active")
    outcome = "with it went what others had put there" if goes else "what others had put there stays"
    assert move.shown().reason == f"{outcome}: 2 VGPU of provider {node('a')}"
    assert (uuid in world.placement.foreign) is not goes


@pytest.mark.parametrize("policy", ["fail", "retry"])
def test_under_a_policy_that_relies_on_generations_that_of_the_migration_is_named_too(
    world: World, policy: str
) -> None:
    world.restart("cell", consumer_conflict_policy=policy)
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    becomes(world, uuid, "moved")
    read = world.placement.touch(move.migration)

    move.end("confirm")

    becomes(world, uuid, "active")
    [end] = [call for call in world.placement.calls if isinstance(call, EndMove)]
    assert end.migration_generation == read


# --- Breaking off -----------------------------------------------------------------------------------------------------


def test_a_live_migration_that_is_broken_off_leaves_the_guest_where_it_was(world: World) -> None:
    uuid = built(world)
    world.agent.hanging = {"b"}
    move = Mover(world, uuid, "live-migration")
    move.move("b", "c")
    wait_until(lambda: len(world.agent.guests) == 2)

    move.end("abort")

    after = becomes(world, uuid, "active")
    assert (after.host, [a.state for a in after.attempts]) == ("a", ["active", "failed"])
    assert (move.shown().state, move.shown().reason) == ("failed", "it was broken off")
    wait_until(lambda: world.placement.hosts_held() == {node("a")})
    world.agent.released.set()
    wait_until(lambda: {guest.host for guest in world.agent.guests.values()} == {"a"})
    assert world.agent.orders == []


def test_a_live_migration_that_is_broken_off_before_it_begins_never_begins(world: World) -> None:
    uuid = built(world)
    move = Mover(world, uuid, "live-migration")
    placement = move.prepare()
    claim_id = move.claim(placement, "b")

    move.end("abort")
    move.hand_over(placement, claim_id, ["b", "c"])

    wait_until(lambda: move.shown().state == "failed")
    assert becomes(world, uuid, "active").host == "a"
    assert {taken.host for taken in world.agent.taken} == {"a"}
    assert world.placement.hosts_held() == {node("a")}


def test_only_a_live_migration_that_is_under_way_can_be_broken_off(world: World) -> None:
    uuid = built(world)
    with pytest.raises(errors.InvalidState):
        Mover(world, uuid).end("abort")
    move = Mover(world, uuid)
    move.move("b")
    with pytest.raises(errors.InvalidState):
        move.end("abort")
    becomes(world, uuid, "moved")
    with pytest.raises(errors.InvalidState):
        move.end("abort")
