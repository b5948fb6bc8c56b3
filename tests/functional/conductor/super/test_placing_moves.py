"""Test moves until their hand-over: concurrent writes, refusals, lost messages, deletions, and dead conductors."""

from collections.abc import Callable
from typing import Any

import pytest
from support.conductor.builders import FakeScheduler, wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.moving_world import MovingWorld

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AbortMigration,
    ConfirmMigration,
    OwnsClaim,
    PrepareMoveInCell,
    SelectDestinations,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.model import Placement, Selection


class Scripted(FakeScheduler):
    """Performs the next of a list of acts at each request; without any left, it behaves normally."""

    def __init__(self, world: MovingWorld, *acts: Callable[[SelectDestinations], None]) -> None:
        super().__init__(world.placement)
        self.acts = list(acts)

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if self.acts:
            try:
                self.acts.pop(0)(message)
            except errors.MoorageError:
                self.requests.append(message)
                raise
        return super().select_destinations(message)

    def lose_reply(self, message: SelectDestinations) -> None:
        super().select_destinations(message)
        raise errors.Overloaded(reason="its reply is lost")

    @staticmethod
    def lose_request(_message: SelectDestinations) -> None:
        raise errors.Overloaded(reason="it is held back")

    @staticmethod
    def refuse(_message: SelectDestinations) -> None:
        raise errors.NoValidHost(instances=1, summary="all are full", explanation={"hosts": 3})

    @staticmethod
    def contend(_message: SelectDestinations) -> None:
        raise errors.ClaimContention(tries=1)

    def write_meanwhile(self, message: SelectDestinations) -> None:
        self.placement.touch(message.instance_uuids[0])


def scripted(world: MovingWorld, *names: str) -> Scripted:
    scheduler = Scripted(world)
    scheduler.acts = [getattr(scheduler, name) for name in names]
    world.replace(scheduler)
    return scheduler


def assert_unmoved(world: MovingWorld, uuid: str) -> None:
    shown = world.show(uuid)
    assert (shown.state, shown.host, shown.migration_uuid) == ("active", "a", None)
    assert world.placement.held[uuid].claim_id == shown.claim_id
    assert world.placement.migrations == {}


def move_and_confirm(world: MovingWorld, uuid: str) -> None:
    world.comes_to(world.migrate(uuid), "moved")
    world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))
    assert world.show(uuid).state == "active"


# --- Writes of other clients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "conflicts", "state"),
    [("fail", 1, "failed"), ("retry", 2, "moved"), ("retry", 3, "failed"), ("combine", 4, "moved")],
)
def test_the_conflict_policy_decides_how_often_a_move_is_retried_when_other_clients_write(
    world: MovingWorld, policy: str, conflicts: int, state: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy, max_contention_retries=2)
    uuid = world.active()
    scheduler = scripted(world, *["write_meanwhile"] * conflicts)

    migration = world.comes_to(world.migrate(uuid), state)

    requests = {message.request_id for message in scheduler.requests}
    generations = [message.consumer_generations[uuid] for message in scheduler.requests]
    assert generations == sorted(set(generations)), "each request names a generation that was read again"
    assert len(requests) == len(set(generations))
    if state == "failed":
        assert "generation" in str(migration.reason)
        assert_unmoved(world, uuid)
        move_and_confirm(world, uuid)


def test_a_move_under_claim_contention_is_retried_a_bounded_number_of_times(world: MovingWorld) -> None:
    world.restart("super", max_contention_retries=2)
    uuid = world.active()
    scripted(world, *["contend"] * 2)
    world.comes_to(world.migrate(uuid), "moved")
    world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))
    world.scheduler.hosts = ["a", "b"]
    scripted(world, *["contend"] * 3)

    migration = world.comes_to(world.migrate(uuid), "failed")

    assert "faster" in str(migration.reason)
    assert world.show(uuid).state == "active"


# --- Refused ----------------------------------------------------------------------------------------------------------


def test_a_move_without_a_valid_host_leaves_the_instance_as_it_was_and_records_the_reason(world: MovingWorld) -> None:
    uuid = world.active()
    scripted(world, "refuse")

    migration = world.comes_to(world.migrate(uuid), "failed")

    assert migration.explanation is not None
    assert migration.explanation.hosts == 3
    assert "all are full" in str(migration.reason)
    assert_unmoved(world, uuid)
    move_and_confirm(world, uuid)


def test_a_move_that_its_cell_refuses_fails_without_a_request_to_the_scheduler(world: MovingWorld) -> None:
    uuid = world.active()
    world.cell.refusing = {"prepare_move": "it is not the time"}

    migration = world.comes_to(world.migrate(uuid), "failed")

    assert "it is not the time" in str(migration.reason)
    assert [message.move for message in world.scheduler.requests] == [None]
    assert_unmoved(world, uuid)
    world.cell.refusing = {}
    move_and_confirm(world, uuid)


class TooLargeAnswers(FakeCell):
    """Reserves instances, but its answers to that do not fit into a message."""

    def once(self, message: object, work: Callable[[], Any]) -> Any:
        answer = super().once(message, work)  # type: ignore[arg-type]
        method = getattr(message, "method", "")
        if method.startswith("prepare_"):
            raise errors.ReplyTooLarge(method=method, size=2_000_000, limit=1_000_000)
        return answer


@pytest.mark.parametrize("state", ["active", "shelved"])
def test_an_instance_is_free_again_if_its_cell_has_reserved_it_and_cannot_answer(
    world: MovingWorld, state: str
) -> None:
    uuid = world.active()
    if state == "shelved":
        world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    cell = world.replace_cell(TooLargeAnswers(world.placement))

    if state == "shelved":
        world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    else:
        assert "at most 1000000" in str(world.comes_to(world.migrate(uuid), "failed").reason)

    wait_until(lambda: world.pending("conductor") == 0)
    assert cell.instances[uuid].state == state


# --- Lost messages ----------------------------------------------------------------------------------------------------


def test_a_request_whose_reply_is_lost_is_repeated_unchanged_and_claims_once(world: MovingWorld) -> None:
    uuid = world.active()
    scheduler = scripted(world, "lose_reply")

    world.comes_to(world.migrate(uuid), "moved")

    assert len({message.request_id for message in scheduler.requests}) == 1
    assert len(world.placement.migrations) == 1


def test_an_unanswered_request_is_repeated_until_it_is_answered(world: MovingWorld) -> None:
    uuid = world.active()
    scheduler = scripted(world, *["lose_request"] * 8)

    world.comes_to(world.migrate(uuid), "moved")

    assert len({message.request_id for message in scheduler.requests}) == 1


@pytest.mark.parametrize("acts", [("lose_reply", "refuse"), ("lose_reply", "contend")])
def test_a_refusal_after_a_request_that_was_carried_out_does_not_count(
    world: MovingWorld, acts: tuple[str, ...]
) -> None:
    uuid = world.active()
    scheduler = scripted(world, *acts)

    world.comes_to(world.migrate(uuid), "moved")

    assert len({message.request_id for message in scheduler.requests if message.move}) == 1
    assert len(world.placement.migrations) == 1


def test_a_request_that_is_carried_out_after_a_later_refusal_claims_nothing(world: MovingWorld) -> None:
    uuid = world.active()
    scheduler = scripted(world, "lose_request", "refuse")

    migration_uuid = world.migrate(uuid)
    world.comes_to(migration_uuid, "failed")

    with pytest.raises(errors.ConsumerDeleted):
        scheduler.decide(scheduler.requests[0])
    assert_unmoved(world, uuid)
    move_and_confirm(world, uuid)


class LosesReplies(FakeCell):
    """Carries out all orders, but loses the first replies of one method."""

    method = ""
    lost = 0

    def once(self, message: object, work: Callable[[], Any]) -> Any:
        answer = super().once(message, work)  # type: ignore[arg-type]
        if self.lost > 0 and getattr(message, "method", "") == self.method:
            self.lost -= 1
            raise errors.Overloaded(reason="its reply is lost")
        return answer


def losing_replies(world: MovingWorld, method: str, lost: int) -> LosesReplies:
    """Replace the cell by one that loses replies of a method; return it."""
    cell = world.replace_cell(LosesReplies(world.placement))
    cell.method, cell.lost = method, lost
    if method == "cancel_move":
        scripted(world, "refuse")
    return cell


@pytest.mark.parametrize("method", ["prepare_move", "move_instance", "cancel_move"])
def test_a_message_to_the_cell_whose_reply_is_lost_is_repeated_and_carried_out_once(
    world: MovingWorld, method: str
) -> None:
    uuid = world.active()
    cell = losing_replies(world, method, 3)

    world.comes_to(world.migrate(uuid), "failed" if method == "cancel_move" else "moved")

    assert cell.methods().count(method) == 4
    assert len({message.request_id for message in cell.received if message.method == method}) == 1


def test_a_live_migration_is_aborted_while_its_cell_has_prepared_it_and_the_reply_is_lost(world: MovingWorld) -> None:
    uuid = world.active()
    cell = losing_replies(world, "prepare_move", 10**3)
    migration_uuid = world.live_migrate(uuid)
    wait_until(lambda: cell.lost < 10**3)

    world.order(AbortMigration(request_id=ids.fresh(), instance_uuid=uuid))

    assert world.comes_to(migration_uuid, "failed").reason == "it was aborted"
    assert_unmoved(world, uuid)


def test_a_late_preparation_is_refused_after_a_repeated_one_was_refused(world: MovingWorld) -> None:
    class Late(FakeCell):
        held_back: PrepareMoveInCell | None = None

        @serves(PrepareMoveInCell)
        def prepare_move(self, message: PrepareMoveInCell) -> Placement:
            if self.held_back is None:
                self.held_back = message
                raise errors.Overloaded(reason="it is held back")
            if not self.cancelled:
                raise errors.InvalidState(reason="it is not the time")
            return super().prepare_move(message)

    uuid = world.active()
    cell = world.replace_cell(Late(world.placement))

    world.comes_to(world.migrate(uuid), "failed")

    assert cell.held_back is not None
    with pytest.raises(errors.InvalidState):
        cell.prepare_move(cell.held_back)
    assert_unmoved(world, uuid)


# --- Deletions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["prepare_move", "move_instance", "cancel_move"])
def test_a_move_whose_instance_is_deleted_ends_with_it_and_leaves_nothing(world: MovingWorld, method: str) -> None:
    uuid = world.active()
    cell = losing_replies(world, method, 10**6)
    migration_uuid = world.migrate(uuid)
    wait_until(lambda: cell.methods().count(method) > 1)

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    cell.lost = 0
    world.comes_to(migration_uuid, "ended")
    assert world.placement.held == {}
    assert world.placement.migrations == {}


def test_a_move_whose_instance_is_deleted_while_the_scheduler_does_not_answer_claims_nothing_later(
    world: MovingWorld,
) -> None:
    uuid = world.active()
    scheduler = scripted(world, *["lose_request"] * 10**3)
    migration_uuid = world.migrate(uuid)
    wait_until(lambda: bool(scheduler.requests))

    world.delete(uuid)

    world.comes_to(migration_uuid, "ended")
    world.becomes(uuid, "deleted")
    with pytest.raises(errors.ConsumerDeleted):
        scheduler.decide(scheduler.requests[0])
    assert world.placement.held == {}


def test_the_super_conductor_owns_the_claim_of_a_move_until_it_is_handed_over(world: MovingWorld) -> None:
    uuid = world.active()
    world.cell.refusing = {"move_instance": "not now"}
    migration_uuid = world.migrate(uuid)
    wait_until(lambda: "move_instance" in world.cell.methods())
    claim_id = world.placement.held[uuid].claim_id
    assert claim_id is not None

    owned = world.order(OwnsClaim(request_id=ids.fresh(), consumer_uuid=uuid, claim_id=claim_id)).owned

    assert owned
    wait_until(lambda: "not now" in str(world.migration(migration_uuid).reason))
    world.cell.refusing = {}
    world.comes_to(migration_uuid, "moved")


# --- Dead conductors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["prepare_move", "move_instance", "cancel_move", "select"])
def test_another_conductor_continues_a_move_from_each_step(world: MovingWorld, method: str) -> None:
    uuid = world.active()
    cell = losing_replies(world, method, 10**6)
    if method == "select":
        scripted(world, *["lose_request"] * 10**3)
    migration_uuid = world.migrate(uuid)
    wait_until(lambda: cell.methods().count(method) > 1 or len(world.scheduler.requests) > 1)
    world.die("super", "conductor", lease=0.2)
    cell.lost = 0
    if method == "select":
        world.replace(FakeScheduler(world.placement))

    world.start("super", called="another")

    world.comes_to(migration_uuid, "failed" if method == "cancel_move" else "moved")
    assert len(world.placement.migrations) == (0 if method == "cancel_move" else 1)
