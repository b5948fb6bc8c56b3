"""Test in a cell that an evacuation starts no guest while its source is not forced down, and does not wait for it."""

import threading
import time
from collections.abc import Callable

import pytest
from msgspec import structs
from support.conductor.builders import FakeAgent, FakePlacement, World, node, report, wait_until
from support.conductor.host_reports import report_hosts
from support.conductor.moving_instances import Mover, becomes, built, shown

from conductor.cell.hosts.reach import HostReach
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import BuildOnHost, Done, ListHostsDeclaredDown, PrepareMoveInCell, ReportHostsInCell


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


def test_an_evacuation_of_a_deleted_host_is_prepared_only_if_the_host_is_silent(world: World) -> None:
    world.conf.set_override("host_down_after", 0.2, group="scheduler")
    world.restart("cell")
    uuid = built(world)
    report_hosts(world, hosts=(report("a"),))
    world.placement.deleted_hosts = {"a"}
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE cell_hosts SET last_seen = last_seen + 30")

    with pytest.raises(errors.InvalidState, match="host a has no record"):
        Mover(world, uuid, "evacuation").prepare()

    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE cell_hosts SET last_seen = last_seen - 60")
    time.sleep(0.4)
    move = Mover(world, uuid, "evacuation")
    move.move("b")
    wait_until(lambda: move.shown().state == "confirmed")
    assert becomes(world, uuid, "active").host == "b"


def test_an_evacuation_of_a_host_without_a_record_that_may_be_alive_is_refused_for_good(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = built(world)
    before = shown(world, uuid)
    world.placement.deleted_hosts = {"a"}
    order = PrepareMoveInCell(
        request_id=ids.fresh(), instance_uuid=uuid, migration_uuid=ids.fresh(), kind="evacuation", order_number=7
    )
    with pytest.raises(errors.InvalidState, match="host a has no record and may be alive"):
        world.cell_call(order)
    # By now it could have reported.
    monkeypatch.setattr(HostReach, "has_lasted", lambda *_: True)

    for late in (order, structs.replace(order, request_id=ids.fresh())):
        with pytest.raises(errors.StaleOrder):
            world.cell_call(late)

    assert shown(world, uuid) == before
    assert Mover(world, uuid, "evacuation").prepare().selection.service_host == "a"


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
        # It is asked for before the move is prepared, before the first attempt and at its gate, about the
        # alternate, and before the second attempt.
        asked.append(None)
        if len(asked) == 5:
            world.placement.declared_down = set()

    world.replace(Interrupted(remove_the_mark)).declared_down = {"a"}
    uuid = built(world)
    before = shown(world, uuid)
    world.agent.failing = {"b"}
    move = Mover(world, uuid, "evacuation")

    move.move("b", "c")

    wait_until(lambda: move.shown().state in ("failed", "confirmed"))
    _is_back(world, move, before.claim_id, "c: host a is not forced down")


def test_evacuations_that_begin_together_do_not_wait_for_each_other_to_learn_whether_their_hosts_are_declared_down(
    world: World,
) -> None:
    is_away, may_answer = False, threading.Event()
    waiting: list[None] = []

    def answer() -> None:
        if is_away:
            raise errors.StoreUnavailable(schema="main", reason="away")
        waiting.append(None)
        assert may_answer.wait(60)

    may_answer.set()
    world.replace(Interrupted(answer)).declared_down = {"a"}
    moves = [Mover(world, built(world), "evacuation") for _ in range(3)]
    prepared = [(move, placement := move.prepare(), move.claim(placement, "b")) for move in moves]
    is_away = True
    for move, placement, claim in prepared:
        move.hand_over(placement, claim, ["b"])
    world.die("cell", "cell", lease=0)
    is_away = False
    may_answer.clear()
    waiting.clear()
    world.conf.set_override("call_timeout", 40.0, group="rpc")
    world.start("cell")

    wait_until(lambda: len(waiting) == len(moves))
    may_answer.set()
    for move in moves:
        wait_until(lambda move=move: move.shown().state == "confirmed")  # type: ignore[misc]


class SilentAtFirst(FakeAgent):
    """Refuses the first order to start a guest on host `b`."""

    has_refused = False

    @serves(BuildOnHost)
    def build_instance(self, message: BuildOnHost) -> Done:
        if message.host == "b" and not self.has_refused:
            self.has_refused = True
            raise errors.RequestInProgress(request_id=message.request_id)
        return super().build_instance(message)


def test_an_evacuation_that_has_waited_for_the_placement_role_has_all_its_tries_left_to_reach_the_host(
    world: World,
) -> None:
    is_away, asked = False, 0

    def answer() -> None:
        nonlocal asked
        if is_away:
            asked += 1
            raise errors.StoreUnavailable(schema="main", reason="away")

    world.restart("cell", max_unanswered_retries=1)
    world.replace(Interrupted(answer)).declared_down = {"a"}
    agent = world.replace(SilentAtFirst(world.bus))
    uuid = built(world)
    move = Mover(world, uuid, "evacuation")
    placement = move.prepare()
    claim = move.claim(placement, "b")
    is_away = True
    move.hand_over(placement, claim, ["b"])

    wait_until(lambda: asked > 1)
    wait_until(lambda: world.pending("cell", "AND step = 'start' AND reason IS NOT NULL") == 1)
    is_away = False

    wait_until(lambda: move.shown().state in ("failed", "confirmed"))
    assert agent.has_refused
    assert (move.shown().state, shown(world, uuid).host) == ("confirmed", "b")


def test_an_evacuation_whose_host_is_back_before_the_gate_of_its_attempt_starts_no_second_guest(world: World) -> None:
    uuid = built(world)
    before = shown(world, uuid)
    world.placement.declared_down = {"a"}
    move = Mover(world, uuid, "evacuation")
    has_workers, accept = threading.Event(), world.agent.accept

    def accept_late(message: BuildOnHost) -> None:
        assert has_workers.wait(60)
        accept(message)

    world.agent.accept = accept_late  # type: ignore[method-assign]
    move.move("b", "c")
    wait_until(lambda: world.waiting() == 1)
    world.placement.declared_down = set()
    has_workers.set()

    wait_until(lambda: move.shown().state in ("failed", "confirmed"))
    assert [build.host for build in world.agent.builds] == ["a", "b"]
    _is_back(world, move, before.claim_id, "b: the claim could not be accepted: ")


def test_an_attempt_of_an_evacuation_waits_at_its_gate_while_it_is_unknown_whether_its_host_is_declared_down(
    world: World,
) -> None:
    is_away = False

    def answer() -> None:
        if is_away:
            raise errors.StoreUnavailable(schema="main", reason="away")

    world.replace(Interrupted(answer)).declared_down = {"a"}
    uuid = built(world)
    refused, accept = threading.Event(), world.agent.accept

    def accept_when_answered(message: BuildOnHost) -> None:
        nonlocal is_away
        is_away = True
        with pytest.raises(errors.StoreUnavailable, match="unknown whether host a is forced down"):
            accept(message)
        refused.set()
        is_away = False
        accept(message)

    world.agent.accept = accept_when_answered  # type: ignore[method-assign]
    move = Mover(world, uuid, "evacuation")
    move.move("b")

    wait_until(lambda: move.shown().state in ("failed", "confirmed"))
    assert refused.is_set()
    assert (move.shown().state, shown(world, uuid).host) == ("confirmed", "b")


def test_an_evacuation_does_not_wait_for_the_answer_of_an_agent_that_was_killed_after_its_last_report(
    world: World,
) -> None:
    # No call times out before the test gives up.
    world.conf.set_override("call_timeout", 300.0, group="rpc")
    world.restart("cell")
    uuid = built(world)
    killed = structs.replace(report("a"), agent="killed")
    world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="killed", hosts=(killed,)))
    world.placement.declared_down = {"a"}
    move = Mover(world, uuid, "evacuation")

    move.move("b")

    assert becomes(world, uuid, "active").host == "b"
    assert move.shown().state == "confirmed"
    assert world.placement.residues == {move.migration: node("a")}


def _is_back(world: World, move: Mover, claim_id: str | None, reason: str) -> None:
    assert reason in str(move.shown().reason)
    assert move.shown().state == "failed"
    after = becomes(world, move.uuid, "active")
    assert (after.host, after.claim_id, after.migration_uuid) == ("a", claim_id, None)
    assert {guest.host for guest in world.agent.guests.values()} == {"a"}
    assert world.placement.hosts_held() == {node("a")}
    wait_until(lambda: world.pending("cell") == 0)
