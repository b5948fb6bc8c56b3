"""Test moved guests and the guests on their sources, also after a restart of the agent."""

from typing import get_args

import pytest
from support.compute.builders import (
    HOST,
    OTHER_HOST,
    AgentUnderTest,
    NewStage,
    build_on,
    move_to,
    rebuild_of,
    start_of,
    stop_of,
    wait_until,
)

from moorage import errors
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished, BuildOnHost, ReturnHosts
from moorage.model import MoveKind

EVERY_KIND = pytest.mark.parametrize("kind", get_args(MoveKind))


def ended(stage: AgentUnderTest, build: BuildOnHost) -> str:
    """Order a build, and return the method of the message with its outcome."""

    def outcomes() -> list[str]:
        reports: list[BuildFinished | BuildFailedInCell] = [
            *stage.cell.received(BuildFinished),
            *stage.cell.received(BuildFailedInCell),
        ]
        return [message.method for message in reports if message.attempt_id == build.attempt_id]

    stage.build(build)
    wait_until(outcomes)
    return outcomes()[0]


def built_source(stage: AgentUnderTest, vcpus: int = 2) -> BuildOnHost:
    source = build_on(HOST, vcpus)
    assert ended(stage, source) == "build_finished"
    return source


def wait_for_returns(stage: AgentUnderTest, count: int) -> None:
    wait_until(lambda: len(stage.cell.received(ReturnHosts)) == count and not stage.cell.returning)


@EVERY_KIND
@pytest.mark.parametrize("host", [HOST, OTHER_HOST])
def test_a_moved_guest_is_built_like_any_other_and_the_source_keeps_its_guest(
    new_stage: NewStage, kind: MoveKind, host: str
) -> None:
    stage = new_stage()
    stage.start()
    source = built_source(stage)
    stage.order(stop_of(source))
    moved = move_to(host, source, kind, vcpus=4)

    assert ended(stage, moved) == "build_finished"

    held = {guest.attempt_id: (guest.host, guest.resources) for guest in stage.guests()}
    assert held == {
        source.attempt_id: (HOST, source.resources),
        moved.attempt_id: (host, moved.resources),
    }
    assert stage.stopped() == [source.attempt_id]


def test_a_resize_on_the_same_host_fails_where_both_sizes_do_not_fit(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    source = built_source(stage, vcpus=9)
    stage.order(stop_of(source))

    assert ended(stage, move_to(HOST, source, "resize", vcpus=8)) == "build_failed"
    stage.order(start_of(source))

    assert stage.attempts() == [source.attempt_id]
    assert stage.stopped() == []


@EVERY_KIND
def test_a_host_that_refuses_moved_guests_refuses_before_the_first_gate_and_takes_new_guests(
    new_stage: NewStage, kind: MoveKind
) -> None:
    stage = new_stage(fake_driver={"refusing_moves_hosts": [OTHER_HOST]})
    stage.start()
    source = built_source(stage)
    moved = move_to(OTHER_HOST, source, kind)

    assert ended(stage, moved) == "build_failed"
    assert ended(stage, build_on(OTHER_HOST)) == "build_finished"

    assert moved.attempt_id not in {message.attempt_id for message in stage.cell.received(AcceptInCell)}
    assert "from other hosts" in stage.cell.received(BuildFailedInCell)[0].reason


@EVERY_KIND
def test_a_moved_guest_that_does_not_start_is_cleaned_up_and_the_source_keeps_its_guest(
    new_stage: NewStage, kind: MoveKind
) -> None:
    stage = new_stage(fake_driver={"failing_moves_hosts": [OTHER_HOST]})
    stage.start()
    source = built_source(stage)
    moved = move_to(OTHER_HOST, source, kind)

    assert ended(stage, moved) == "build_failed"

    assert moved.attempt_id in {message.attempt_id for message in stage.cell.received(AcceptInCell)}
    assert stage.attempts() == [source.attempt_id]
    assert stage.stopped() == []


def test_a_live_migration_is_aborted_by_a_destroy_at_its_destination_and_the_source_still_runs(
    new_stage: NewStage,
) -> None:
    stage = new_stage(fake_driver={"live_migration_seconds": 3600.0})
    stage.start()
    source = built_source(stage)
    moved = move_to(OTHER_HOST, source, "live-migration")
    stage.build(moved)
    wait_until(lambda: len(stage.guests()) == 2)

    stage.destroy(moved)

    assert stage.attempts() == [source.attempt_id]
    assert stage.stopped() == []
    assert len(stage.cell.build_methods()) == 3, "the destroyed attempt is not reported"


def test_stopped_guests_are_listed_when_their_host_returns_and_are_neither_started_nor_reported(
    new_stage: NewStage,
) -> None:
    stage = new_stage()
    stage.start()
    stopped, running = built_source(stage), built_source(stage)
    stage.order(stop_of(stopped))
    stage.stop()
    # Its claim now belongs to a migration, so a careless cell would answer that the attempt is superseded.
    stage.cell.superseded.add(stopped.attempt_id)
    before = len(stage.cell.build_methods())

    stage.start()
    wait_for_returns(stage, 2)
    wait_until(lambda: len(stage.cell.build_methods()) > before)
    stage.stop()

    assert {guest.attempt_id for guest in stage.cell.received(ReturnHosts)[-1].guests} == {
        stopped.attempt_id,
        running.attempt_id,
    }
    assert [message.attempt_id for message in stage.cell.received(BuildFinished)[2:]] == [running.attempt_id]
    assert stage.cell.received(BuildFailedInCell) == []
    assert stage.stopped() == [stopped.attempt_id]
    assert len(stage.guests()) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_a_repeated_build_of_a_stopped_guest_neither_starts_nor_destroys_it(
    new_stage: NewStage, restarted: bool
) -> None:
    stage = new_stage(compute={"workers": 1})
    stage.start()
    source = built_source(stage)
    stage.order(stop_of(source))
    stage.cell.superseded.add(source.attempt_id)
    if restarted:
        stage.restart()
        wait_for_returns(stage, 2)
    before = stage.cell.build_methods()

    stage.build(source)
    other = build_on(HOST)
    assert ended(stage, other) == "build_finished", "the only worker has handled the repeated build"

    assert stage.cell.build_methods() == [*before, "accept_claim", "build_finished"]
    assert stage.stopped() == [source.attempt_id]


def test_a_guest_that_was_rebuilt_or_started_again_is_reported_as_running_after_a_restart(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    rebuilt, started = build_on(HOST), build_on(OTHER_HOST)
    assert ended(stage, rebuilt) == ended(stage, started) == "build_finished"
    stage.order(rebuild_of(rebuilt))
    stage.order(stop_of(started))
    stage.order(start_of(started))

    stage.restart()
    wait_until(lambda: len(stage.cell.received(BuildFinished)) == 4)

    assert stage.cell.received(BuildFailedInCell) == []
    assert stage.stopped() == []
    assert len(stage.guests()) == 2


def test_a_half_made_guest_is_removed_although_an_order_arrives_before_its_host_has_returned(
    new_stage: NewStage,
) -> None:
    stage = new_stage(fake_driver={"hanging_hosts": [HOST]}, compute={"stop_timeout": 0.1})
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(stage.guests)

    stage.restart()
    # The answer depends on whether the return has begun.
    with pytest.raises(errors.InvalidState, match=r"never started|no guest"):
        stage.order(stop_of(build))
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    assert stage.guests() == []
