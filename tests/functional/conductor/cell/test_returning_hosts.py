"""Hosts that return: they count as up once they have worked through what ended while they were away."""

import time

import pytest
from msgspec import structs
from support.conductor.builders import World, node, report, wait_until

from moorage import errors, ids
from moorage.messages import (
    AttemptsGone,
    BuildOnHost,
    HostsReported,
    ListEndedAttempts,
    ListStrangersInCell,
    ReportHostsInCell,
    ReturnHosts,
)
from moorage.model import EndedAttempt, Guest


def starts(world: World, *hosts: str) -> HostsReported:
    described = tuple(report(host) for host in hosts)
    return world.cell_call(
        ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=described, started=tuple(hosts))
    )


def alive(world: World, *hosts: str) -> tuple[str, ...]:
    return world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=tuple(hosts))).returning


def ended(world: World, *hosts: str) -> list[EndedAttempt]:
    return world.cell_call(ListEndedAttempts(agent="agent", hosts=tuple(hosts)))


def gone(world: World, *attempts: EndedAttempt) -> None:
    world.cell_call(AttemptsGone(request_id=ids.fresh(), agent="agent", attempts=tuple(attempts)))


def returns(world: World, *hosts: str, guests: tuple[Guest, ...] = ()) -> None:
    lives = world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent")).lives
    world.cell_call(ReturnHosts(request_id=ids.fresh(), agent="agent", hosts=tuple(hosts), guests=guests, lives=lives))


def guest_of(taken: BuildOnHost) -> Guest:
    return Guest(
        instance_uuid=taken.instance_uuid, host=taken.host, attempt_id=taken.attempt_id, claim_id=taken.claim_id
    )


def told_alive(world: World, host: str) -> bool:
    return any(host in sent.alive for sent in world.scheduler.reports)


def test_a_host_that_has_started_is_told_of_as_alive_only_when_it_has_returned(world: World) -> None:
    assert starts(world, "a", "b").returning == ("a", "b")
    assert alive(world, "a", "b") == ("a", "b")
    returns(world, "b")
    assert alive(world, "a", "b") == ("a",)

    wait_until(lambda: told_alive(world, "b"))

    assert not told_alive(world, "a")
    assert {host.service_host for sent in world.scheduler.reports for host in sent.hosts} == {"b"}
    returns(world, "a")
    assert alive(world, "a", "b") == ()
    wait_until(lambda: told_alive(world, "a"))


def test_a_host_whose_reports_the_cell_has_missed_is_returning_too(world: World) -> None:
    world.conf.set_override("host_down_after", 0.2, group="scheduler")
    world.restart("cell")
    starts(world, "a")
    returns(world, "a")
    assert alive(world, "a") == ()

    time.sleep(0.4)

    assert alive(world, "a") == ("a",)
    world.scheduler.reports.clear()
    time.sleep(0.5)
    assert not told_alive(world, "a")
    returns(world, "a")
    assert alive(world, "a") == ()


def test_a_host_learns_what_ended_while_it_was_away_and_its_word_releases_the_residue(world: World) -> None:
    world.restart("cell", build_timeout=1.0)
    world.agent.hanging = world.agent.deaf = {"a"}
    [uuid] = world.build()
    late, _active = world.becomes(uuid, "active").attempts
    starts(world, "a")

    [found] = ended(world, "a", "b")

    assert (found.attempt_id, found.host, found.instance_uuid) == (late.attempt_id, "a", uuid)
    gone(world, found)
    gone(world, found)
    wait_until(lambda: not world.placement.residues)
    assert ended(world, "a") == []
    returns(world, "a")
    assert world.pending("cell") == 0


def test_only_an_ended_attempt_can_be_said_to_be_gone(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    taken = world.agent.taken[0]

    gone(world, EndedAttempt(host="a", instance_uuid=uuid, attempt_id=taken.attempt_id, claim_id=taken.claim_id))

    world.delete(uuid)
    world.becomes(uuid, "deleted")
    assert world.agent.destroyed == [taken.attempt_id]


def test_a_build_that_died_with_its_host_goes_on_with_the_next_one(world: World) -> None:
    world.agent.hold.clear()
    [uuid] = world.build()
    wait_until(lambda: len(world.agent.guests) == 1 and world.waiting() == 1)
    world.agent.guests.clear()
    starts(world, "a")

    returns(world, "a")
    world.agent.hold.set()

    instance = world.becomes(uuid, "active")
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]
    assert "returned without it" in str(instance.attempts[0].reason)
    assert world.placement.hosts_held() == {node("b")}


@pytest.mark.parametrize("returned", [True, False])
def test_a_build_that_died_when_all_hosts_began_to_return_waits_a_while_for_the_next_one(
    world: World, returned: bool
) -> None:
    # 50 ms each: until the test ends, or nearly none.
    world.restart("cell", max_unanswered_retries=1000 if returned else 2)
    world.agent.hold.clear()
    [uuid] = world.build()
    wait_until(lambda: len(world.agent.guests) == 1 and world.waiting() == 1)
    world.agent.guests.clear()
    starts(world, "a", "b")

    returns(world, "a")
    world.agent.hold.set()
    if returned:
        time.sleep(0.3)
        assert [attempt.state for attempt in world.show(uuid).attempts] == ["failed"]
        returns(world, "b")

    instance = world.becomes(uuid, "active")
    states = [(attempt.host, attempt.state) for attempt in instance.attempts]
    passed_over = [] if returned else [("b", "skipped")]
    assert states == [("a", "failed"), *passed_over, ("b" if returned else "c", "active")]


def test_a_build_whose_guest_is_there_goes_on_and_an_active_instance_without_one_says_so(world: World) -> None:
    uuids = world.build(ids.fresh(), ids.fresh())
    for uuid in uuids:
        world.becomes(uuid, "active")
    starts(world, "a")
    there = next(taken for taken in world.agent.taken if taken.instance_uuid == uuids[0])

    returns(world, "a", guests=(guest_of(there),))

    assert world.show(uuids[0]).reason is None
    lost = world.show(uuids[1])
    assert (lost.state, lost.reason) == ("active", "a has returned without the guest")
    assert uuids[1] in world.placement.held


def test_a_host_with_the_guest_of_an_ended_attempt_stays_returning(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    failed = next(taken for taken in world.agent.taken if taken.host == "a")
    starts(world, "a", "b")
    assert ended(world, "a") == [], "the host has said that nothing was left"

    returns(world, "a", "b", guests=(guest_of(failed),))

    assert alive(world, "a", "b") == ("a",)
    [found] = ended(world, "a")
    assert found.attempt_id == failed.attempt_id
    gone(world, found)
    returns(world, "a")
    assert alive(world, "a", "b") == ()


def test_a_guest_without_a_record_is_listed_as_a_stranger_and_left_running(world: World) -> None:
    starts(world, "a")
    stranger = Guest(instance_uuid=ids.fresh(), host="a", attempt_id=ids.fresh(), claim_id=ids.fresh())

    returns(world, "a", guests=(stranger,))

    assert alive(world, "a") == ()
    [listed] = world.cell_call(ListStrangersInCell())
    assert (listed.guest, listed.agent) == (stranger, "agent")
    assert 0 <= listed.age < 60
    assert ended(world, "a") == []
    assert world.agent.destroyed == []
    starts(world, "a")
    returns(world, "a")
    assert world.cell_call(ListStrangersInCell()) == []


def test_a_known_attempt_under_another_claim_is_a_stranger(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    taken = next(taken for taken in world.agent.taken if taken.host == "a")
    starts(world, "a")
    other = Guest(instance_uuid=uuid, host="a", attempt_id=taken.attempt_id, claim_id=ids.fresh())

    returns(world, "a", guests=(other,))

    assert [each.guest for each in world.cell_call(ListStrangersInCell())] == [other]
    assert alive(world, "a") == ()


@pytest.mark.parametrize("other", ["attempt_id", "claim_id"])
def test_a_stranger_of_a_known_instance_is_not_called_unwanted_before_the_instance_is_deleted(
    world: World, other: str
) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    # As after a restore of the cell's records from before a move: the guest runs, and the record of it is lost.
    stranger = structs.replace(world.agent.taken[0], **{other: ids.fresh()})
    world.agent.guests[stranger.attempt_id] = stranger
    starts(world, "a")
    returns(world, "a", guests=(guest_of(stranger),))
    assert [each.guest for each in world.cell_call(ListStrangersInCell())] == [guest_of(stranger)]

    with pytest.raises(errors.NotFound, match=stranger.attempt_id):
        world.agent.finish(stranger)
    with pytest.raises(errors.NotFound, match=stranger.attempt_id):
        world.agent.accept(stranger)

    assert world.agent.guests[stranger.attempt_id] == stranger
    world.delete(uuid)
    world.becomes(uuid, "deleted")
    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(stranger)


@pytest.mark.parametrize("returned", [True, False])
def test_no_build_begins_on_a_host_before_it_has_returned(world: World, returned: bool) -> None:
    starts(world, "a")
    [uuid] = world.build()
    if returned:
        returns(world, "a")

    instance = world.becomes(uuid, "active")

    assert instance.host == ("a" if returned else "b")
    assert {taken.host for taken in world.agent.taken} == {instance.host}
    assert world.placement.hosts_held() == {node(str(instance.host))}


def test_a_guest_is_destroyed_on_a_silent_host_whose_agent_cannot_say_what_it_has(world: World) -> None:
    world.conf.set_override("host_down_after", 1.0, group="scheduler")
    world.restart("cell", build_timeout=1.0)
    world.agent.hanging = world.agent.deaf = {"a"}
    world.becomes(*world.build(), "active")
    starts(world, "a")
    time.sleep(1.2)
    world.agent.deaf = set()
    time.sleep(0.5)
    assert (world.agent.destroyed, len(world.placement.residues)) == ([], 1)

    world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", withheld=("a",)))

    wait_until(lambda: not world.placement.residues)
    assert len(world.agent.destroyed) == 1
