"""Test the periodic tasks of the conductors: they acknowledge, purge, and discover changes in cells."""

import time

from support.conductor.builders import CELL_1, World, report, wait_until
from support.conductor.host_reports import report_hosts

from conductor.retention import CellEndedRecords
from conductor.schema import cell_operations
from moorage import failpoints, ids
from moorage.messages import DeleteAllocations, SelectDestinations, ShowInCell, SwapClaim


def test_stored_requests_are_acknowledged_when_their_outcome_is_recorded(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.delete(uuid)
    world.becomes(uuid, "deleted")
    wait_until(lambda: world.pending("conductor") == world.pending("cell") == 0)

    stored = {
        call.request_id
        for call in world.placement.calls
        if isinstance(call, SelectDestinations | SwapClaim | DeleteAllocations)
    }

    assert len(stored) == 3
    wait_until(lambda: set(world.placement.acknowledged) == stored)
    assert len(world.placement.acknowledged) == 3


def test_the_super_conductor_records_a_deletion_in_its_cell_without_a_request(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")

    world.delete(uuid)

    def recorded_state() -> str:
        """Read the record of the super conductor, without a request to it."""
        with world.records.engine.connect() as connection:
            query = "SELECT state FROM conductor_instances WHERE uuid = ?"
            return str(connection.exec_driver_sql(query, (uuid,)).scalar_one())

    wait_until(lambda: recorded_state() == "deleted")


def test_old_stored_requests_are_purged_and_not_carried_out_again(world: World) -> None:
    uuid = ids.fresh()
    world.build(uuid, request_id="req-1")
    world.becomes(uuid, "active")
    with world.records.engine.begin() as connection:
        for schema in ("conductor", "cell"):
            connection.exec_driver_sql(f"UPDATE {schema}_requests SET created_at = 1")

    world.restart("cell")
    world.restart("super")

    def left() -> int:
        with world.records.engine.connect() as connection:
            counts = [
                connection.exec_driver_sql(f"SELECT COUNT(*) FROM {schema}_requests").scalar_one()
                for schema in ("conductor", "cell")
            ]
        return sum(counts)

    wait_until(lambda: left() == 0)
    assert len(world.agent.builds) == 1


def test_the_guests_of_a_deleted_host_are_known_to_be_gone_when_it_has_been_silent_for_long(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    report_hosts(world, hosts=(report("a"),))
    world.agent.no_reply_to_destroy = world.placement.declared_down = {"a"}
    world.delete(uuid)
    world.becomes(uuid, "deleted")
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE cell_hosts SET last_seen = 1")

    def guests_left() -> list[bool]:
        [instance] = world.cell_call(ShowInCell(instance_uuids=(uuid,)))
        return [attempt.guest_left for attempt in instance.attempts]

    world.conf.set_override("prune_interval", 0.2, group="service")
    world.restart("cell")
    time.sleep(1.0)
    assert guests_left() == [True]

    world.placement.deleted_hosts = {"a"}

    wait_until(lambda: guests_left() == [False])


def test_a_cleanup_ends_although_the_record_of_its_attempt_was_pruned_with_the_deleted_host(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    report_hosts(world, hosts=(report("a"),))
    world.agent.no_reply_to_destroy = world.placement.declared_down = {"a"}
    world.delete(uuid)
    world.becomes(uuid, "deleted")
    wait_until(lambda: world.pending("cell", "AND kind = 'clean' AND tries > 0") == 1)
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE cell_hosts SET last_seen = 1")
    scope = {"cell_uuid": CELL_1.uuid}
    records = CellEndedRecords(world.records, cell_operations, scope, 0.0, deleted_hosts=lambda hosts: hosts)

    def prune(name: str) -> None:
        if name == "step.clean.destroy.begin":
            records.prune()

    with failpoints.observed(prune):
        wait_until(lambda: world.pending("cell") == 0)

    [instance] = world.cell_call(ShowInCell(instance_uuids=(uuid,)))
    assert instance.attempts == ()
    assert not world.placement.residues
