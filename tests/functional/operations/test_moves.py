"""Server operations on a whole cloud of one process: every row of what may be done with a server, and how it fails."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.operations.move_stage import HOSTS, LARGE, SMALL, Stage, plan

from conductor.service import CellConductor
from harness.cloud import RunningCloud, wait_until
from moorage import errors, ids
from moorage.messages import AbortMigration, EvacuateInstance, RebuildInstance, ShelveInstance, UnshelveInstance
from moorage.model import Flavor, Image


@pytest.fixture(scope="module")
def running() -> Iterator[Stage]:
    """A cloud in which nothing fails."""
    with RunningCloud(plan()) as cloud:
        yield Stage(cloud)


@pytest.fixture
def fine(running: Stage) -> Iterator[Stage]:
    """The same, with nothing in it."""
    yield running
    running.clear()


# --- Straight ---------------------------------------------------------------------------------------------------------


def test_a_cold_migrated_server_is_confirmed_on_another_host(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])
    ordered = fine.migrate(uuid)
    moved = fine.becomes(uuid, "moved")
    assert (moved.migration_uuid, moved.host != HOSTS[0]) == (ordered.migration_uuid, True)
    assert fine.held()[ordered.migration_uuid] == {HOSTS[0]}

    fine.confirm(uuid)

    fine.ends(ordered, "confirmed")
    fine.settles(uuid, str(moved.host))
    assert ordered.migration_uuid not in fine.held()


def test_a_reverted_resize_leaves_the_server_as_it_was_where_it_was(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])
    before = fine.show(uuid)
    ordered = fine.resize(uuid, HOSTS[1])
    assert fine.becomes(uuid, "moved").host == HOSTS[1]
    assert fine.used(HOSTS[1]) == LARGE.vcpus

    fine.revert(uuid)

    fine.ends(ordered, "reverted")
    after = fine.settles(uuid, HOSTS[0])
    assert (after.claim_id, after.flavor) == (before.claim_id, SMALL)
    assert (fine.used(HOSTS[0]), fine.used(HOSTS[1])) == (SMALL.vcpus, 0)


def test_a_resize_to_the_same_host_holds_both_sizes_until_it_is_confirmed(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])
    ordered = fine.resize(uuid, HOSTS[0])
    fine.becomes(uuid, "moved")
    assert fine.used(HOSTS[0]) == SMALL.vcpus + LARGE.vcpus

    fine.confirm(uuid)

    fine.ends(ordered, "confirmed")
    assert fine.settles(uuid, HOSTS[0]).flavor == LARGE
    assert fine.used(HOSTS[0]) == LARGE.vcpus


def test_a_live_migrated_server_needs_no_confirmation(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])

    ordered = fine.live_migrate(uuid, HOSTS[2])

    fine.ends(ordered, "confirmed")
    fine.settles(uuid, HOSTS[2])


def test_an_evacuated_server_runs_elsewhere_and_its_old_host_is_cleaned_up(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])
    order = EvacuateInstance(request_id=ids.fresh(), instance_uuid=uuid)
    with pytest.raises(errors.InvalidState, match="forced down"):
        fine.order(order)
    fine.force_down(HOSTS[0], True)

    ordered = fine.order(EvacuateInstance(request_id=ids.fresh(), instance_uuid=uuid))

    fine.ends(ordered, "confirmed")
    host = fine.becomes(uuid, "active").host
    assert host != HOSTS[0]
    fine.settles(uuid, str(host))
    wait_until(lambda: ordered.migration_uuid not in fine.held(), "the residue to go")


def test_a_shelved_server_holds_nothing_and_is_placed_again(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])
    fine.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    fine.becomes(uuid, "shelved")
    assert uuid not in fine.held()
    assert all(guest.instance_uuid != uuid for guest in fine.guests())

    fine.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid, host=HOSTS[1]))

    fine.becomes(uuid, "active")
    fine.settles(uuid, HOSTS[1])


def test_a_rebuilt_server_holds_what_it_held(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])
    before = fine.show(uuid)

    fine.order(RebuildInstance(request_id=ids.fresh(), instance_uuid=uuid, image=Image(id="other")))

    wait_until(lambda: fine.show(uuid).updated_at > before.updated_at, "it to be rebuilt")
    fine.becomes(uuid, "active")
    assert fine.settles(uuid, HOSTS[0]).claim_id == before.claim_id


def test_a_move_that_fits_nowhere_leaves_the_server_as_it_was_and_says_why(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])
    ordered = fine.resize(uuid, flavor=Flavor(vcpus=1000, memory_mb=4096))

    migration = fine.ends(ordered, "failed")

    assert migration.explanation is not None
    assert fine.settles(uuid, HOSTS[0]).flavor == SMALL


# --- Failing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["failing_moves_hosts", "refusing_moves_hosts"])
@pytest.mark.parametrize("kind", ["cold", "live"])
def test_a_destination_that_fails_is_left_for_the_next_one_and_the_last_one_gives_the_source_back(
    way: str, kind: str
) -> None:
    fails: dict[str, Any] = {way: HOSTS[1]}
    with RunningCloud(plan(**fails)) as cloud:
        stage = Stage(cloud)
        first = stage.build(HOSTS[0])
        order = stage.migrate if kind == "cold" else stage.live_migrate

        failed = order(first, HOSTS[1])
        migration = stage.ends(failed, "failed")

        assert [(attempt.host, attempt.state) for attempt in migration.attempts] == [(HOSTS[1], "failed")]
        assert HOSTS[1] in str(migration.reason)
        stage.becomes(first, "active")
        stage.settles(first, HOSTS[0])
        assert set(stage.held()) == {first}
        ordered = order(first)
        if kind == "cold":
            stage.becomes(first, "moved")
            stage.confirm(first)
        stage.ends(ordered, "confirmed")
        stage.settles(first, HOSTS[2])


def test_a_server_whose_guest_cannot_be_stopped_stays_where_it_is() -> None:
    with RunningCloud(plan(conductor={"max_unanswered_retries": 1}, stuck_hosts=HOSTS[0])) as cloud:
        stage = Stage(cloud)
        uuid = stage.build(HOSTS[0])

        migration = stage.ends(stage.migrate(uuid), "failed")

        assert "could not be stopped" in str(migration.reason)
        # Nor can it be told to start: that it runs cannot be relied on.
        assert stage.show(uuid).state == "error"
        assert stage.held() == {uuid: {HOSTS[0]}}


def test_a_live_migration_that_is_broken_off_leaves_the_server_where_it_was() -> None:
    with RunningCloud(plan(live_migration_seconds=30.0)) as cloud:
        stage = Stage(cloud)
        uuid = stage.build(HOSTS[0])
        ordered = stage.live_migrate(uuid, HOSTS[1])
        wait_until(lambda: len(stage.guests()) == 2, "the guest to arrive")

        stage.order(AbortMigration(request_id=ids.fresh(), instance_uuid=uuid))

        assert stage.ends(ordered, "failed").reason == "it was broken off"
        stage.becomes(uuid, "active")
        stage.settles(uuid, HOSTS[0])
        wait_until(lambda: set(stage.held()) == {uuid}, "nothing else to be held")


@pytest.mark.parametrize("moment", ["moving", "moved", "confirming"])
def test_a_server_that_is_deleted_in_the_middle_of_a_move_leaves_nothing(moment: str) -> None:
    with RunningCloud(plan(spawn_seconds=1.0)) as cloud:
        stage = Stage(cloud)
        uuid = stage.build(HOSTS[0])
        stage.migrate(uuid, HOSTS[1])
        if moment == "moving":
            wait_until(lambda: len(stage.guests()) == 2, "the guest to arrive")
        else:
            stage.becomes(uuid, "moved")
        if moment == "confirming":
            stage.confirm(uuid)

        stage.delete(uuid)

        stage.becomes(uuid, "deleted")
        wait_until(lambda: stage.held() == {}, "nothing to be held")
        wait_until(lambda: stage.guests() == [], "no guest to be left")


def test_a_move_goes_on_where_its_conductors_were_stopped() -> None:
    with RunningCloud(plan(spawn_seconds=1.0)) as cloud:
        stage = Stage(cloud)
        uuid = stage.build(HOSTS[0])
        ordered = stage.migrate(uuid, HOSTS[1])
        wait_until(lambda: len(stage.guests()) == 2, "the guest to arrive")
        cloud.stop_service("conductor-cell1")
        time.sleep(0.2)
        cloud.add("conductor-cell1", CellConductor(cloud.configuration(), "conductor-cell1", "cell1"))

        stage.becomes(uuid, "moved")
        stage.confirm(uuid)
        stage.ends(ordered, "confirmed")
        stage.settles(uuid, HOSTS[1])
        assert set(stage.held()) == {uuid}


# --- Refused at once --------------------------------------------------------------------------------------------------


def test_what_can_be_seen_to_be_wrong_is_refused_and_changes_nothing(fine: Stage) -> None:
    uuid = fine.build(HOSTS[0])
    before = fine.show(uuid)

    with pytest.raises(errors.InstanceNotFound):
        fine.migrate(ids.fresh())
    with pytest.raises(errors.HostNotFound):
        fine.migrate(uuid, "nowhere")
    with pytest.raises(errors.InvalidState):
        fine.migrate(uuid, HOSTS[0])
    with pytest.raises(errors.InvalidState):
        fine.confirm(uuid)
    with pytest.raises(errors.InvalidState):
        fine.order(AbortMigration(request_id=ids.fresh(), instance_uuid=uuid))
    with pytest.raises(errors.InvalidState):
        fine.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))

    # An order that is refused uses up its number.
    assert msgspec.structs.replace(fine.show(uuid), last_order=before.last_order) == before
