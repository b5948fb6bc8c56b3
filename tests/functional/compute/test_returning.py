"""Test an agent before its hosts count as up: it destroys guests only by record, and lists the guests that it has."""

import time
from typing import Any

import pytest
from support.compute.builders import (
    AGENT,
    AWAY,
    CELL,
    HOST,
    Begin,
    Failing,
    FakeCell,
    Holding,
    SlowDriver,
    Stage,
    build_on,
    guest_spec,
    wait_until,
)

from compute.driver import GuestSpec
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.messages import (
    AcceptInCell,
    AttemptsGone,
    BuildFailedInCell,
    BuildFinished,
    ListEndedAttempts,
    ReportHostsInCell,
    ReturnHosts,
)
from moorage.messages.wire import Message
from moorage.model import EndedAttempt

HOSTS = ("host-0001", "host-0002", "host-0003")


def record(guest: GuestSpec, host: str = HOST, claim_id: str | None = None) -> EndedAttempt:
    return EndedAttempt(
        host=host,
        instance_uuid=guest.instance_uuid,
        attempt_id=guest.attempt_id,
        claim_id=claim_id or guest.claim_id,
    )


def left_behind(now: Stage, *, runs: bool = True, host: str = HOST) -> GuestSpec:
    """Have a guest on a host that an earlier life of the agent has started there."""

    class Killed(FakeDriver):
        def behaviour(self, host: str, guest: GuestSpec) -> Any:
            raise KeyboardInterrupt

    guest = guest_spec()
    driver = (FakeDriver if runs else Killed)(now.conf, AGENT, CELL.name)
    driver.start()
    try:
        driver.spawn(host, guest)
    except KeyboardInterrupt:
        assert not runs
    finally:
        driver.close()
    return guest


def attempts(now: Stage) -> list[str]:
    return [guest.attempt_id for guest in now.guests()]


def returned(cell: FakeCell) -> list[str]:
    """The hosts that have returned, in the order in which they have."""
    return [host for message in cell.said(ReturnHosts) for host in message.hosts]


def test_a_starting_agent_destroys_what_has_ended_before_its_hosts_return(stage: Begin) -> None:
    now = stage()
    ended, wanted = left_behind(now), left_behind(now)
    now.cell.ended = [record(ended)]

    now.start()
    wait_until(lambda: now.cell.said(ReturnHosts))

    kinds = (ListEndedAttempts, AttemptsGone, ReturnHosts)
    said = [message for message in now.cell.told if isinstance(message, kinds)]
    assert [message.method for message in said] == ["list_ended_attempts", "attempts_gone", "return_hosts"]
    assert next(said.started for said in now.cell.said(ReportHostsInCell) if said.hosts) == HOSTS
    assert now.cell.said(ListEndedAttempts)[0].hosts == HOSTS
    assert now.cell.said(AttemptsGone)[0].attempts == (record(ended),)
    (last,) = now.cell.said(ReturnHosts)
    assert (last.agent, last.hosts) == (AGENT, HOSTS)
    assert [(guest.attempt_id, guest.claim_id, guest.host) for guest in last.guests] == [
        (wanted.attempt_id, wanted.claim_id, HOST)
    ]
    assert attempts(now) == [wanted.attempt_id]


def test_hosts_are_started_in_the_first_word_of_a_life_and_never_again(stage: Begin) -> None:
    now = stage()
    now.start()
    wait_until(lambda: sum(bool(said.alive) for said in now.cell.said(ReportHostsInCell)) >= 4)

    assert [said.started for said in now.cell.said(ReportHostsInCell) if said.started] == [HOSTS]
    assert returned(now.cell).count(HOST) == 1


@pytest.mark.parametrize("kind", ["instance", "attempt"])
def test_a_guest_without_a_record_is_named_and_left_running(
    stage: Begin, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, BuildFinished):
                if kind == "instance":
                    raise errors.InstanceNotFound(name=message.instance_uuid)
                raise errors.NotFound(kind="attempt", name=message.attempt_id)

    now = stage(Cell(), fake_driver={"stranger_guests": 4})
    now.start()
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 4)
    now.stop()
    strangers = now.guests()

    assert [guest.host for guest in strangers] == [HOST, HOST, "host-0002", "host-0003"]
    assert {guest.attempt_id for guest in now.cell.said(ReturnHosts)[0].guests} == set(attempts(now))
    now.start()
    wait_until(lambda: len(now.cell.said(ReturnHosts)) == 2)
    assert now.guests() == strangers
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "it is known, and no fault"


def test_a_guest_of_another_claim_than_the_record_names_is_left_running_and_holds_its_host_up(stage: Begin) -> None:
    now = stage()
    guest = left_behind(now)
    now.cell.ended = [record(guest, claim_id=ids.fresh())]

    now.start()
    wait_until(lambda: len(now.cell.said(ListEndedAttempts)) >= 3)

    assert attempts(now) == [guest.attempt_id]
    assert now.cell.said(AttemptsGone) == []
    assert set(returned(now.cell)) == set(HOSTS[1:])


def test_a_host_returns_when_a_spawn_that_cannot_be_cut_short_has_come_to_its_end(stage: Begin) -> None:
    now = stage(fake_driver={"late_hosts": [HOST], "late_seconds": 0.8})
    now.start()
    wait_until(lambda: set(returned(now.cell)) == set(HOSTS))
    build = build_on(HOST)
    now.build(build)
    wait_until(now.guests)

    with now.cell.lock:
        now.cell.ended = [EndedAttempt(**{name: getattr(build, name) for name in EndedAttempt.__struct_fields__})]
        now.cell.returning = {HOST, "host-0002"}
    wait_until(lambda: returned(now.cell).count("host-0002") == 2)
    assert returned(now.cell).count(HOST) == 1
    wait_until(lambda: returned(now.cell).count(HOST) == 2)

    assert now.cell.said(BuildFinished) == []
    assert len(now.cell.said(AttemptsGone)) == 1
    assert now.guests() == []


def test_an_attempt_on_the_list_of_ended_ones_is_never_started_afterwards(stage: Begin) -> None:
    now = stage()
    build = build_on(HOST)
    now.cell.ended = [EndedAttempt(**{name: getattr(build, name) for name in EndedAttempt.__struct_fields__})]
    now.start()
    wait_until(lambda: now.cell.said(AttemptsGone))

    now.build(build)
    wait_until(lambda: HOST in returned(now.cell))
    time.sleep(0.2)

    assert now.cell.of_builds() == []
    assert now.guests() == []


def test_a_host_whose_heartbeats_the_cell_has_missed_returns_and_its_own_builds_are_left_alone(stage: Begin) -> None:
    now = stage()
    now.start()
    build = build_on("host-0002")
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished) and returned(now.cell) and not now.cell.returning)

    with now.cell.lock:
        now.cell.returning = {"host-0002"}
    wait_until(lambda: returned(now.cell).count("host-0002") == 2)
    time.sleep(0.2)

    assert now.cell.said(ReturnHosts)[-1].hosts == ("host-0002",)
    assert [guest.attempt_id for guest in now.cell.said(ReturnHosts)[-1].guests] == [build.attempt_id]
    assert now.cell.of_builds() == ["accept_claim", "build_finished"]


@pytest.mark.parametrize("lost", [ListEndedAttempts, AttemptsGone, ReturnHosts])
def test_what_nobody_answers_is_said_again_with_the_same_ids(stage: Begin, lost: type[Message[Any]]) -> None:
    now = stage(Failing(AWAY, lost, left=2))
    now.cell.ended = [record(left_behind(now))]
    now.start()
    wait_until(lambda: returned(now.cell) and not now.cell.returning)

    first, *others = now.cell.said(lost)
    assert others[:2] == [first] * 2
    assert now.guests() == []


def test_a_cell_that_refuses_is_asked_again_and_reports_do_not_wait_for_it(stage: Begin) -> None:
    cell = Failing(errors.InvalidState(reason="a guest of an ended attempt is among them"), ReturnHosts)
    now = stage(cell)
    now.start()
    wait_until(lambda: len(cell.said(ReturnHosts)) >= 3)
    wait_until(lambda: sum(bool(said.alive) for said in cell.said(ReportHostsInCell)) >= 3)
    cell.left = 0

    wait_until(lambda: not cell.returning)


def test_reports_go_on_while_nobody_answers_a_return(stage: Begin) -> None:
    cell = Holding(ListEndedAttempts)
    now = stage(cell)
    now.start()
    wait_until(lambda: sum(bool(said.alive) for said in cell.said(ReportHostsInCell)) >= 5)
    assert cell.said(ReturnHosts) == []
    cell.go_on.set()

    wait_until(lambda: cell.said(ReturnHosts))


def test_a_guest_of_an_earlier_life_is_reported_again_and_kept_or_destroyed_as_the_cell_says(stage: Begin) -> None:
    now = stage()
    kept, over = left_behind(now), left_behind(now)
    now.cell.over.add(over.attempt_id)

    now.start()
    wait_until(lambda: attempts(now) == [kept.attempt_id])
    wait_until(lambda: now.cell.said(AttemptsGone))

    assert {said.attempt_id for said in now.cell.said(BuildFinished)} == {kept.attempt_id, over.attempt_id}
    assert [gone.attempt_id for said in now.cell.said(AttemptsGone) for gone in said.attempts] == [over.attempt_id]


def test_a_spawn_in_the_middle_of_which_the_agent_died_has_failed(stage: Begin) -> None:
    now = stage()
    guest = left_behind(now, runs=False)

    now.start()
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    (failed,) = now.cell.said(BuildFailedInCell)
    assert (failed.attempt_id, failed.claim_id) == (guest.attempt_id, guest.claim_id)
    assert "in the middle" in failed.reason
    assert now.guests() == []


def test_an_attempt_that_is_in_hand_is_named_among_the_guests_before_it_has_one(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    wait_until(lambda: not now.cell.returning and now.cell.said(ReturnHosts))
    build = build_on(HOST)
    now.build(build)
    assert driver.begun.wait(10)
    assert now.guests() == []

    with now.cell.lock:
        now.cell.returning = {HOST}
    wait_until(lambda: len(now.cell.said(ReturnHosts)) >= 2)
    driver.go_on.set()
    wait_until(lambda: now.cell.said(BuildFinished))

    (named,) = now.cell.said(ReturnHosts)[1].guests
    assert (named.attempt_id, named.claim_id, named.resources) == (build.attempt_id, build.claim_id, build.resources)


def test_no_build_begins_on_a_host_while_its_guests_are_being_counted(stage: Begin) -> None:
    cell = Holding(ReturnHosts)
    now = stage(cell)
    now.start()
    assert cell.asked.wait(10)
    waiting, destroyed = build_on(HOST), build_on(HOST)
    now.build(waiting)
    now.build(destroyed)
    now.destroy(destroyed)
    time.sleep(0.2)
    assert cell.said(AcceptInCell) == []
    cell.go_on.set()

    wait_until(lambda: cell.said(BuildFinished))
    assert [accepted.attempt_id for accepted in cell.said(AcceptInCell)] == [waiting.attempt_id]


def test_thousands_of_hosts_return_in_batches(stage: Begin) -> None:
    now = stage(fake_driver={"hosts": 1234})
    now.start()
    wait_until(lambda: len(set(returned(now.cell))) == 1234)

    assert max(len(said.hosts) for said in now.cell.said(ReturnHosts)) == 100


# --- Hosts that die ---------------------------------------------------------------------------------------------------


def test_a_dead_host_is_silent_and_returns_with_the_guests_it_had(stage: Begin) -> None:
    now = stage()
    driver = now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished))

    driver.die(HOST, 1.0)
    heard = len(now.cell.said(ReportHostsInCell))
    with pytest.raises(errors.NoReply):
        now.destroy(build)
    with pytest.raises(errors.NoReply):
        now.build(build_on(HOST))
    wait_until(lambda: len(now.cell.said(ReportHostsInCell)) >= heard + 3)

    assert all(said.alive == HOSTS[1:] for said in now.cell.said(ReportHostsInCell)[heard + 1 : heard + 3])
    wait_until(lambda: now.cell.said(ReportHostsInCell)[-1].alive == HOSTS)
    assert attempts(now) == [build.attempt_id]
    now.destroy(build)
    assert now.guests() == []


def test_a_host_that_dies_in_the_middle_of_a_spawn_says_so_when_it_is_back(stage: Begin) -> None:
    now = stage(fake_driver={"dying_hosts": [HOST], "dead_seconds": 0.5})
    now.start()
    build = build_on(HOST)

    now.build(build)
    wait_until(now.guests)
    assert now.cell.said(BuildFailedInCell) == []
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    assert "died" in now.cell.said(BuildFailedInCell)[0].reason
    assert now.guests() == []


def test_a_dead_host_returns_later_and_keeps_none_of_the_others_from_returning(stage: Begin) -> None:
    now = stage()
    driver = now.start()
    wait_until(lambda: not now.cell.returning and now.cell.said(ReturnHosts))
    driver.die(HOST, 0.5)
    with now.cell.lock:
        now.cell.returning = set(HOSTS)

    wait_until(lambda: now.cell.returning == {HOST})
    wait_until(lambda: now.cell.returning == set())
