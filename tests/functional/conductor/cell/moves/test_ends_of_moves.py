"""Test how moves end in their cell: confirm, revert and abort."""

import pytest
from support.conductor.builders import FakePlacement, World, node, wait_until
from support.conductor.moving_instances import BIGGER, Mover, becomes, built, shown

from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import EndMove, ListHostsDeclaredDown


def moved_to_b(world: World) -> tuple[str, Mover]:
    """Return an instance that was built on host `a` and has moved to host `b`, and its move."""
    move = Mover(world, built(world))
    move.move("b")
    becomes(world, move.uuid, "moved")
    return move.uuid, move


def test_a_confirm_waits_for_the_host_of_the_source_and_can_be_ordered_again(world: World) -> None:
    uuid, move = moved_to_b(world)
    world.agent.no_reply_to_destroy = {"a"}

    move.end("confirm")
    wait_until(lambda: "a: " in str(move.shown().reason))
    move.end("confirm")

    assert (move.shown().state, shown(world, uuid).state) == ("confirming", "moved")
    with pytest.raises(errors.InvalidState, match="is confirming"):
        move.end("revert")
    world.agent.no_reply_to_destroy = set()
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
    world.agent.no_reply_to_destroy = {"a"}
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
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert {guest.host for guest in world.agent.guests.values()} == {"b"}
    assert world.placement.hosts_held() == {node("b")}


def test_a_confirm_of_a_declared_down_source_that_answers_leaves_nothing(world: World) -> None:
    uuid, move = moved_to_b(world)
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
    world.agent.no_reply_to_destroy = world.placement.declared_down = {"b"}

    move.end("revert")

    assert becomes(world, uuid, "active").host == "a"
    assert world.placement.residues == {arrived.attempt_id: node("b")}


def test_a_confirm_keeps_waiting_while_it_is_unknown_whether_the_source_is_declared_down(world: World) -> None:
    class WithoutHosts(FakePlacement):
        is_available = False

        @serves(ListHostsDeclaredDown)
        def list_hosts_declared_down(self, message: ListHostsDeclaredDown) -> list[str]:
            if not self.is_available:
                raise errors.StoreUnavailable(schema="main", reason="it is away")
            return super().list_hosts_declared_down(message)

    placement = world.replace(WithoutHosts())
    uuid, move = moved_to_b(world)
    world.agent.no_reply_to_destroy = placement.declared_down = {"a"}

    move.end("confirm")

    wait_until(lambda: "It is waited for" in str(move.shown().reason))
    assert (move.shown().state, shown(world, uuid).state) == ("confirming", "moved")
    placement.is_available = True
    assert becomes(world, uuid, "active").host == "b"


def test_a_live_migration_leaves_a_residue_where_its_source_does_not_answer(world: World) -> None:
    world.restart("cell", delete_patience=0.3)
    uuid = built(world)
    world.agent.no_reply_to_destroy = {"a"}
    move = Mover(world, uuid, "live-migration")
    move.move("b")

    becomes(world, uuid, "active")

    assert world.placement.residues == {move.migration: node("a")}
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)


def test_a_revert_is_given_up_if_the_source_has_no_guest_and_the_instance_keeps_running(world: World) -> None:
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    source, arrived = becomes(world, uuid, "moved").attempts
    lost = world.agent.guests.pop(source.attempt_id)

    move.end("revert")

    wait_until(lambda: move.shown().reason is not None)
    assert (move.shown().state, shown(world, uuid).state) == ("moved", "moved")
    assert f"the source has no guest to return to, a: Not possible now: attempt {source.attempt_id}" in str(
        move.shown().reason
    )
    assert (arrived.attempt_id in world.agent.guests, world.agent.destroyed) == (True, [])
    assert shown(world, uuid).attempts[1].state == "active"
    # When the guest exists again, the same order is carried out.
    world.agent.guests[source.attempt_id] = lost
    move.end("revert")
    assert becomes(world, uuid, "active").host == "a"
    assert world.agent.destroyed == [arrived.attempt_id]


def test_a_revert_waits_a_limited_time_for_the_source_and_destroys_nothing_meanwhile(world: World) -> None:
    world.restart("cell", delete_patience=0.5)
    uuid, move = moved_to_b(world)
    world.agent.no_reply_to_orders = {"a"}

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
    world.agent.no_reply_to_destroy = {"b"}

    move.end("revert")

    assert becomes(world, uuid, "active").host == "a"
    assert world.placement.residues == {moved.attempts[1].attempt_id: node("b")}
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
def test_a_generation_conflict_delays_the_end_of_a_move_and_does_not_change_it(
    world: World, policy: str, outcome: str
) -> None:
    world.restart("cell", consumer_conflict_policy=policy)
    uuid, move = moved_to_b(world)
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
def test_the_record_of_a_confirmed_move_says_whether_foreign_amounts_of_its_migration_were_released(
    world: World, goes: bool
) -> None:
    world.restart("cell", delete_foreign_amounts=goes)
    uuid, move = moved_to_b(world)
    world.placement.put_beside(move.migration, node("a"), VGPU=2)

    move.end("confirm")

    becomes(world, uuid, "active")
    outcome = "foreign allocations were deleted" if goes else "foreign allocations stay"
    assert move.shown().reason == f"{outcome}: 2 VGPU of provider {node('a')}"
    assert (uuid in world.placement.foreign) is not goes


@pytest.mark.parametrize("policy", ["fail", "retry"])
def test_policies_that_rely_on_generations_also_name_the_generation_of_the_migration(world: World, policy: str) -> None:
    world.restart("cell", consumer_conflict_policy=policy)
    uuid, move = moved_to_b(world)
    read = world.placement.touch(move.migration)

    move.end("confirm")

    becomes(world, uuid, "active")
    [end] = [call for call in world.placement.calls if isinstance(call, EndMove)]
    assert end.migration_generation == read


# --- Aborting ---------------------------------------------------------------------------------------------------------


def test_an_aborted_live_migration_leaves_the_guest_on_its_source(world: World) -> None:
    uuid = built(world)
    world.agent.hanging = {"b"}
    move = Mover(world, uuid, "live-migration")
    move.move("b", "c")
    wait_until(lambda: len(world.agent.guests) == 2)

    move.end("abort")

    after = becomes(world, uuid, "active")
    assert (after.host, [a.state for a in after.attempts]) == ("a", ["active", "failed"])
    assert (move.shown().state, move.shown().reason) == ("failed", "it was aborted")
    wait_until(lambda: world.placement.hosts_held() == {node("a")})
    world.agent.released.set()
    wait_until(lambda: {guest.host for guest in world.agent.guests.values()} == {"a"})
    assert world.agent.orders == []


def test_a_live_migration_that_is_aborted_before_it_begins_does_not_begin(world: World) -> None:
    uuid = built(world)
    move = Mover(world, uuid, "live-migration")
    placement = move.prepare()
    claim_id = move.claim(placement, "b")

    move.end("abort")
    move.hand_over(placement, claim_id, ["b", "c"])

    wait_until(lambda: move.shown().state == "failed")
    assert becomes(world, uuid, "active").host == "a"
    assert {build.host for build in world.agent.builds} == {"a"}
    assert world.placement.hosts_held() == {node("a")}


def test_only_a_live_migration_that_is_under_way_can_be_aborted(world: World) -> None:
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
