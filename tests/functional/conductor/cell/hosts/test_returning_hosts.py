"""Test returning hosts: they count as up once the guests of attempts that ended meanwhile are gone."""

import time
from typing import Literal

import pytest
from msgspec import structs
from support.conductor.builders import World, node, wait_until
from support.conductor.host_reports import (
    ended_attempts,
    guest_of,
    report_gone,
    report_hosts,
    return_hosts,
    returning,
    start_hosts,
)
from support.conductor.moving_instances import BIGGER, Mover, becomes, built, shown

from moorage import errors, failpoints, ids
from moorage.messages import DeleteInCell, ListStrangersInCell
from moorage.model import EndedAttempt, Guest


def is_reported_alive(world: World, host: str) -> bool:
    return any(host in sent.alive for sent in world.scheduler.reports)


def test_a_started_host_is_reported_as_alive_only_when_it_has_returned(world: World) -> None:
    assert start_hosts(world, "a", "b").returning == ("a", "b")
    assert returning(world, "a", "b") == ("a", "b")
    return_hosts(world, "b")
    assert returning(world, "a", "b") == ("a",)

    wait_until(lambda: is_reported_alive(world, "b"))

    assert not is_reported_alive(world, "a")
    assert {host.service_host for sent in world.scheduler.reports for host in sent.hosts} == {"b"}
    return_hosts(world, "a")
    assert returning(world, "a", "b") == ()
    wait_until(lambda: is_reported_alive(world, "a"))


def test_a_host_whose_reports_the_cell_has_missed_has_to_return(world: World) -> None:
    start_hosts(world, "a")
    return_hosts(world, "a")
    assert returning(world, "a") == ()

    # The last report was an hour ago.
    world.records.write(
        lambda connection: connection.exec_driver_sql("UPDATE cell_hosts SET last_seen = last_seen - 3600")
    )

    assert returning(world, "a") == ("a",)
    world.scheduler.reports.clear()
    time.sleep(0.5)
    assert not is_reported_alive(world, "a")
    return_hosts(world, "a")
    assert returning(world, "a") == ()


def test_a_returning_host_is_sent_its_ended_attempts_and_its_answer_releases_their_residues(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()
    late, _active = world.becomes(uuid, "active").attempts
    start_hosts(world, "a")

    [found] = ended_attempts(world, "a", "b")

    assert (found.attempt_id, found.host, found.instance_uuid) == (late.attempt_id, "a", uuid)
    report_gone(world, found)
    report_gone(world, found)
    wait_until(lambda: not world.placement.residues)
    assert ended_attempts(world, "a") == []
    return_hosts(world, "a")
    assert world.pending("cell") == 0


def test_only_an_ended_attempt_can_be_reported_as_gone(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    build = world.agent.builds[0]

    report_gone(world, EndedAttempt(host="a", instance_uuid=uuid, attempt_id=build.attempt_id, claim_id=build.claim_id))

    world.delete(uuid)
    world.becomes(uuid, "deleted")
    assert world.agent.destroyed == [build.attempt_id]


def test_a_build_that_was_lost_with_its_host_falls_back_to_the_next_one(world: World) -> None:
    world.agent.may_finish.clear()
    [uuid] = world.build()
    wait_until(lambda: len(world.agent.guests) == 1 and world.waiting() == 1)
    world.agent.guests.clear()
    start_hosts(world, "a")

    return_hosts(world, "a")
    world.agent.may_finish.set()

    instance = world.becomes(uuid, "active")
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]
    assert "returned without it" in str(instance.attempts[0].reason)
    assert world.placement.hosts_held() == {node("b")}


@pytest.mark.parametrize("returned", [True, False])
def test_a_build_that_was_lost_when_all_hosts_restarted_waits_a_limited_time_for_the_next_one(
    world: World, returned: bool
) -> None:
    # Retries of 50 ms each: more than the test needs, or only two.
    world.restart("cell", max_unanswered_retries=1000 if returned else 2)
    world.agent.may_finish.clear()
    [uuid] = world.build()
    wait_until(lambda: len(world.agent.guests) == 1 and world.waiting() == 1)
    world.agent.guests.clear()
    start_hosts(world, "a", "b")

    return_hosts(world, "a")
    world.agent.may_finish.set()
    if returned:
        time.sleep(0.3)
        assert [attempt.state for attempt in world.show(uuid).attempts] == ["failed"]
        return_hosts(world, "b")

    instance = world.becomes(uuid, "active")
    states = [(attempt.host, attempt.state) for attempt in instance.attempts]
    skipped = [] if returned else [("b", "skipped")]
    assert states == [("a", "failed"), *skipped, ("b" if returned else "c", "active")]


def test_a_returned_host_keeps_listed_guests_and_the_record_of_an_active_instance_names_a_lost_one(
    world: World,
) -> None:
    uuids = world.build(ids.fresh(), ids.fresh())
    for uuid in uuids:
        world.becomes(uuid, "active")
    start_hosts(world, "a")
    kept = next(build for build in world.agent.builds if build.instance_uuid == uuids[0])

    return_hosts(world, "a", guests=(guest_of(kept),))

    assert world.show(uuids[0]).reason is None
    lost = world.show(uuids[1])
    assert (lost.state, lost.reason) == ("active", "a has returned without the guest")
    assert uuids[1] in world.placement.held


def test_an_active_instance_has_no_reason_any_more_when_its_host_returns_with_the_guest(world: World) -> None:
    uuids = [built(world), built(world)]
    guests = tuple(guest_of(build) for build in world.agent.builds)
    start_hosts(world, "a")
    return_hosts(world, "a")
    assert {shown(world, uuid).reason for uuid in uuids} == {"a has returned without the guest"}
    start_hosts(world, "a")

    return_hosts(world, "a", guests=guests[:1])

    assert [shown(world, uuid).reason for uuid in uuids] == [None, "a has returned without the guest"]


def test_the_loss_of_a_resized_guest_is_named_although_that_of_its_source_is_on_the_same_host(world: World) -> None:
    move = Mover(world, built(world), "resize")
    move.move("a", spec=BIGGER)
    becomes(world, move.uuid, "moved")
    start_hosts(world, "a")
    return_hosts(world, "a")
    start_hosts(world, "a")

    return_hosts(world, "a", guests=(guest_of(world.agent.builds[0]),))

    assert shown(world, move.uuid).reason == "a has returned without the guest"


def test_a_return_that_is_too_large_for_one_message_ends_after_several(world: World) -> None:
    uuids = world.build(*(ids.fresh() for _ in range(8)))
    for uuid in uuids:
        world.becomes(uuid, "active")
    start_hosts(world, "a")
    commits: list[str] = []

    def limit(name: str) -> None:
        if name.endswith("return_hosts.commit"):
            commits.append(name)
            if len(commits) > 5:
                raise errors.DeadlineExceeded(point="before COMMIT")

    def returned() -> bool:
        commits.clear()
        try:
            return_hosts(world, "a")
        except errors.DeadlineExceeded:
            return False
        return True

    with failpoints.observed(limit):
        assert [returned() for _ in range(3)] == [False, False, True]
    assert returning(world, "a") == ()
    assert {world.show(uuid).reason for uuid in uuids} == {"a has returned without the guest"}


def test_a_host_with_the_guest_of_an_ended_attempt_stays_returning(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    failed = world.agent.build_on("a")
    start_hosts(world, "a", "b")
    assert ended_attempts(world, "a") == [], "the host has reported that no guest was left"

    return_hosts(world, "a", "b", guests=(guest_of(failed),))

    assert returning(world, "a", "b") == ("a",)
    [found] = ended_attempts(world, "a")
    assert found.attempt_id == failed.attempt_id
    report_gone(world, found)
    return_hosts(world, "a")
    assert returning(world, "a", "b") == ()


def test_a_guest_without_a_record_is_listed_as_unknown_and_left_running(world: World) -> None:
    start_hosts(world, "a")
    unknown = Guest(instance_uuid=ids.fresh(), host="a", attempt_id=ids.fresh(), claim_id=ids.fresh())

    return_hosts(world, "a", guests=(unknown,))

    assert returning(world, "a") == ()
    [listed] = world.cell_call(ListStrangersInCell())
    assert (listed.guest, listed.agent) == (unknown, "agent")
    assert 0 <= listed.age < 60
    assert ended_attempts(world, "a") == []
    assert world.agent.destroyed == []
    start_hosts(world, "a")
    return_hosts(world, "a")
    assert world.cell_call(ListStrangersInCell()) == []


def test_a_guest_of_a_known_attempt_under_another_claim_is_unknown(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    failed = world.agent.build_on("a")
    start_hosts(world, "a")
    other = Guest(instance_uuid=uuid, host="a", attempt_id=failed.attempt_id, claim_id=ids.fresh())

    return_hosts(world, "a", guests=(other,))

    assert [each.guest for each in world.cell_call(ListStrangersInCell())] == [other]
    assert returning(world, "a") == ()


@pytest.mark.parametrize("other", ["attempt_id", "claim_id"])
def test_an_unknown_guest_of_a_known_instance_is_kept_until_the_instance_is_deleted(world: World, other: str) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    # As after a restore of older records of the cell: the guest runs, and its attempt is not on record.
    unknown = structs.replace(world.agent.builds[0], **{other: ids.fresh()})
    world.agent.guests[unknown.attempt_id] = unknown
    start_hosts(world, "a")
    return_hosts(world, "a", guests=(guest_of(unknown),))
    assert [each.guest for each in world.cell_call(ListStrangersInCell())] == [guest_of(unknown)]

    with pytest.raises(errors.NotFound, match=unknown.attempt_id):
        world.agent.finish(unknown)
    with pytest.raises(errors.NotFound, match=unknown.attempt_id):
        world.agent.accept(unknown)

    assert world.agent.guests[unknown.attempt_id] == unknown
    world.delete(uuid)
    world.becomes(uuid, "deleted")
    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(unknown)


@pytest.mark.parametrize("returned", [True, False])
def test_no_build_begins_on_a_host_before_it_has_returned(world: World, returned: bool) -> None:
    start_hosts(world, "a")
    [uuid] = world.build()
    if returned:
        return_hosts(world, "a")

    instance = world.becomes(uuid, "active")

    assert instance.host == ("a" if returned else "b")
    assert {build.host for build in world.agent.builds} == {instance.host}
    assert world.placement.hosts_held() == {node(str(instance.host))}


def test_a_guest_is_destroyed_on_a_host_that_its_agent_withholds(world: World) -> None:
    world.conf.set_override("host_down_after", 1.0, group="scheduler")
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    start_hosts(world, "a")
    time.sleep(1.2)
    world.agent.no_reply_to_destroy = set()
    time.sleep(0.5)
    assert (world.agent.destroyed, len(world.placement.residues)) == ([], 1)

    def is_released() -> bool:
        report_hosts(world, withheld=("a",))  # at each interval, as an agent does: a report counts for a second here
        return not world.placement.residues

    wait_until(is_released)
    assert len(world.agent.destroyed) == 1


def test_the_residue_of_an_evacuation_that_a_deletion_interrupts_is_released_when_its_dead_host_returns(
    world: World,
) -> None:
    world.conf.set_override("host_down_after", 0.3, group="scheduler")
    world.restart("cell", delete_patience=0.3)
    uuid = built(world)
    source = shown(world, uuid).attempts[0]
    start_hosts(world, "a")
    world.agent.no_reply_to_destroy = world.placement.declared_down = {"a"}
    interrupted: list[str] = []

    def delete(name: str) -> None:
        # The store has the residue, but the answer is not recorded yet.
        if name == "step.confirm.end.done" and not interrupted:
            interrupted.append(name)
            world.cell_call(DeleteInCell(request_id=ids.fresh(), instance_uuid=uuid))

    move = Mover(world, uuid, "evacuation")
    with failpoints.observed(delete):
        move.move("b")
        becomes(world, uuid, "deleted")
    assert world.placement.residues == {move.migration: node("a")}
    # The operation does not wait for a silent host unless something is held there.
    wait_until(lambda: world.pending("cell", "AND reason IS NULL") == 0)

    # Only by the reports of its host: no order to the host is answered before.
    start_hosts(world, "a")
    [ended] = ended_attempts(world, "a")
    assert ended.attempt_id == source.attempt_id
    report_gone(world, ended)
    world.agent.no_reply_to_destroy = set()

    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)


@pytest.mark.parametrize(("outcome", "reason"), [("confirm", "b has returned without the guest"), ("revert", None)])
def test_the_loss_of_a_moved_guest_is_named_as_long_as_the_instance_is_on_that_host(
    world: World, outcome: Literal["confirm", "revert"], reason: str | None
) -> None:
    move = Mover(world, built(world))
    move.move("b")
    becomes(world, move.uuid, "moved")
    start_hosts(world, "b")
    return_hosts(world, "b")
    assert shown(world, move.uuid).reason == "b has returned without the guest"

    move.end(outcome)

    assert becomes(world, move.uuid, "active").reason == reason


def test_the_loss_of_a_guest_is_named_although_a_move_of_it_is_being_placed(world: World) -> None:
    move = Mover(world, built(world), "live-migration")
    move.prepare()
    start_hosts(world, "a")
    return_hosts(world, "a")

    move.cancel()

    after = shown(world, move.uuid)
    assert (after.state, after.reason) == ("active", "a has returned without the guest")
