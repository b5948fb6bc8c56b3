"""Test the numbers of a cell's orders to the guest of an instance, on SQLite and on MariaDB."""

import time
from functools import partial

from sqlalchemy import Connection
from support.conductor.record_builders import SPEC, selected

from conductor.cell.records import order_numbers
from conductor.cell.records.instances import CellInstance, CellRecords, NewInstance
from conductor.schema import cell_instances
from moorage import ids
from moorage.db.database import Database
from moorage.messages import InstanceBuild


def test_each_order_to_a_guest_has_a_greater_number_at_least_the_time_and_changes_the_record(
    database: Database,
) -> None:
    uuid, records = ids.fresh(), CellRecords(ids.fresh())
    build = InstanceBuild(instance_uuid=uuid, request_spec=SPEC, selections=(selected(records.cell_uuid),))
    database.write(partial(records.add, new=[NewInstance(ids.fresh(), build, "req")]))
    long_ago = cell_instances.update().where(cell_instances.c.uuid == uuid).values(updated_at=1.0)
    database.write(lambda connection: connection.execute(long_ago))

    def order(connection: Connection) -> CellInstance | None:
        instance = records.lock(connection, uuid)
        assert instance is not None
        order_numbers.next_guest_order(records, connection, instance)
        return records.lock(connection, uuid)

    numbers = [one.guest_order_number for one in (database.write(order), database.write(order)) if one is not None]

    assert abs(numbers[0] - time.time() / 10) < 60
    assert numbers[1] > numbers[0]
    [shown] = database.read(partial(records.show, uuids=[uuid]))
    assert shown.updated_at > 1.0
