"""Moves between their order and their cell: what others write meanwhile, refusals, silence, and deaths."""

from collections.abc import Callable

import pytest
from support.conductor.builders import CELL_1, FakeScheduler, wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.moving_world import MovingWorld

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    ConfirmMigration,
    OwnsClaim,
    PrepareMoveInCell,
    SelectDestinations,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.model import Placement, Selection


class Scripted(FakeScheduler):
    """Does with each request what is next on its list, and after that what it should."""

    def __init__(self, world: MovingWorld, *acts: Callable[[SelectDestinations], None]) -> None:
        super().__init__(world.placement)
        self.acts = list(acts)

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if self.acts:
            try:
                self.acts.pop(0)(message)
            except errors.MoorageError:
                self.asked.append(message)
                raise
        return super().select_destinations(message)

    def carry_out_unheard(self, message: SelectDestinations) -> None:
        super().select_destinations(message)
        raise errors.Overloaded(reason="its reply is lost")

    @staticmethod
    def lose(_message: SelectDestinations) -> None:
        raise errors.Overloaded(reason="it is held back")

    @staticmethod
    def refuse(_message: SelectDestinations) -> None:
        raise errors.NoValidHost(instances=1, summary="all are full", explanation={"hosts": 3})

    @staticmethod
    def contend(_message: SelectDestinations) -> None:
        raise errors.ClaimContention(tries=1)

    def write_between(self, message: SelectDestinations) -> None:
        self.placement.touch(message.instance_uuids[0])


def scripted(world: MovingWorld, *names: str) -> Scripted:
    scheduler = Scripted(world)
    scheduler.acts = [getattr(scheduler, name) for name in names]
    world.put(scheduler)
    return scheduler


def is_as_it_was(world: MovingWorld, uuid: str) -> bool:
    shown = world.show(uuid)
    assert (shown.state, shown.host, shown.migration_uuid) == ("active", "a", None)
    assert world.placement.held[uuid].claim_id == shown.claim_id
    return world.placement.migrations == {}


def ends_well_the_next_time(world: MovingWorld, uuid: str) -> bool:
    world.comes_to(world.migrate(uuid), "moved")
    world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))
    return world.show(uuid).state == "active"


# --- Others write meanwhile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "conflicts", "state"),
    [("fail", 1, "failed"), ("retry", 2, "moved"), ("retry", 3, "failed"), ("combine", 4, "moved")],
)
def test_what_a_move_does_when_others_write_is_the_policys(
    world: MovingWorld, policy: str, conflicts: int, state: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy, max_contention_retries=2)
    uuid = world.active()
    scheduler = scripted(world, *["write_between"] * conflicts)

    migration = world.comes_to(world.migrate(uuid), state)

    requests = {message.request_id for message in scheduler.asked}
    generations = [message.consumer_generations[uuid] for message in scheduler.asked]
    assert generations == sorted(set(generations)), "each request names what was read anew"
    assert len(requests) == len(set(generations))
    if state == "failed":
        assert "generation" in str(migration.reason)
        assert is_as_it_was(world, uuid)
        assert ends_well_the_next_time(world, uuid)


def test_a_move_that_loses_to_other_claims_asks_again_a_bounded_number_of_times(world: MovingWorld) -> None:
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


def test_a_move_for_which_there_is_no_host_leaves_the_instance_as_it_was_and_says_why(world: MovingWorld) -> None:
    uuid = world.active()
    scripted(world, "refuse")

    migration = world.comes_to(world.migrate(uuid), "failed")

    assert migration.explanation is not None
    assert migration.explanation.hosts == 3
    assert "all are full" in str(migration.reason)
    assert is_as_it_was(world, uuid)
    assert ends_well_the_next_time(world, uuid)


def test_a_move_that_its_cell_refuses_has_failed_and_nothing_was_asked_for(world: MovingWorld) -> None:
    uuid = world.active()
    world.cell.refusing = {"prepare_move": "it is not the time"}

    migration = world.comes_to(world.migrate(uuid), "failed")

    assert "it is not the time" in str(migration.reason)
    assert [message.move for message in world.scheduler.asked] == [None]
    assert is_as_it_was(world, uuid)
    world.cell.refusing = {}
    assert ends_well_the_next_time(world, uuid)


class Verbose(FakeCell):
    """Reserves instances, and has answers to that which do not fit into a message."""

    def once(self, message: object, work: Callable[[], object]) -> object:
        answer = super().once(message, work)  # type: ignore[arg-type]
        method = getattr(message, "method", "")
        if method.startswith("prepare_"):
            raise errors.ReplyTooLarge(method=method, size=2_000_000, limit=1_000_000)
        return answer


@pytest.mark.parametrize("state", ["active", "shelved"])
def test_an_instance_whose_cell_has_reserved_it_and_cannot_answer_is_free_again(world: MovingWorld, state: str) -> None:
    uuid = world.active()
    if state == "shelved":
        world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    cell = Verbose(world.placement)
    cell.instances, world.cell = world.cell.instances, cell
    world.serve(f"conductor.{CELL_1.uuid}", cell)

    if state == "shelved":
        world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    else:
        assert "at most 1000000" in str(world.comes_to(world.migrate(uuid), "failed").reason)

    wait_until(lambda: world.pending("conductor") == 0)
    assert cell.instances[uuid].state == state


# --- Silence ----------------------------------------------------------------------------------------------------------


def test_a_request_whose_reply_is_lost_is_repeated_as_it_was_and_claims_once(world: MovingWorld) -> None:
    uuid = world.active()
    scheduler = scripted(world, "carry_out_unheard")

    world.comes_to(world.migrate(uuid), "moved")

    assert len({message.request_id for message in scheduler.asked}) == 1
    assert len(world.placement.migrations) == 1


def test_a_request_that_nobody_answers_is_repeated_for_as_long_as_it_takes(world: MovingWorld) -> None:
    uuid = world.active()
    scheduler = scripted(world, *["lose"] * 8)

    world.comes_to(world.migrate(uuid), "moved")

    assert len({message.request_id for message in scheduler.asked}) == 1


@pytest.mark.parametrize("acts", [("carry_out_unheard", "refuse"), ("carry_out_unheard", "contend")])
def test_a_refusal_that_follows_a_request_which_was_carried_out_does_not_count(
    world: MovingWorld, acts: tuple[str, ...]
) -> None:
    uuid = world.active()
    scheduler = scripted(world, *acts)

    world.comes_to(world.migrate(uuid), "moved")

    assert len({message.request_id for message in scheduler.asked if message.move}) == 1
    assert len(world.placement.migrations) == 1


def test_a_request_that_is_carried_out_after_a_later_refusal_claims_nothing(world: MovingWorld) -> None:
    uuid = world.active()
    scheduler = scripted(world, "lose", "refuse")

    migration_uuid = world.migrate(uuid)
    world.comes_to(migration_uuid, "failed")

    with pytest.raises(errors.ConsumerDeleted):
        scheduler.decide(scheduler.asked[0])
    assert is_as_it_was(world, uuid)
    assert ends_well_the_next_time(world, uuid)


class Silent(FakeCell):
    """Carries out what it is ordered to and loses the replies to one method, so many times."""

    method = ""
    lost = 0

    def once(self, message: object, work: Callable[[], object]) -> object:
        answer = super().once(message, work)  # type: ignore[arg-type]
        if self.lost > 0 and getattr(message, "method", "") == self.method:
            self.lost -= 1
            raise errors.Overloaded(reason="its reply is lost")
        return answer


@pytest.mark.parametrize("method", ["prepare_move", "move_instance", "cancel_move"])
def test_a_cell_whose_reply_is_lost_is_asked_again_and_does_everything_once(world: MovingWorld, method: str) -> None:
    uuid = world.active()
    cell = Silent(world.placement)
    cell.instances, cell.method, cell.lost = world.cell.instances, method, 3
    world.cell = cell
    world.serve(f"conductor.{CELL_1.uuid}", cell)
    if method == "cancel_move":
        scripted(world, "refuse")

    world.comes_to(world.migrate(uuid), "failed" if method == "cancel_move" else "moved")

    assert cell.methods().count(method) == 4
    assert len({message.request_id for message in cell.taken if message.method == method}) == 1


def test_a_preparation_that_arrives_after_a_later_one_was_refused_takes_nothing(world: MovingWorld) -> None:
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
    cell = Late(world.placement)
    cell.instances = world.cell.instances
    world.serve(f"conductor.{CELL_1.uuid}", cell)

    world.comes_to(world.migrate(uuid), "failed")

    assert cell.held_back is not None
    with pytest.raises(errors.InvalidState):
        cell.prepare_move(cell.held_back)
    assert is_as_it_was(world, uuid)


# --- Deleted meanwhile ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["prepare_move", "move_instance", "cancel_move"])
def test_a_move_whose_instance_is_deleted_ends_with_it_and_leaves_nothing(world: MovingWorld, method: str) -> None:
    uuid = world.active()
    world.cell.refusing = {}
    cell = Silent(world.placement)
    cell.instances, cell.method, cell.lost = world.cell.instances, method, 10**6
    world.serve(f"conductor.{CELL_1.uuid}", cell)
    if method == "cancel_move":
        scripted(world, "refuse")
    migration_uuid = world.migrate(uuid)
    wait_until(lambda: cell.methods().count(method) > 1)

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    cell.lost = 0
    world.comes_to(migration_uuid, "ended")
    assert world.placement.held == {}
    assert world.placement.migrations == {}


def test_a_move_whose_instance_is_deleted_while_nobody_answers_claims_nothing_later(world: MovingWorld) -> None:
    uuid = world.active()
    scheduler = scripted(world, *["lose"] * 10**3)
    migration_uuid = world.migrate(uuid)
    wait_until(lambda: bool(scheduler.asked))

    world.delete(uuid)

    world.comes_to(migration_uuid, "ended")
    world.becomes(uuid, "deleted")
    with pytest.raises(errors.ConsumerDeleted):
        scheduler.decide(scheduler.asked[0])
    assert world.placement.held == {}


def test_the_claim_of_a_move_is_wanted_as_long_as_its_cell_has_not_taken_it(world: MovingWorld) -> None:
    uuid = world.active()
    world.cell.refusing = {"move_instance": "not now"}
    migration_uuid = world.migrate(uuid)
    wait_until(lambda: "move_instance" in world.cell.methods())
    claim_id = world.placement.held[uuid].claim_id

    owned = world.order(OwnsClaim(request_id=ids.fresh(), consumer_uuid=uuid, claim_id=claim_id)).owned

    assert owned
    wait_until(lambda: "not now" in str(world.migration(migration_uuid).reason))
    world.cell.refusing = {}
    world.comes_to(migration_uuid, "moved")


# --- Deaths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["prepare_move", "move_instance", "cancel_move", "select"])
def test_a_move_is_gone_on_with_by_another_conductor_from_whichever_step(world: MovingWorld, method: str) -> None:
    uuid = world.active()
    cell = Silent(world.placement)
    cell.instances, cell.method, cell.lost = world.cell.instances, method, 10**6
    world.cell = cell
    world.serve(f"conductor.{CELL_1.uuid}", cell)
    if method == "cancel_move":
        scripted(world, "refuse")
    if method == "select":
        scripted(world, *["lose"] * 10**3)
    migration_uuid = world.migrate(uuid)
    wait_until(lambda: cell.methods().count(method) > 1 or len(world.scheduler.asked) > 1)
    world.die("super", "conductor", lease=0.2)
    cell.lost = 0
    if method == "select":
        world.serve("scheduler", FakeScheduler(world.placement))

    world.start("super", called="another")

    world.comes_to(migration_uuid, "failed" if method == "cancel_move" else "moved")
    assert len(world.placement.migrations) == (0 if method == "cancel_move" else 1)
