"""Test in a cell that an evacuation starts no guest while its source is not forced down."""

from collections.abc import Callable

import pytest
from support.conductor.builders import FakePlacement, World, node, wait_until
from support.conductor.moving_instances import Mover, becomes, built, shown

from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import ListHostsDeclaredDown


class Interrupted(FakePlacement):
    """Calls a function before each answer about hosts that are forced down."""

    def __init__(self, before: Callable[[], object]) -> None:
        super().__init__()
        self.before = before

    @serves(ListHostsDeclaredDown)
    def list_hosts_declared_down(self, message: ListHostsDeclaredDown) -> list[str]:
        self.before()
        return super().list_hosts_declared_down(message)


def test_an_evacuation_of_a_host_that_is_not_declared_down_is_refused(world: World) -> None:
    uuid = built(world)
    before = shown(world, uuid)

    with pytest.raises(errors.InvalidState, match="host a is not forced down"):
        Mover(world, uuid, "evacuation").prepare()

    assert shown(world, uuid) == before


def test_an_evacuation_is_neither_prepared_nor_refused_while_it_is_unknown_whether_its_host_is_declared_down(
    world: World,
) -> None:
    is_away = True

    def answer() -> None:
        if is_away:
            raise errors.StoreUnavailable(schema="main", reason="away")

    placement = world.replace(Interrupted(answer))
    placement.declared_down = {"a"}
    uuid = built(world)
    before = shown(world, uuid)
    move = Mover(world, uuid, "evacuation")

    with pytest.raises(errors.StoreUnavailable, match="unknown whether host a is forced down"):
        move.prepare()

    assert shown(world, uuid) == before
    is_away = False
    assert move.prepare().selection.service_host == "a"


def test_an_evacuation_whose_host_is_back_before_it_begins_starts_no_second_guest(world: World) -> None:
    uuid = built(world)
    before = shown(world, uuid)
    world.placement.declared_down = {"a"}
    move = Mover(world, uuid, "evacuation")
    placement = move.prepare()
    claim = move.claim(placement, "b")
    world.placement.declared_down = set()

    move.hand_over(placement, claim, ["b", "c"])

    wait_until(lambda: move.shown().state in ("failed", "confirmed"))
    _is_back(world, move, before.claim_id, "b: host a is not forced down")


def test_an_evacuation_whose_host_is_back_after_its_first_attempt_starts_no_second_guest(world: World) -> None:
    asked: list[None] = []

    def remove_the_mark() -> None:
        # It is asked for before the move is prepared, before the first attempt, about the alternate, and before the
        # second attempt.
        asked.append(None)
        if len(asked) == 4:
            world.placement.declared_down = set()

    world.replace(Interrupted(remove_the_mark)).declared_down = {"a"}
    uuid = built(world)
    before = shown(world, uuid)
    world.agent.failing = {"b"}
    move = Mover(world, uuid, "evacuation")

    move.move("b", "c")

    wait_until(lambda: move.shown().state in ("failed", "confirmed"))
    _is_back(world, move, before.claim_id, "c: host a is not forced down")


def _is_back(world: World, move: Mover, claim_id: str | None, reason: str) -> None:
    assert reason in str(move.shown().reason)
    assert move.shown().state == "failed"
    after = becomes(world, move.uuid, "active")
    assert (after.host, after.claim_id, after.migration_uuid) == ("a", claim_id, None)
    assert {guest.host for guest in world.agent.guests.values()} == {"a"}
    assert world.placement.hosts_held() == {node("a")}
    wait_until(lambda: world.pending("cell") == 0)
