"""Guests that were moved, those they leave behind, and what becomes of both when an agent starts again."""

from typing import get_args

import pytest
from support.compute.builders import HOST, Begin, Stage, build_on, move_to, rebuild_of, start_of, stop_of, wait_until

from moorage import errors
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished, BuildOnHost, ReturnHosts
from moorage.model import MoveKind

LONG = 60.0
OTHER = "host-0002"
EVERY = pytest.mark.parametrize("kind", get_args(MoveKind))


def ended(now: Stage, build: BuildOnHost) -> str:
    """Have something built, and return how its agent says that this has ended."""

    def said() -> list[str]:
        kinds = (BuildFinished, BuildFailedInCell)
        with now.cell.lock:
            told = [message for message in now.cell.told if isinstance(message, kinds)]
        return [message.method for message in told if message.attempt_id == build.attempt_id]

    now.build(build)
    wait_until(said, LONG)
    return said()[0]


def returned(now: Stage, times: int) -> None:
    wait_until(lambda: len(now.cell.said(ReturnHosts)) == times and not now.cell.returning, LONG)


@EVERY
@pytest.mark.parametrize("host", [HOST, OTHER])
def test_a_moved_guest_is_built_as_any_other_and_both_hold_what_they_hold(
    stage: Begin, kind: MoveKind, host: str
) -> None:
    now = stage()
    now.start()
    source = build_on(HOST)
    assert ended(now, source) == "build_finished"
    now.order(stop_of(source))
    moved = move_to(host, source, kind, vcpus=4)

    assert ended(now, moved) == "build_finished"

    held = {guest.attempt_id: (guest.host, guest.resources) for guest in now.guests()}
    assert held == {
        source.attempt_id: (HOST, source.resources),
        moved.attempt_id: (host, moved.resources),
    }
    assert now.stopped() == [source.attempt_id]


def test_a_resize_on_the_same_host_fails_where_both_sizes_do_not_fit(stage: Begin) -> None:
    now = stage()
    now.start()
    source = build_on(HOST, vcpus=9)
    assert ended(now, source) == "build_finished"
    now.order(stop_of(source))

    assert ended(now, move_to(HOST, source, "resize", vcpus=8)) == "build_failed"
    now.order(start_of(source))

    assert [guest.attempt_id for guest in now.guests()] == [source.attempt_id]
    assert now.stopped() == []


@EVERY
def test_a_host_that_refuses_moved_guests_does_so_before_it_accepts_and_takes_new_ones(
    stage: Begin, kind: MoveKind
) -> None:
    now = stage(fake_driver={"refusing_moves_hosts": [OTHER]})
    now.start()
    source = build_on(HOST)
    assert ended(now, source) == "build_finished"
    moved = move_to(OTHER, source, kind)

    assert ended(now, moved) == "build_failed"
    assert ended(now, build_on(OTHER)) == "build_finished"

    assert moved.attempt_id not in {said.attempt_id for said in now.cell.said(AcceptInCell)}
    assert "from other hosts" in now.cell.said(BuildFailedInCell)[0].reason


@EVERY
def test_a_moved_guest_that_does_not_start_is_cleaned_up_and_the_old_one_is_left(stage: Begin, kind: MoveKind) -> None:
    now = stage(fake_driver={"failing_moves_hosts": [OTHER]})
    now.start()
    source = build_on(HOST)
    assert ended(now, source) == "build_finished"
    moved = move_to(OTHER, source, kind)

    assert ended(now, moved) == "build_failed"

    assert moved.attempt_id in {said.attempt_id for said in now.cell.said(AcceptInCell)}
    assert [guest.attempt_id for guest in now.guests()] == [source.attempt_id]
    assert now.stopped() == []


def test_a_live_migration_is_aborted_by_a_destroy_at_its_destination_and_the_source_still_runs(stage: Begin) -> None:
    now = stage(fake_driver={"live_migration_seconds": 3600.0})
    now.start()
    source = build_on(HOST)
    assert ended(now, source) == "build_finished"
    moved = move_to(OTHER, source, "live-migration")
    now.build(moved)
    wait_until(lambda: len(now.guests()) == 2, LONG)

    now.destroy(moved)

    assert [guest.attempt_id for guest in now.guests()] == [source.attempt_id]
    assert now.stopped() == []
    assert len(now.cell.of_builds()) == 3, "nothing is reported of what was destroyed"


def test_stopped_guests_are_named_when_their_host_returns_and_stay_stopped_and_nothing_is_reported_of_them(
    stage: Begin,
) -> None:
    now = stage()
    now.start()
    stopped, runs = build_on(HOST), build_on(HOST)
    assert ended(now, stopped) == ended(now, runs) == "build_finished"
    now.order(stop_of(stopped))
    now.stop()
    # What its cell says of an attempt whose claim has gone to a migration, if it does not look well.
    now.cell.over.add(stopped.attempt_id)
    told = len(now.cell.of_builds())

    now.start()
    returned(now, 2)
    wait_until(lambda: len(now.cell.of_builds()) > told, LONG)
    now.stop()

    assert {guest.attempt_id for guest in now.cell.said(ReturnHosts)[-1].guests} == {
        stopped.attempt_id,
        runs.attempt_id,
    }
    assert [said.attempt_id for said in now.cell.said(BuildFinished)[2:]] == [runs.attempt_id]
    assert now.cell.said(BuildFailedInCell) == []
    assert now.stopped() == [stopped.attempt_id]
    assert len(now.guests()) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_the_build_of_a_stopped_guest_that_arrives_again_neither_starts_nor_destroys_it(
    stage: Begin, restarted: bool
) -> None:
    now = stage(compute={"workers": 1})
    now.start()
    source = build_on(HOST)
    assert ended(now, source) == "build_finished"
    now.order(stop_of(source))
    now.cell.over.add(source.attempt_id)
    if restarted:
        now.stop()
        now.start()
        returned(now, 2)
    told = now.cell.of_builds()

    now.build(source)
    other = build_on(HOST)
    assert ended(now, other) == "build_finished", "the one worker has come past it"

    assert now.cell.of_builds() == [*told, "accept_claim", "build_finished"]
    assert now.stopped() == [source.attempt_id]


def test_a_guest_that_was_rebuilt_or_started_again_is_reported_as_running_after_a_restart(stage: Begin) -> None:
    now = stage()
    now.start()
    rebuilt, started = build_on(HOST), build_on(OTHER)
    assert ended(now, rebuilt) == ended(now, started) == "build_finished"
    now.order(rebuild_of(rebuilt))
    now.order(stop_of(started))
    now.order(start_of(started))
    now.stop()

    now.start()
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 4, LONG)

    assert now.cell.said(BuildFailedInCell) == []
    assert now.stopped() == []
    assert len(now.guests()) == 2


def test_an_order_that_comes_before_its_host_has_returned_leaves_a_half_made_guest_to_be_settled(stage: Begin) -> None:
    now = stage(fake_driver={"hanging_hosts": [HOST]}, compute={"stop_timeout": 0.1})
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(now.guests, LONG)
    now.stop()

    now.start()
    # Whatever it is answered, in the middle of the return or before it.
    with pytest.raises(errors.InvalidState, match=r"never started|no guest"):
        now.order(stop_of(build))
    wait_until(lambda: now.cell.said(BuildFailedInCell), LONG)

    assert now.guests() == []
