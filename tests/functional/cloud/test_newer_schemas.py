"""Test services of this release on schemas of a newer release: they work, or do not start and give the reason."""

from collections.abc import Iterator

import pytest
from support.processes.building_client import build

from conductor.schema import CELL, CONDUCTOR
from harness.cloud import CloudSpec, RunningCloud
from moorage import errors
from placement_store.schema import MAIN

SCHEMAS = (MAIN, CONDUCTOR, CELL)


@pytest.fixture
def cloud() -> Iterator[RunningCloud]:
    with RunningCloud(CloudSpec(hosts=2)) as running:
        yield running


def upgrade(cloud: RunningCloud, *, is_compatible: bool) -> None:
    """Change the versions of all schemas as the migrations of a newer release do."""
    with cloud.database.engine.connect() as connection, connection.begin():
        for schema in SCHEMAS:
            newer = f"{schema.name}_9999"
            oldest = sorted(schema._known_revisions())[-1] if is_compatible else newer
            connection.exec_driver_sql(f"UPDATE {schema.version_table} SET version_num = '{newer}'")
            connection.exec_driver_sql(f"UPDATE schema_compatibility_{schema.name} SET oldest_code = '{oldest}'")


def stop_all(cloud: RunningCloud) -> None:
    for name in reversed(list(cloud.services)):
        cloud.stop_service(name)


def test_services_work_on_schemas_of_a_newer_compatible_release(cloud: RunningCloud) -> None:
    stop_all(cloud)
    upgrade(cloud, is_compatible=True)
    for name in cloud.service_names():
        cloud.add(name, cloud.anew(name))
    cloud.wait_for_hosts()
    assert build(cloud.client("conductor")).state == "active"


def test_services_do_not_start_on_schemas_that_need_newer_code(cloud: RunningCloud) -> None:
    stop_all(cloud)
    upgrade(cloud, is_compatible=False)
    # The services of a cell first ask the scheduler for their cell.
    for service in (cloud.anew("scheduler1"), cloud.anew("conductor")):
        with pytest.raises(errors.SchemaTooNew, match="_9999 or newer"):
            service.start()
        service.stop()
