"""Test deletions, crashes, take-overs and returning hosts in the middle of moves, shelving and rebuilding."""

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import exc
from support.conductor.builders import World, node, wait_until
from support.conductor.host_reports import ended_attempts, return_hosts, start_hosts
from support.conductor.moving_instances import Mover, becomes, built, rebuild, shelve, shown, unshelve

from moorage import errors, failpoints, ids
from moorage.messages import DeleteAllocations, OwnsClaimInCell

Story = Callable[[World], str]

# --- Stories, and the host on which each ends whatever interrupts it -------------------------------------------------


def confirmed(world: World) -> str:
    uuid = built(world)
    world.agent.failing = {"b"}
    move = Mover(world, uuid)
    move.move("b", "c")
    becomes(world, uuid, "moved")
    move.end("confirm")
    wait_until(lambda: move.shown().state == "confirmed", move.shown)
    return uuid


def reverted(world: World) -> str:
    uuid = built(world)
    move = Mover(world, uuid)
    move.move("b")
    becomes(world, uuid, "moved")
    move.end("revert")
    wait_until(lambda: move.shown().state == "reverted", move.shown)
    return uuid


def given_back(world: World) -> str:
    uuid = built(world)
    world.agent.failing = {"b", "c"}
    move = Mover(world, uuid)
    move.move("b", "c")
    wait_until(lambda: move.shown().state == "failed", move.shown)
    return uuid


def unshelved(world: World) -> str:
    uuid = built(world)
    shelve(world, uuid)
    becomes(world, uuid, "shelved")
    world.agent.failing = {"b"}
    unshelve(world, uuid, "b", "c")
    becomes(world, uuid, "active")
    return uuid


def rebuilt(world: World) -> str:
    uuid = built(world)
    rebuild(world, uuid, "other")
    wait_until(lambda: bool(world.agent.orders))
    becomes(world, uuid, "active")
    return uuid


STORIES: dict[str, tuple[Story, str]] = {
    "move.stop": (confirmed, "c"),
    "move.start": (confirmed, "c"),
    "move.swap": (confirmed, "c"),
    "confirm.destroy": (confirmed, "c"),
    "confirm.end": (confirmed, "c"),
    "revert.destroy": (reverted, "a"),
    "revert.give_back": (reverted, "a"),
    "revert.restart": (reverted, "a"),
    "move.give_back": (given_back, "a"),
    "move.restart": (given_back, "a"),
    "shelve.destroy": (unshelved, "c"),
    "shelve.release": (unshelved, "c"),
    "unshelve.start": (unshelved, "c"),
    "unshelve.swap": (unshelved, "c"),
    "rebuild.rebuild": (rebuilt, "a"),
}


def settled(world: World, uuid: str, host: str) -> None:
    """Assert that an instance runs on this host only, and that nothing is held on any other."""
    wait_until(lambda: world.pending("cell") == 0)
    instance = shown(world, uuid)
    assert (instance.state, instance.host, instance.migration_uuid) == ("active", host, None)
    assert world.placement.held[uuid].claim_id == instance.claim_id
    assert world.placement.hosts_held() == {node(host)}
    assert {guest.host for guest in world.agent.guests.values()} == {host}
    assert world.agent.stopped == set()


@pytest.mark.parametrize("step", STORIES)
def test_a_step_whose_outcome_was_not_recorded_is_repeated_without_further_effect(world: World, step: str) -> None:
    interrupted: list[str] = []

    def interrupt(name: str) -> None:
        if name == f"step.{step}.done" and not interrupted:
            interrupted.append(name)
            raise RuntimeError("the connection was lost")

    story, host = STORIES[step]
    with failpoints.observed(interrupt):
        uuid = story(world)

    assert interrupted
    settled(world, uuid, host)


@pytest.mark.parametrize("step", ["move.swap", "unshelve.swap"])
def test_a_step_whose_outcome_was_recorded_by_a_commit_without_an_answer_is_done_once(world: World, step: str) -> None:
    passed: list[str] = []

    def lose_answer(name: str) -> None:
        passed.append(name)
        if name == f"step.{step}.committed" and passed.count(name) == 1:
            raise exc.OperationalError("COMMIT", {}, RuntimeError("lost connection"), connection_invalidated=True)

    story, host = STORIES[step]
    with failpoints.observed(lose_answer):
        uuid = story(world)

    assert passed.count(f"step.{step}.begin") == 1
    settled(world, uuid, host)


@pytest.mark.parametrize("step", ["move.swap", "move.give_back", "confirm.end", "revert.give_back", "unshelve.swap"])
def test_a_step_that_another_conductor_takes_over_in_the_middle_counts_once(world: World, step: str) -> None:
    world.conf.set_override("call_timeout", 20.0, group="rpc")
    world.restart("cell", workers=4)
    world.start("cell", "another")
    passed: list[str] = []
    lock = threading.Lock()

    def take_over(name: str) -> None:
        if name != f"step.{step}.done":
            return
        with lock:
            passed.append(name)
            first = len(passed) == 1
        if first:
            world.lose_leases()
            wait_until(lambda: len(passed) > 1)

    story, host = STORIES[step]
    with failpoints.observed(take_over):
        uuid = story(world)

    assert len(passed) >= 2
    settled(world, uuid, host)


def test_a_move_continues_when_its_dead_conductor_is_replaced(world: World) -> None:
    uuid = built(world)
    world.agent.no_reply_to_orders = {"a"}
    move = Mover(world, uuid)
    move.move("b")
    wait_until(lambda: bool(world.agent.orders))
    world.die("cell", "cell", lease=1.0)
    world.agent.no_reply_to_orders = set()

    world.start("cell")

    assert becomes(world, uuid, "moved").host == "b"
    assert len({order.request_id for order in world.agent.orders}) == 1


# --- Deleting ---------------------------------------------------------------------------------------------------------


def wait_until_retried(world: World) -> None:
    """Wait until an operation of the cell has failed to make progress and will be retried."""
    wait_until(lambda: world.pending("cell", "AND reason IS NOT NULL") == 1)


def prepared(world: World) -> str:
    uuid = built(world)
    Mover(world, uuid).prepare()
    return uuid


def claimed(world: World) -> str:
    uuid = built(world)
    move = Mover(world, uuid)
    move.claim(move.prepare(), "b")
    return uuid


def stopping(world: World) -> str:
    uuid = built(world)
    world.agent.no_reply_to_orders = {"a"}
    Mover(world, uuid).move("b")
    wait_until(lambda: bool(world.agent.orders))
    return uuid


def spawning(world: World) -> str:
    uuid = built(world)
    world.agent.may_finish.clear()
    Mover(world, uuid, "live-migration").move("b", "c")
    wait_until(lambda: len(world.agent.guests) == 2)
    return uuid


def waiting(world: World) -> str:
    uuid = built(world)
    Mover(world, uuid).move("b")
    becomes(world, uuid, "moved")
    return uuid


def confirming(world: World) -> str:
    uuid = waiting(world)
    world.agent.no_reply_to_destroy = {"a"}
    Mover(world, uuid).end("confirm")
    wait_until_retried(world)
    return uuid


def reverting(world: World) -> str:
    uuid = waiting(world)
    world.agent.no_reply_to_destroy = {"b"}
    Mover(world, uuid).end("revert")
    wait_until_retried(world)
    return uuid


def shelving(world: World) -> str:
    uuid = built(world)
    world.agent.no_reply_to_destroy = {"a"}
    shelve(world, uuid)
    wait_until_retried(world)
    return uuid


def rebuilding(world: World) -> str:
    uuid = built(world)
    world.agent.no_reply_to_orders = {"a"}
    rebuild(world, uuid, "other")
    wait_until(lambda: bool(world.agent.orders))
    return uuid


@pytest.mark.parametrize(
    "story", [prepared, claimed, stopping, spawning, waiting, confirming, reverting, shelving, rebuilding]
)
def test_an_instance_deleted_in_the_middle_leaves_no_guest_and_no_claim(world: World, story: Story) -> None:
    uuid = story(world)
    migration = shown(world, uuid).migration_uuid

    world.delete(uuid)
    # Until the order has reached the cell, the operation might end first.
    wait_until(lambda: shown(world, uuid).state in ("deleting", "deleted"))
    world.agent.no_reply_to_destroy = world.agent.no_reply_to_orders = set()

    becomes(world, uuid, "deleted")
    world.agent.may_finish.set()
    wait_until(lambda: world.pending("cell") == 0)
    wait_until(lambda: not world.agent.guests)
    assert world.placement.hosts_held() == set()
    assert uuid in world.placement.deleted
    if migration is not None:
        assert migration in world.placement.deleted
        found = Mover(world, uuid, migration=migration).shown()
        assert (found.state, found.reason) == ("ended", "the instance was deleted")
    with pytest.raises(errors.InvalidState):
        Mover(world, uuid).prepare()


def test_a_deletion_leaves_residues_only_where_a_guest_may_be_left(world: World) -> None:
    world.restart("cell", delete_patience=0.3)
    uuid = waiting(world)
    source, _destination = shown(world, uuid).attempts
    world.agent.no_reply_to_destroy = {"a"}

    world.delete(uuid)

    becomes(world, uuid, "deleted")
    assert world.placement.residues == {source.attempt_id: node("a")}
    released = [call for call in world.placement.calls if isinstance(call, DeleteAllocations) and call.migration_uuids]
    assert len({call.request_id for call in released}) == 1
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)


# --- Hosts that return ------------------------------------------------------------------------------------------------


def test_the_source_of_a_move_is_neither_destroyed_nor_lost_when_its_host_returns(world: World) -> None:
    uuid = waiting(world)
    source = shown(world, uuid).attempts[0]
    start_hosts(world, "a")

    assert ended_attempts(world, "a") == []
    return_hosts(world, "a")

    after = shown(world, uuid)
    assert (after.state, after.reason, after.attempts[0].state) == ("moved", None, "held")
    # After its restart, the agent finds the guest running and reports it again.
    build = world.agent.build_on("a")
    assert build.attempt_id == source.attempt_id
    world.agent.accept(build)
    world.agent.finish(build)
    world.agent.report_failed(build, "it was half made")
    assert shown(world, uuid).attempts[0].state == "held"
    Mover(world, uuid).end("revert")
    assert becomes(world, uuid, "active").host == "a"


def test_an_evacuated_guest_is_destroyed_when_its_host_returns(world: World) -> None:
    uuid = built(world)
    source = shown(world, uuid).attempts[0]
    world.agent.no_reply_to_destroy = world.placement.declared_down = {"a"}
    Mover(world, uuid, "evacuation").move("b")
    becomes(world, uuid, "active")
    start_hosts(world, "a")

    [found] = ended_attempts(world, "a")

    assert found.attempt_id == source.attempt_id


def test_a_cleaning_ends_when_its_host_is_down_and_the_residue_has_been_released(world: World) -> None:
    uuid = built(world)
    world.conf.set_override("host_down_after", 0.2, group="scheduler")
    world.restart("cell")
    world.agent.no_reply_to_destroy = world.placement.declared_down = {"a"}
    start_hosts(world, "a")
    move = Mover(world, uuid, "evacuation")
    move.move("b")
    becomes(world, uuid, "active")
    wait_until_retried(world)
    assert world.placement.residues == {move.migration: node("a")}

    world.placement.release(move.migration)  # as deleting the host does

    wait_until(lambda: world.pending("cell") == 0)
    [found] = ended_attempts(world, "a")
    assert found.instance_uuid == uuid


def test_a_move_falls_back_when_its_destination_returns_without_the_guest(world: World) -> None:
    uuid = built(world)
    world.agent.may_finish.clear()
    Mover(world, uuid).move("b", "c")
    wait_until(lambda: len(world.agent.guests) == 2 and world.waiting() == 1)
    world.agent.guests.pop(world.agent.build_on("b").attempt_id)
    start_hosts(world, "b")

    return_hosts(world, "b")
    world.agent.may_finish.set()

    after = becomes(world, uuid, "moved")
    assert [(a.host, a.state) for a in after.attempts] == [("a", "held"), ("b", "failed"), ("c", "active")]


# --- Ownership of claims ----------------------------------------------------------------------------------------------


def test_a_cell_owns_every_claim_that_a_move_may_still_make(world: World) -> None:
    uuid = built(world)

    def owned(consumer: str, claim_id: str) -> bool:
        message = OwnsClaimInCell(request_id=ids.fresh(), consumer_uuid=consumer, claim_id=claim_id)
        return world.cell_call(message).owned

    move = Mover(world, uuid)
    placement = move.prepare()
    assert owned(uuid, ids.fresh()), "the claim of the move may still arrive"
    claim_id = move.claim(placement, "b")
    move.hand_over(placement, claim_id, ["b"])
    becomes(world, uuid, "moved")
    assert owned(uuid, claim_id)
    assert owned(move.migration, placement.claim_id)
    assert not owned(uuid, ids.fresh())
    move.end("confirm")
    becomes(world, uuid, "active")
    shelve(world, uuid)
    becomes(world, uuid, "shelved")
    assert not owned(uuid, ids.fresh())
