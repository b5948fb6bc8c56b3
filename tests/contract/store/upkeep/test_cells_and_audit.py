"""Test the cells of the cloud, and the findings of audits."""

import pytest
from support.placement_store.builders import Store
from support.placement_store.move_builders import SMALL

from harness.audit import judge
from moorage import errors, ids
from moorage.messages import ListCells, LocateCell
from moorage.model import Cell
from placement_store import cells


def test_cells_are_created_once_and_listed_by_name(store: Store) -> None:
    uuids = [ids.fresh(), ids.fresh()]
    url = "rabbit://user:password@127.0.0.1/cell"
    for _ in range(2):
        cells.create(store.database, name="b", uuid=uuids[0])
    cells.create(store.database, name="a", uuid=uuids[1], transport_url=url, database_connection="sqlite:///x")
    with pytest.raises(errors.AlreadyExists):
        cells.create(store.database, name="a", uuid=ids.fresh())

    assert store.dispatcher.call(ListCells()) == [
        Cell(name="a", uuid=uuids[1], transport_url=url, database_connection="sqlite:///x"),
        Cell(name="b", uuid=uuids[0]),
    ]
    assert store.database.read(lambda connection: cells.by_uuid(connection, uuids[0])).name == "b"
    with pytest.raises(errors.CellNotFound):
        store.database.read(lambda connection: cells.by_uuid(connection, ids.fresh()))


def test_the_refusal_of_a_cell_names_the_name_or_uuid_that_exists_already(store: Store) -> None:
    uuid = ids.fresh()
    cells.create(store.database, name="a", uuid=uuid)
    for name, of, taken in (("a", ids.fresh(), "a"), ("b", uuid, uuid)):
        with pytest.raises(errors.AlreadyExists) as caught:
            cells.create(store.database, name=name, uuid=of)
        assert caught.value.name == taken


def test_locating_a_cell_returns_its_bus_and_on_request_its_database(store: Store) -> None:
    uuid, url = ids.fresh(), "rabbit://user:password@127.0.0.1/cell"
    cells.create(store.database, name="a", uuid=uuid, transport_url=url, database_connection="sqlite:///x")
    without = Cell(uuid=uuid, name="a", transport_url=url)

    assert store.dispatcher.call(LocateCell(name="a")) == without
    assert store.dispatcher.call(ListCells(without_databases=True)) == [without]
    assert store.dispatcher.call(LocateCell(name="a", with_database=True)).database_connection == "sqlite:///x"
    with pytest.raises(errors.CellNotFound):
        store.dispatcher.call(LocateCell(name="b"))


def test_an_audit_lists_consumers_drifted_and_over_committed_inventories(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    assert store.is_sound()
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE inventories SET used = 5 WHERE resource_class_id = 0")
        connection.exec_driver_sql("UPDATE inventories SET total = 1024 WHERE resource_class_id = 1")

    found = store.audit()

    assert [(f.provider_uuid, f.resource_class, f.used, f.allocated) for f in found.drifted] == [(host, "VCPU", 5, 2)]
    assert [(f.resource_class, f.capacity, f.allocated) for f in found.overcommitted] == [("MEMORY_MB", 1024.0, 2048)]
    assert [(h.uuid, h.consumer_type, h.claim_id, h.allocations) for h in found.holders] == [
        (uuid, "INSTANCE", claim_id, 2)
    ]


def test_an_audit_finds_allocations_without_a_consumer_or_an_inventory(store: Store, host: str) -> None:
    store.claim(ids.fresh(), {host: SMALL})
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("DELETE FROM consumers")
        connection.exec_driver_sql("DELETE FROM inventories WHERE resource_class_id = 0")

    found = store.audit()

    assert [(holder.uuid, holder.allocations) for holder in found.holders] == [(None, 2)]
    assert [(f.resource_class, f.capacity, f.allocated) for f in found.overcommitted] == [("VCPU", 0.0, 2)]


def test_an_audit_finds_amounts_used_without_any_allocation(store: Store, host: str) -> None:
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE inventories SET used = 1")

    assert [(finding.used, finding.allocated) for finding in store.audit().drifted] == [(1, 0)] * 2


def test_a_claim_is_refused_if_more_is_used_than_allocated(store: Store, host: str) -> None:
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE inventories SET used = 8 WHERE resource_class_id = 0")
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.claim(ids.fresh(), {host: SMALL})
    assert [r["reason"] for r in caught.value.refusals if r["resource_class"] == "VCPU"] == [
        "what is used disagrees with the allocations"
    ]


def test_the_verdict_counts_allocations_of_consumers_that_should_not_exist_as_leaked(store: Store, host: str) -> None:
    living, dead, written = ids.fresh(), ids.fresh(), ids.fresh()
    for uuid in (living, dead):
        store.claim(uuid, {host: SMALL})
    store.put(written, {host: {"VCPU": 1}})

    assert judge(store.database, [living, dead, written]).clean
    verdict = judge(store.database, [living])
    assert (verdict.overcommitted, verdict.leaked, verdict.clean) == (0, 3, False)
    assert str(verdict) == "over-committed providers: 0; leaked allocations: 3"


def test_the_verdict_names_over_committed_and_drifted_inventories_and_orphaned_allocations(
    store: Store, host: str
) -> None:
    living = ids.fresh()
    store.claim(living, {host: SMALL})
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE inventories SET used = 5, total = 1 WHERE resource_class_id = 0")

    verdict = judge(store.database, [living])
    assert (verdict.overcommitted, verdict.leaked) == (1, 0)
    assert f"; drifted {host}: VCPU: " in str(verdict)
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("DELETE FROM consumers")
    assert judge(store.database, [living]).leaked == 2
