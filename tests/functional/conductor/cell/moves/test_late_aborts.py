"""Test aborts of moves before a scheduler has answered, after they have ended, and during a swap."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event
from support.conductor.builders import FakePlacement, FakeScheduler, World, node, wait_until
from support.conductor.fake_agent import FakeAgent
from support.conductor.moving_instances import Mover, becomes, built

from moorage import context, errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AbortMigration,
    BuildOnHost,
    Claimed,
    Done,
    EndMove,
    LiveMigrateInstance,
    MigrateInstance,
    MoveEnded,
    SelectDestinations,
    ShowMigration,
    SwapClaim,
)
from moorage.model import Migration, MoveKind, Selection


class BuildsAndRefuses(FakeAgent):
    """Begins a build on host `b`, and answers that there is no such host."""

    @serves(BuildOnHost)
    def build_instance(self, message: BuildOnHost) -> Done:
        done = super().build_instance(message)
        if message.host == "b":
            wait_until(lambda: message.attempt_id in self.guests)
            raise errors.HostNotFound(name="b")
        return done


class Refuses(FakeAgent):
    """Has no host `b`."""

    @serves(BuildOnHost)
    def build_instance(self, message: BuildOnHost) -> Done:
        if message.host == "b":
            raise errors.HostNotFound(name="b")
        return super().build_instance(message)


class Interrupted(FakePlacement):
    """Calls a function before each swap and before each end of a move."""

    def __init__(self, before: Callable[[], object]) -> None:
        super().__init__()
        self.before = before

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        self.before()
        return super().swap_claim(message)

    @serves(EndMove)
    def end_move(self, message: EndMove) -> MoveEnded:
        self.before()
        return super().end_move(message)


def test_a_live_migration_is_aborted_during_a_swap_although_the_former_host_takes_up_the_build(world: World) -> None:
    placement = world.replace(Interrupted(lambda: move.end("abort")))
    world.replace(BuildsAndRefuses(world.bus))
    move = Mover(world, built(world), "live-migration")
    world.agent.may_finish.clear()

    move.move("b", "c")

    wait_until(lambda: any(isinstance(call, SwapClaim) for call in placement.calls))
    wait_until(lambda: world.pending("cell", "AND step = 'swap'") == 0)
    world.agent.may_finish.set()
    is_broken_off(world, move)


def test_a_live_migration_that_is_aborted_during_a_swap_is_not_begun_on_the_new_host(world: World) -> None:
    world.replace(Interrupted(lambda: move.end("abort")))
    world.agent.failing = {"b"}
    move = Mover(world, built(world), "live-migration")

    move.move("b", "c")

    wait_until(lambda: move.shown().state in ("failed", "confirmed"))
    is_broken_off(world, move)
    assert [build.host for build in world.agent.builds] == ["a", "b"]
    [failed, unbegun] = move.shown().attempts
    assert (failed.reason, unbegun.host, unbegun.state) == ("b is broken", "c", "failed")
    assert "before it began" in str(unbegun.reason)


@pytest.mark.parametrize("is_refused", [True, False])
def test_the_reasons_of_a_live_migration_that_has_failed_stay_when_it_is_aborted(
    world: World, *, is_refused: bool
) -> None:
    world.replace(Interrupted(lambda: move.end("abort")))
    if is_refused:
        world.replace(Refuses(world.bus))
    world.agent.failing = {"b"}
    move = Mover(world, built(world), "live-migration")

    move.move("b")

    assert becomes(world, move.uuid, "active").host == "a"
    assert move.shown().state == "failed"
    assert str(move.shown().reason).startswith("b: ")


def is_broken_off(world: World, move: Mover) -> None:
    assert becomes(world, move.uuid, "active").host == "a"
    assert (move.shown().state, move.shown().reason) == ("failed", "it was aborted")
    wait_until(lambda: world.pending("cell") == 0)
    assert world.placement.hosts_held() == {node("a")}
    assert {guest.host for guest in world.agent.guests.values()} == {"a"}


class AwayScheduler(FakeScheduler):
    """Does not answer requests for moves; it may carry out the first one."""

    def __init__(self, placement: FakePlacement, *, claims: bool) -> None:
        super().__init__(placement)
        self.claims = claims
        self.is_away = True
        self.asked: list[SelectDestinations] = []

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if message.move is None or not self.is_away:
            return super().select_destinations(message)
        if self.claims and not self.asked:
            super().select_destinations(message)
        self.asked.append(message)
        raise errors.StoreUnavailable(schema="main", reason="away")


def live_migrate(world: World, uuid: str) -> str:
    order = LiveMigrateInstance(request_id=ids.fresh(), instance_uuid=uuid)
    return world.bus.client("conductor").call(order).migration_uuid


def ends(world: World, migration_uuid: str) -> Migration:
    conductor = world.bus.client("conductor")
    wait_until(lambda: conductor.call(ShowMigration(uuid=migration_uuid)).state == "failed")
    wait_until(lambda: world.pending("conductor") == world.pending("cell") == 0)
    return conductor.call(ShowMigration(uuid=migration_uuid))


def assert_only_on_its_source(world: World, uuid: str) -> None:
    after = world.show(uuid)
    assert (after.state, after.host, after.migration_uuid) == ("active", "a", None)
    assert world.placement.hosts_held() == {node("a")}
    assert {guest.host for guest in world.agent.guests.values()} == {"a"}


def test_a_live_migration_is_aborted_while_no_scheduler_answers_and_a_late_request_claims_nothing(world: World) -> None:
    scheduler = world.replace(AwayScheduler(world.placement, claims=False))
    [uuid] = world.build()
    world.becomes(uuid, "active")
    migration = live_migrate(world, uuid)
    wait_until(lambda: len(scheduler.asked) > 1)
    abort = AbortMigration(request_id=ids.fresh(), instance_uuid=uuid)

    world.bus.client("conductor").call(abort)

    assert ends(world, migration).reason == "it was aborted"
    assert world.bus.client("conductor").call(abort) == Done()
    with pytest.raises(errors.ConsumerDeleted):
        scheduler.decide(scheduler.asked[0])
    assert_only_on_its_source(world, uuid)
    scheduler.is_away = False
    again = live_migrate(world, uuid)
    wait_until(lambda: world.bus.client("conductor").call(ShowMigration(uuid=again)).state == "confirmed")


def test_a_live_migration_that_has_claimed_without_an_answer_is_aborted_once_the_scheduler_answers(
    world: World,
) -> None:
    scheduler = world.replace(AwayScheduler(world.placement, claims=True))
    [uuid] = world.build()
    world.becomes(uuid, "active")
    migration = live_migrate(world, uuid)
    wait_until(lambda: len(scheduler.asked) > 1)

    world.bus.client("conductor").call(AbortMigration(request_id=ids.fresh(), instance_uuid=uuid))
    wait_until(lambda: world.pending("conductor", "AND step = 'recover'") == 1)
    scheduler.is_away = False

    assert ends(world, migration).reason == "it was aborted"
    assert_only_on_its_source(world, uuid)
    assert {build.host for build in world.agent.builds} == {"a"}


@pytest.mark.parametrize("kind", ["cold-migration", "live-migration"])
def test_an_abort_frees_an_instance_that_a_former_release_has_left_reserved_for_a_move(
    world: World, moorage: Any, kind: MoveKind
) -> None:
    uuid = built(world)
    left = Mover(world, uuid, kind)
    left.prepare()
    order = ("instance", "abort", uuid, "--request-id", "r")

    assert moorage(*order)[0] == 0

    assert_only_on_its_source(world, uuid)
    assert (left.shown().state, left.shown().reason) == ("failed", "it was aborted")
    again = live_migrate(world, uuid)
    assert moorage(*order)[0] == 0
    wait_until(lambda: world.bus.client("conductor").call(ShowMigration(uuid=again)).state == "confirmed")


def test_a_cold_migration_that_is_being_placed_is_not_aborted(world: World, moorage: Any) -> None:
    scheduler = world.replace(AwayScheduler(world.placement, claims=False))
    uuid = built(world)
    order = MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid)
    migration = world.bus.client("conductor").call(order).migration_uuid
    wait_until(lambda: len(scheduler.asked) > 1)

    assert moorage("instance", "abort", uuid)[0] == 1

    assert world.show(uuid).migration_uuid == migration
    scheduler.is_away = False
    becomes(world, uuid, "moved")


def test_a_move_that_is_ordered_while_an_abort_looks_for_one_that_was_left_is_not_cancelled(world: World) -> None:
    scheduler = world.replace(AwayScheduler(world.placement, claims=False))
    uuid, conductor = built(world), world.bus.client("conductor")
    abort = AbortMigration(request_id=ids.fresh(), instance_uuid=uuid)
    ordered: list[MigrateInstance] = []

    def order_a_move(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        is_of_abort = context.current().request_id == abort.request_id
        if is_of_abort and not ordered and statement.lstrip().startswith("SELECT conductor_migrations."):
            ordered.append(MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid))
            conductor.call(ordered[0])
            wait_until(lambda: len(scheduler.asked) > 1)

    event.listen(Engine, "after_cursor_execute", order_a_move)
    try:
        with pytest.raises(errors.InvalidState, match="no live migration of it is under way"):
            conductor.call(abort)
    finally:
        event.remove(Engine, "after_cursor_execute", order_a_move)

    assert world.show(uuid).migration_uuid == conductor.call(ordered[0]).migration_uuid
    scheduler.is_away = False
    becomes(world, uuid, "moved")
