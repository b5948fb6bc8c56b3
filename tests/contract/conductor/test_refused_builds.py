"""Test that the records of a build distinguish instances that a cell has refused from unplaced ones."""

from support.conductor.record_builders import SPEC, selected

from conductor.super.records import instances as super_records
from conductor.super.records.instances import NewInstances
from moorage import ids
from moorage.db.database import Database


def test_only_instances_that_a_cell_has_refused_are_listed_as_refused(database: Database) -> None:
    operation, refused, unplaced, deleted = (ids.fresh() for _ in range(4))
    build = NewInstances([refused, unplaced, deleted], SPEC, operation, "req")
    database.write(lambda connection: super_records.add(connection, [build]))
    chosen = {uuid: [selected(ids.fresh())] for uuid in (refused, deleted)}
    database.write(lambda connection: super_records.select_for(connection, chosen))
    database.write(lambda connection: super_records.set_state(connection, [deleted], "deleting"))

    database.write(lambda connection: super_records.fail(connection, [unplaced], "there is no host"))
    database.write(lambda connection: super_records.fail(connection, [refused, deleted], "not here", by_cell=True))

    assert database.read(lambda connection: super_records.refused(connection, operation)) == {refused: "not here"}
    assert database.read(lambda connection: super_records.to_hand_over(connection, operation)).keys() == {
        chosen[deleted][0].cell_uuid
    }
