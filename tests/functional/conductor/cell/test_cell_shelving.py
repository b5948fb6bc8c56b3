"""Test shelving, unshelving and rebuilding in a cell."""

import time

import pytest
from support.conductor.builders import FakeAgent, FakePlacement, World, node, wait_until
from support.conductor.host_reports import ended_attempts, report_gone
from support.conductor.moving_instances import Mover, becomes, built, rebuild, shelve, shown, unshelve

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    CancelUnshelveInCell,
    DeleteAllocations,
    PrepareUnshelveInCell,
    RebuildOnHost,
    Released,
    StartOnHost,
    StopOnHost,
)

GPU = ids.derived("gpu")


def shelved(world: World) -> str:
    uuid = built(world)
    shelve(world, uuid)
    becomes(world, uuid, "shelved")
    return uuid


def test_a_shelved_instance_holds_nothing_and_has_no_guest(world: World) -> None:
    uuid = shelved(world)

    instance = shown(world, uuid)
    assert (instance.host, instance.claim_id) == (None, None)
    assert world.placement.held == {}
    assert uuid not in world.placement.deleted
    assert world.agent.guests == {}
    assert [attempt.state for attempt in instance.attempts] == ["ended"]
    assert world.pending("cell") == 0


def test_shelving_waits_for_a_host_that_does_not_answer_and_can_be_ordered_again(world: World) -> None:
    uuid = built(world)
    world.agent.no_reply_to_destroy = {"a"}
    shelve(world, uuid)
    wait_until(lambda: world.pending("cell", "AND reason IS NOT NULL") == 1)
    shelve(world, uuid)

    assert (shown(world, uuid).state, world.placement.hosts_held()) == ("shelving", {node("a")})
    world.agent.no_reply_to_destroy = set()
    becomes(world, uuid, "shelved")


def test_shelving_is_refused_at_once_on_a_host_that_is_declared_down(world: World) -> None:
    # On a busy machine, the cell has to wait for the answer.
    world.conf.set_override("call_timeout", 60.0, group="rpc")
    world.restart("cell")
    uuid = built(world)
    before = shown(world, uuid)
    world.placement.declared_down = {"a"}

    with pytest.raises(errors.InvalidState, match=r"on host a, which is forced down.*: evacuate it"):
        shelve(world, uuid)

    assert shown(world, uuid) == before
    world.placement.declared_down = set()
    shelve(world, uuid)
    becomes(world, uuid, "shelved")


def test_shelving_that_waits_for_a_dead_host_is_completed_with_a_residue_once_it_is_declared_down(world: World) -> None:
    uuid = built(world)
    world.agent.no_reply_to_destroy = {"a"}
    shelve(world, uuid)
    names_the_command = "AND CAST(reason AS TEXT) LIKE '%moorage host set a --forced-down%'"
    wait_until(lambda: world.pending("cell", names_the_command) == 1)
    assert world.placement.hosts_held() == {node("a")}

    world.placement.declared_down = {"a"}

    instance = becomes(world, uuid, "shelved")
    [attempt] = instance.attempts
    assert "host a is forced down" in str(instance.reason)
    assert (instance.host, instance.claim_id, world.placement.held) == (None, None, {})
    assert world.placement.residues == {attempt.attempt_id: node("a")}
    unshelve(world, uuid, "b")
    assert becomes(world, uuid, "active").reason is None
    assert world.placement.residues == {attempt.attempt_id: node("a")}
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert {guest.host for guest in world.agent.guests.values()} == {"b"}
    assert world.placement.hosts_held() == {node("b")}


def test_no_residue_stays_of_a_shelved_instance_whose_guest_is_reported_gone_before_the_residue_is_left(
    world: World,
) -> None:
    class ReportedBefore(FakePlacement):
        """Gets each request to leave a residue only after the host has reported the guest as gone."""

        @serves(DeleteAllocations)
        def delete_allocations(self, message: DeleteAllocations) -> Released:
            if message.leave_residue:
                report_gone(world, *ended_attempts(world, "a"))
            return super().delete_allocations(message)

    placement = world.replace(ReportedBefore())
    uuid = built(world)
    world.agent.no_reply_to_destroy = {"a"}
    shelve(world, uuid)
    placement.declared_down = {"a"}

    [attempt] = becomes(world, uuid, "shelved").attempts

    assert not attempt.guest_left
    wait_until(lambda: not placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert attempt.attempt_id in placement.deleted


def test_released_foreign_amounts_of_a_shelved_instance_are_named_in_its_record(world: World) -> None:
    uuid = built(world)
    world.placement.put_beside(uuid, GPU, VGPU=2)

    shelve(world, uuid)

    reason = becomes(world, uuid, "shelved").reason
    assert reason == f"foreign allocations were deleted: 2 VGPU of provider {GPU}"
    assert uuid not in world.placement.foreign
    unshelve(world, uuid, "b")
    assert becomes(world, uuid, "active").reason is None


@pytest.mark.parametrize("again", [False, True])
def test_released_foreign_amounts_of_an_instance_that_starts_on_no_host_are_named_in_its_record(
    world: World, again: bool
) -> None:
    uuid = shelved(world) if again else ids.fresh()
    world.agent.failing = {"a", "b", "c"}
    world.placement.put_beside(uuid, GPU, VGPU=2)

    if again:
        unshelve(world, uuid, "b", "c")
        wait_until(lambda: uuid not in world.placement.foreign)
    else:
        world.build(uuid)

    reason = str(becomes(world, uuid, "shelved" if again else "error").reason)
    assert "c: c is broken" in reason
    assert reason.endswith(f"; foreign allocations were deleted: 2 VGPU of provider {GPU}")


def test_an_unshelved_instance_runs_on_its_claimed_host_and_the_numbers_of_its_attempts_continue(world: World) -> None:
    uuid = shelved(world)
    world.agent.failing = {"b"}
    unshelve(world, uuid, "b", "c")

    instance = becomes(world, uuid, "active")

    assert (instance.host, instance.claim_id) == ("c", world.placement.held[uuid].claim_id)
    assert [(a.number, a.host, a.state) for a in instance.attempts] == [
        (1, "a", "ended"),
        (2, "b", "failed"),
        (3, "c", "active"),
    ]
    assert world.placement.hosts_held() == {node("c")}
    move = Mover(world, uuid)
    move.move("a")
    becomes(world, uuid, "moved")
    move.end("revert")
    assert becomes(world, uuid, "active").host == "c"


def test_an_instance_that_starts_on_no_host_is_shelved_again_and_can_be_unshelved_again(world: World) -> None:
    uuid = shelved(world)
    world.agent.failing = {"b", "c"}
    # A reason may be a sentence of its own.
    world.agent.failure = "is broken."
    unshelve(world, uuid, "b", "c")

    instance = becomes(world, uuid, "shelved")

    assert str(instance.reason).endswith(" that was tried: b: b is broken; c: c is broken.")
    assert "a:" not in str(instance.reason).replace("instance", "")
    assert (instance.host, instance.claim_id, world.placement.held) == (None, None, {})
    assert uuid not in world.placement.deleted
    unshelve(world, uuid, "a")
    instance = becomes(world, uuid, "active")
    assert (instance.host, instance.reason) == ("a", None)


def test_a_cancelled_unshelving_leaves_the_instance_shelved_and_an_unfinished_one_can_be_repeated(world: World) -> None:
    uuid = shelved(world)
    prepare = PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid)
    world.cell_call(prepare)
    assert shown(world, uuid).state == "unshelving"

    world.cell_call(CancelUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid, reason="no room"))

    assert (shown(world, uuid).state, shown(world, uuid).reason) == ("shelved", "no room")
    world.cell_call(PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid))
    unshelve(world, uuid, "a")
    becomes(world, uuid, "active")
    with pytest.raises(errors.InvalidState, match="has to be shelved"):
        world.cell_call(PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid))


def test_an_unshelving_under_a_revoked_claim_starts_nothing(world: World) -> None:
    uuid = shelved(world)
    claim = world.placement.claim

    def revoking(consumer: str, root: str, generation: int | None = None, *, keep_held: bool = False) -> str:
        claim_id = claim(consumer, root, generation, keep_held=keep_held)
        world.revoke(world.placement.cells[0].uuid, claim_id, consumer)
        return claim_id

    world.placement.claim = revoking  # type: ignore[method-assign]
    unshelve(world, uuid, "b")

    instance = becomes(world, uuid, "shelved")

    assert "was revoked" in str(instance.reason)
    assert world.placement.held == {}
    assert {build.host for build in world.agent.builds} == {"a"}


def test_only_an_active_instance_is_shelved(world: World) -> None:
    uuid = shelved(world)
    with pytest.raises(errors.InvalidState, match="is shelved; it has to be active"):
        shelve(world, uuid)
    with pytest.raises(errors.InvalidState):
        rebuild(world, uuid, "other")
    with pytest.raises(errors.InstanceNotFound):
        shelve(world, ids.fresh())
    world.delete(uuid)
    becomes(world, uuid, "deleted")
    assert uuid in world.placement.deleted


def test_a_rebuilt_instance_keeps_its_attempt_and_its_claim(world: World) -> None:
    uuid = built(world)
    before = shown(world, uuid)
    writes = len(world.placement.calls)

    rebuild(world, uuid, "other")

    after = becomes(world, uuid, "active")
    assert (after.claim_id, [a.attempt_id for a in after.attempts]) == (
        before.claim_id,
        [a.attempt_id for a in before.attempts],
    )
    assert not any(isinstance(call, DeleteAllocations) for call in world.placement.calls[writes:])
    [order] = world.agent.orders
    assert isinstance(order, RebuildOnHost)
    assert order.image.id == "other"
    placement = Mover(world, uuid).prepare()
    assert placement.request_spec.image.id == "other"


def test_a_rebuild_that_fails_leaves_the_instance_in_error_until_one_succeeds(world: World) -> None:
    uuid = built(world)
    world.agent.stuck = {"a"}
    rebuild(world, uuid, "other")

    instance = becomes(world, uuid, "error")

    assert "it is stuck" in str(instance.reason)
    assert (instance.host, world.placement.hosts_held()) == ("a", {node("a")})
    assert len(world.agent.orders) == 3, "a failed rebuild is retried twice"
    world.agent.stuck = set()
    rebuild(world, uuid, "other")
    assert becomes(world, uuid, "active").reason is None


def test_a_rebuild_that_its_host_does_not_finish_in_time_leaves_the_instance_in_error(world: World) -> None:
    uuid = built(world)
    world.restart("cell", build_timeout=0.3)
    world.agent.slow = {"a"}
    rebuild(world, uuid, "other")

    instance = becomes(world, uuid, "error")

    assert instance.reason == "it could not be rebuilt: host a has not finished it within 0.3 s"
    assert len({order.request_id for order in world.agent.orders}) == 1 < len(world.agent.orders)
    assert world.pending("cell") == 0
    world.agent.slow = set()
    rebuild(world, uuid, "another")
    assert becomes(world, uuid, "active").reason is None


def test_the_time_of_a_rebuild_begins_when_its_host_has_the_order(world: World) -> None:
    class SlowOnce(FakeAgent):
        """Answers the first order that reaches a slow host before the host has finished it, and no later one."""

        def carry_out(self, message: StopOnHost | StartOnHost | RebuildOnHost, action: str) -> None:
            try:
                super().carry_out(message, action)
            except errors.RequestInProgress:
                self.slow = set()
                raise

    world.replace(SlowOnce(world.bus))
    uuid = built(world)
    world.restart("cell", build_timeout=0.5)
    world.agent.no_reply_to_orders = {"a"}
    rebuild(world, uuid, "other")
    wait_until(lambda: world.agent.orders)
    time.sleep(0.6)
    world.agent.slow, world.agent.no_reply_to_orders = {"a"}, set()

    assert becomes(world, uuid, "active").reason is None
    assert world.agent.slow == set()
