"""Test an agent before its hosts count as up: it destroys guests only by record, and lists the guests that it has."""

import time
from typing import Any

import pytest
from support.compute.builders import (
    AGENT,
    CELL,
    HOST,
    HOSTS,
    UNAVAILABLE,
    AgentUnderTest,
    FailingCell,
    FakeCell,
    HangingDestroys,
    HoldingCell,
    NewStage,
    SlowDriver,
    build_on,
    guest_spec,
    wait_until,
)

import compute.returns
from compute.driver import GuestSpec
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.messages import (
    AcceptInCell,
    AttemptsGone,
    BuildFailedInCell,
    BuildFinished,
    BuildOnHost,
    ListEndedAttempts,
    ReportHostsInCell,
    ReturnHosts,
)
from moorage.messages.wire import Message
from moorage.model import EndedAttempt


def record(guest: GuestSpec | BuildOnHost, claim_id: str | None = None) -> EndedAttempt:
    """Return the record of an ended attempt on the first host."""
    return EndedAttempt(
        host=HOST,
        instance_uuid=guest.instance_uuid,
        attempt_id=guest.attempt_id,
        claim_id=claim_id or guest.claim_id,
    )


def left_behind(stage: AgentUnderTest, *, runs: bool = True, host: str = HOST) -> GuestSpec:
    """Leave a guest on a host, as an agent does that is killed, and return the guest."""

    class Killed(FakeDriver):
        def behaviour(self, host: str, guest: GuestSpec) -> Any:
            raise KeyboardInterrupt

    guest = guest_spec()
    driver = (FakeDriver if runs else Killed)(stage.conf, AGENT, CELL.name)
    driver.start()
    try:
        driver.spawn(host, guest)
    except KeyboardInterrupt:
        assert not runs
    finally:
        driver.close()
    return guest


def test_a_starting_agent_destroys_the_guests_of_ended_attempts_before_its_hosts_return(new_stage: NewStage) -> None:
    stage = new_stage()
    ended, wanted = left_behind(stage), left_behind(stage)
    stage.cell.ended = [record(ended)]

    stage.start()
    wait_until(lambda: stage.cell.received(ReturnHosts))

    kinds = (ListEndedAttempts, AttemptsGone, ReturnHosts)
    methods = [message.method for message in stage.cell.messages if isinstance(message, kinds)]
    assert methods == ["list_ended_attempts", "attempts_gone", "return_hosts"]
    assert next(message.started for message in stage.cell.received(ReportHostsInCell) if message.hosts) == HOSTS
    assert stage.cell.received(ListEndedAttempts)[0].hosts == HOSTS
    assert stage.cell.received(AttemptsGone)[0].attempts == (record(ended),)
    (last,) = stage.cell.received(ReturnHosts)
    assert (last.agent, last.hosts) == (AGENT, HOSTS)
    assert [(guest.attempt_id, guest.claim_id, guest.host) for guest in last.guests] == [
        (wanted.attempt_id, wanted.claim_id, HOST)
    ]
    assert stage.attempts() == [wanted.attempt_id]


def test_hosts_are_reported_as_started_once(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    stage.wait_for_reports(4)

    assert [message.started for message in stage.cell.received(ReportHostsInCell) if message.started] == [HOSTS]
    assert stage.cell.returned().count(HOST) == 1


@pytest.mark.parametrize("kind", ["instance", "attempt"])
def test_a_guest_without_a_record_is_listed_and_left_running(
    new_stage: NewStage, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, BuildFinished):
                if kind == "instance":
                    raise errors.InstanceNotFound(name=message.instance_uuid)
                raise errors.NotFound(kind="attempt", name=message.attempt_id)

    stage = new_stage(Cell(), fake_driver={"stranger_guests": 4})
    stage.start()
    wait_until(lambda: len(stage.cell.received(BuildFinished)) == 4)
    stage.stop()
    unknown_guests = stage.guests()

    assert [guest.host for guest in unknown_guests] == [HOST, HOST, "host-0002", "host-0003"]
    assert {guest.attempt_id for guest in stage.cell.received(ReturnHosts)[0].guests} == set(stage.attempts())
    returned = len(stage.cell.received(ReturnHosts))
    stage.start()
    wait_until(lambda: len(stage.cell.received(ReturnHosts)) > returned)
    assert stage.guests() == unknown_guests
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "an unknown guest is not an error"


def test_a_host_returns_although_the_driver_hangs_in_a_destroy_on_another_one(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute.returns, "_DESTROY_PATIENCE", 0.2)
    stage = new_stage(compute={"stop_timeout": 0.1})
    hung, other = left_behind(stage), left_behind(stage)
    stage.cell.ended = [record(hung), record(other)]

    class Hanging(HangingDestroys):
        def start(self) -> None:
            self.hanging = {hung.attempt_id}
            super().start()

    driver = stage.start(Hanging)
    wait_until(lambda: stage.cell.received(ReturnHosts) and stage.cell.received(AttemptsGone))
    returned = {host for message in stage.cell.received(ReturnHosts) for host in message.hosts}
    assert returned == set(HOSTS) - {HOST}
    assert [one.attempt_id for message in stage.cell.received(AttemptsGone) for one in message.attempts] == [
        other.attempt_id
    ]

    driver.go_on.set()
    wait_until(lambda: any(HOST in message.hosts for message in stage.cell.received(ReturnHosts)))
    assert stage.guests() == []


def test_a_guest_under_another_claim_than_its_record_is_left_running_and_its_host_stays_returning(
    new_stage: NewStage,
) -> None:
    stage = new_stage()
    guest = left_behind(stage)
    stage.cell.ended = [record(guest, claim_id=ids.fresh())]

    stage.start()
    wait_until(lambda: len(stage.cell.received(ListEndedAttempts)) >= 3)

    assert stage.attempts() == [guest.attempt_id]
    assert stage.cell.received(AttemptsGone) == []
    assert set(stage.cell.returned()) == set(HOSTS[1:])


def test_a_host_returns_when_a_spawn_that_cannot_be_aborted_has_ended(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"late_hosts": [HOST], "late_seconds": 2.5})
    stage.start()
    wait_until(lambda: set(stage.cell.returned()) == set(HOSTS))
    build = build_on(HOST)
    stage.build(build)
    wait_until(stage.guests)

    with stage.cell.lock:
        stage.cell.ended = [record(build)]
        stage.cell.returning = {HOST, "host-0002"}
    wait_until(lambda: stage.cell.returned().count("host-0002") >= 2)
    assert stage.cell.returned().count(HOST) == 1
    wait_until(lambda: stage.cell.returned().count(HOST) >= 2)

    assert stage.cell.received(BuildFinished) == []
    assert len(stage.cell.received(AttemptsGone)) == 1
    assert stage.guests() == []


def test_an_attempt_that_is_listed_as_ended_is_not_started_afterwards(new_stage: NewStage) -> None:
    stage = new_stage()
    build = build_on(HOST)
    stage.cell.ended = [record(build)]
    stage.start()
    wait_until(lambda: stage.cell.received(AttemptsGone))

    stage.build(build)
    wait_until(lambda: HOST in stage.cell.returned())
    time.sleep(0.2)

    assert stage.cell.build_methods() == []
    assert stage.guests() == []


def test_a_host_whose_heartbeats_the_cell_has_missed_returns_and_its_builds_are_left_alone(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    build = build_on("host-0002")
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFinished) and stage.cell.returned() and not stage.cell.returning)

    with stage.cell.lock:
        stage.cell.returning = {"host-0002"}
    wait_until(lambda: stage.cell.returned().count("host-0002") >= 2)
    time.sleep(0.2)

    assert stage.cell.received(ReturnHosts)[-1].hosts == ("host-0002",)
    assert [guest.attempt_id for guest in stage.cell.received(ReturnHosts)[-1].guests] == [build.attempt_id]
    assert stage.cell.build_methods() == ["accept_claim", "build_finished"]


@pytest.mark.parametrize("lost", [ListEndedAttempts, AttemptsGone, ReturnHosts])
def test_an_unanswered_message_of_a_return_is_repeated_with_the_same_ids(
    new_stage: NewStage, lost: type[Message[Any]]
) -> None:
    stage = new_stage(FailingCell(UNAVAILABLE, lost, left=2))
    stage.cell.ended = [record(left_behind(stage))]
    stage.start()
    wait_until(lambda: stage.cell.returned() and not stage.cell.returning)

    first, *others = stage.cell.received(lost)
    assert others[:2] == [first] * 2
    assert stage.guests() == []


def test_a_refused_return_is_repeated_and_reports_do_not_wait_for_it(new_stage: NewStage) -> None:
    cell = FailingCell(errors.InvalidState(reason="a guest of an ended attempt is among them"), ReturnHosts)
    stage = new_stage(cell)
    stage.start()
    wait_until(lambda: len(cell.received(ReturnHosts)) >= 3)
    stage.wait_for_reports(3)
    cell.left = 0

    wait_until(lambda: not cell.returning)


def test_reports_do_not_wait_for_an_unanswered_return(new_stage: NewStage) -> None:
    cell = HoldingCell(ListEndedAttempts)
    stage = new_stage(cell)
    stage.start()
    stage.wait_for_reports(5)
    assert cell.received(ReturnHosts) == []
    cell.go_on.set()

    wait_until(lambda: cell.received(ReturnHosts))


def test_a_guest_from_before_a_restart_is_reported_again_and_kept_or_destroyed_as_the_cell_answers(
    new_stage: NewStage,
) -> None:
    stage = new_stage()
    kept, superseded = left_behind(stage), left_behind(stage)
    stage.cell.superseded.add(superseded.attempt_id)

    stage.start()
    wait_until(lambda: stage.attempts() == [kept.attempt_id])
    wait_until(lambda: stage.cell.received(AttemptsGone))

    assert {message.attempt_id for message in stage.cell.received(BuildFinished)} == {
        kept.attempt_id,
        superseded.attempt_id,
    }
    assert [gone.attempt_id for message in stage.cell.received(AttemptsGone) for gone in message.attempts] == [
        superseded.attempt_id
    ]


def test_a_spawn_during_which_the_agent_died_is_reported_as_failed(new_stage: NewStage) -> None:
    stage = new_stage()
    guest = left_behind(stage, runs=False)

    stage.start()
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    (failed,) = stage.cell.received(BuildFailedInCell)
    assert (failed.attempt_id, failed.claim_id) == (guest.attempt_id, guest.claim_id)
    assert "in the middle" in failed.reason
    assert stage.guests() == []


def test_an_attempt_under_way_is_listed_among_the_guests_before_its_guest_exists(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(SlowDriver)
    wait_until(lambda: not stage.cell.returning and stage.cell.received(ReturnHosts))
    build = build_on(HOST)
    stage.build(build)
    assert driver.begun.wait(10)
    assert stage.guests() == []

    with stage.cell.lock:
        stage.cell.returning = {HOST}
    wait_until(lambda: len(stage.cell.received(ReturnHosts)) >= 2)
    driver.go_on.set()
    wait_until(lambda: stage.cell.received(BuildFinished))

    (named,) = stage.cell.received(ReturnHosts)[1].guests
    assert (named.attempt_id, named.claim_id, named.resources) == (build.attempt_id, build.claim_id, build.resources)


def test_no_build_begins_on_a_host_while_its_guests_are_being_listed(new_stage: NewStage) -> None:
    cell = HoldingCell(ReturnHosts)
    stage = new_stage(cell)
    stage.start()
    assert cell.arrived.wait(10)
    waiting, destroyed = build_on(HOST), build_on(HOST)
    stage.build(waiting)
    stage.build(destroyed)
    stage.destroy(destroyed)
    time.sleep(0.2)
    assert cell.received(AcceptInCell) == []
    cell.go_on.set()

    wait_until(lambda: cell.received(BuildFinished))
    assert [accepted.attempt_id for accepted in cell.received(AcceptInCell)] == [waiting.attempt_id]


def test_many_hosts_return_in_batches(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hosts": 234})
    stage.start()
    wait_until(lambda: len(set(stage.cell.returned())) == 234)

    assert max(len(message.hosts) for message in stage.cell.received(ReturnHosts)) == 100


# --- Hosts that die ---------------------------------------------------------------------------------------------------


def test_a_dead_host_is_silent_and_returns_with_the_guests_it_had(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFinished))

    driver.die(HOST, 3600.0)
    before = len(stage.cell.received(ReportHostsInCell))
    with pytest.raises(errors.NoReply):
        stage.destroy(build)
    with pytest.raises(errors.NoReply):
        stage.build(build_on(HOST))
    wait_until(lambda: len(stage.cell.received(ReportHostsInCell)) >= before + 3)

    assert all(
        message.alive == HOSTS[1:] for message in stage.cell.received(ReportHostsInCell)[before + 1 : before + 3]
    )
    driver.die(HOST, 0.0)
    wait_until(lambda: stage.cell.received(ReportHostsInCell)[-1].alive == HOSTS)
    assert stage.attempts() == [build.attempt_id]
    stage.destroy(build)
    assert stage.guests() == []


def test_a_host_that_dies_during_a_spawn_reports_the_failure_when_it_is_back(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"dying_hosts": [HOST], "dead_seconds": 3600.0})
    driver = stage.start()
    build = build_on(HOST)

    stage.build(build)
    wait_until(stage.guests)
    wait_until(lambda: not driver.is_alive(HOST))
    assert stage.cell.received(BuildFailedInCell) == []
    driver.die(HOST, 0.0)
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    assert "died" in stage.cell.received(BuildFailedInCell)[0].reason
    assert stage.guests() == []


def test_a_dead_host_returns_later_and_does_not_delay_the_return_of_others(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start()
    wait_until(lambda: not stage.cell.returning and stage.cell.received(ReturnHosts))
    driver.die(HOST, 3600.0)
    with stage.cell.lock:
        stage.cell.returning = set(HOSTS)

    wait_until(lambda: stage.cell.returning == {HOST})
    driver.die(HOST, 0.0)
    wait_until(lambda: stage.cell.returning == set())
