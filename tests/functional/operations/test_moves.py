"""Test server operations on a whole cloud of one process, and how they fail."""

from collections.abc import Iterator

import msgspec
import pytest
from support.operations.cloud import TroublesomeCloud
from support.operations.move_scenario import HOSTS, LARGE, SMALL, MoveScenario, plan

from harness.waiting import wait_until
from moorage import errors, ids
from moorage.messages import AbortMigration, EvacuateInstance, RebuildInstance, ShelveInstance, UnshelveInstance
from moorage.model import Flavor, Image


@pytest.fixture(scope="module")
def cloud() -> Iterator[TroublesomeCloud]:
    with TroublesomeCloud(plan()) as cloud:
        yield cloud


@pytest.fixture
def stage(cloud: TroublesomeCloud) -> Iterator[MoveScenario]:
    """Return the cloud without servers and faults."""
    stage = MoveScenario(cloud)
    yield stage
    stage.clear()


# --- Without trouble --------------------------------------------------------------------------------------------------


def test_a_cold_migrated_server_is_confirmed_on_another_host(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    ordered = stage.migrate(uuid)
    moved = stage.becomes(uuid, "moved")
    assert moved.migration_uuid == ordered.migration_uuid
    assert moved.host != HOSTS[0]
    assert stage.held()[ordered.migration_uuid] == {HOSTS[0]}

    stage.confirm(uuid)

    stage.ends(ordered, "confirmed")
    stage.settles(uuid, str(moved.host))
    assert ordered.migration_uuid not in stage.held()


def test_a_reverted_resize_leaves_the_server_as_it_was_where_it_was(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    before = stage.show(uuid)
    ordered = stage.resize(uuid, HOSTS[1])
    assert stage.becomes(uuid, "moved").host == HOSTS[1]
    assert stage.used(HOSTS[1]) == LARGE.vcpus

    stage.revert(uuid)

    stage.ends(ordered, "reverted")
    after = stage.settles(uuid, HOSTS[0])
    assert (after.claim_id, after.flavor) == (before.claim_id, SMALL)
    assert (stage.used(HOSTS[0]), stage.used(HOSTS[1])) == (SMALL.vcpus, 0)


def test_a_resize_to_the_same_host_holds_both_sizes_until_it_is_confirmed(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    ordered = stage.resize(uuid, HOSTS[0])
    stage.becomes(uuid, "moved")
    assert stage.used(HOSTS[0]) == SMALL.vcpus + LARGE.vcpus

    stage.confirm(uuid)

    stage.ends(ordered, "confirmed")
    assert stage.settles(uuid, HOSTS[0]).flavor == LARGE
    assert stage.used(HOSTS[0]) == LARGE.vcpus


def test_a_live_migrated_server_needs_no_confirmation(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])

    ordered = stage.live_migrate(uuid, HOSTS[2])

    stage.ends(ordered, "confirmed")
    stage.settles(uuid, HOSTS[2])


def test_an_evacuated_server_runs_elsewhere_and_its_old_host_is_cleaned_up(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    with pytest.raises(errors.InvalidState, match="forced down"):
        stage.order(EvacuateInstance(request_id=ids.fresh(), instance_uuid=uuid))
    stage.force_down(HOSTS[0], True)

    ordered = stage.order(EvacuateInstance(request_id=ids.fresh(), instance_uuid=uuid))

    stage.ends(ordered, "confirmed")
    host = stage.becomes(uuid, "active").host
    assert host != HOSTS[0]
    stage.settles(uuid, str(host))
    wait_until(lambda: ordered.migration_uuid not in stage.held(), "the residue to go")


def test_a_shelved_server_holds_nothing_and_is_placed_again(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    stage.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    stage.becomes(uuid, "shelved")
    assert uuid not in stage.held()
    assert all(guest.instance_uuid != uuid for guest in stage.guests())

    stage.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid, host=HOSTS[1]))

    stage.becomes(uuid, "active")
    stage.settles(uuid, HOSTS[1])


def test_a_rebuilt_server_keeps_its_claim(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    before = stage.show(uuid)

    stage.order(RebuildInstance(request_id=ids.fresh(), instance_uuid=uuid, image=Image(id="other")))

    wait_until(lambda: stage.show(uuid).updated_at > before.updated_at, "it to be rebuilt")
    stage.becomes(uuid, "active")
    assert stage.settles(uuid, HOSTS[0]).claim_id == before.claim_id


def test_a_move_without_a_valid_host_leaves_the_server_as_it_was_and_is_explained(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    ordered = stage.resize(uuid, flavor=Flavor(vcpus=1000, memory_mb=4096))

    migration = stage.ends(ordered, "failed")

    assert migration.explanation is not None
    assert stage.settles(uuid, HOSTS[0]).flavor == SMALL


# --- With trouble -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["failing", "refusing"])
@pytest.mark.parametrize("kind", ["cold", "live"])
def test_a_move_to_a_failing_host_alone_fails_and_one_to_any_host_falls_back(
    cloud: TroublesomeCloud, stage: MoveScenario, fault: str, kind: str
) -> None:
    uuid = stage.build(HOSTS[0])
    getattr(cloud.faults, fault).add((uuid, HOSTS[1]))
    order = stage.migrate if kind == "cold" else stage.live_migrate

    migration = stage.ends(order(uuid, HOSTS[1]), "failed")

    assert [(attempt.host, attempt.state) for attempt in migration.attempts] == [(HOSTS[1], "failed")]
    assert HOSTS[1] in str(migration.reason)
    stage.becomes(uuid, "active")
    stage.settles(uuid, HOSTS[0])
    assert set(stage.held()) == {uuid}
    ordered = order(uuid)
    if kind == "cold":
        stage.becomes(uuid, "moved")
        stage.confirm(uuid)
    stage.ends(ordered, "confirmed")
    stage.settles(uuid, HOSTS[2])


@pytest.mark.parametrize("moment", ["moving", "moved", "confirming"])
def test_a_server_that_is_deleted_in_the_middle_of_a_move_leaves_nothing(
    cloud: TroublesomeCloud, stage: MoveScenario, moment: str
) -> None:
    uuid = stage.build(HOSTS[0])
    if moment == "moving":
        cloud.faults.hanging.add((uuid, HOSTS[1]))
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


def test_a_move_continues_after_a_restart_of_its_conductor(cloud: TroublesomeCloud, stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    cloud.faults.hanging.add((uuid, HOSTS[1]))
    ordered = stage.migrate(uuid, HOSTS[1])
    wait_until(lambda: len(stage.guests()) == 2, "the guest to arrive")

    cloud.restart("conductor-cell1", cloud.life("conductor-cell1"))
    cloud.drivers["cell1"].come_to_end(HOSTS[1])

    stage.becomes(uuid, "moved")
    stage.confirm(uuid)
    stage.ends(ordered, "confirmed")
    stage.settles(uuid, HOSTS[1])
    assert set(stage.held()) == {uuid}


# --- Refused at once --------------------------------------------------------------------------------------------------


def test_orders_that_are_known_to_be_impossible_are_refused_and_change_nothing(stage: MoveScenario) -> None:
    uuid = stage.build(HOSTS[0])
    before = stage.show(uuid)

    with pytest.raises(errors.InstanceNotFound):
        stage.migrate(ids.fresh())
    with pytest.raises(errors.HostNotFound):
        stage.migrate(uuid, "nowhere")
    with pytest.raises(errors.InvalidState):
        stage.migrate(uuid, HOSTS[0])
    with pytest.raises(errors.InvalidState):
        stage.confirm(uuid)
    with pytest.raises(errors.InvalidState):
        stage.order(AbortMigration(request_id=ids.fresh(), instance_uuid=uuid))
    with pytest.raises(errors.InvalidState):
        stage.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))

    # An order that is refused uses up its number.
    assert msgspec.structs.replace(stage.show(uuid), last_order=before.last_order) == before
