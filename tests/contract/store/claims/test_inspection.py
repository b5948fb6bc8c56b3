"""Test the lists of claims and services that operators read."""

import time

import pytest
from os_traits import MISC_SHARES_VIA_AGGREGATE
from sqlalchemy import select
from support.databases.rows_read import rows_read
from support.databases.statements import statements_of
from support.placement_store.builders import Store
from support.placement_store.move_builders import SMALL

from moorage import ids
from moorage.messages import AuditStore, ListClaims, ListServices, ReportService, SetTraits
from moorage.model.inspection import ServiceReport
from placement_store.claims import list as claim_list
from placement_store.claims.list import claims
from placement_store.schema import allocations, consumers, inventories, resource_providers
from placement_store.upkeep.audit import report


def add_consumers(store: Store, **columns: object) -> None:
    """Add 5,000 consumers with these columns; uuids that are given stand for a new one in each."""
    same = {"project_id": "p", "user_id": "u", "generation": 1, "created_at": 1.0, "updated_at": 1.0, **columns}
    new = [name for name in ("accepted_by", "claim_id") if columns[name] is not None]
    rows = [{"uuid": ids.fresh(), **same, **{name: ids.fresh() for name in new}} for _ in range(5_000)]
    store.database.write(lambda connection: connection.execute(consumers.insert(), rows))
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE consumers")


def test_claims_are_listed_the_oldest_first_with_the_accepting_attempt_and_host(store: Store, host: str) -> None:
    first, second, attempt = ids.fresh(), ids.fresh(), ids.fresh()
    store.put(ids.fresh(), {host: {"VCPU": 1}})
    claim_id = store.claim(first, {host: SMALL}).claim_id
    store.age("consumers", "claimed_at", 100.0)
    store.claim(second, {host: SMALL}, owner=None)
    store.accept(first, claim_id, attempt)

    found = store.listed()

    assert [claim.consumer_uuid for claim in found] == [first, second]
    assert (found[0].claim_id, found[0].owner, found[0].node) == (claim_id, "conductor", "host")
    assert (found[0].accepted_by, found[0].accepted_host) == (attempt, "host")
    assert (found[0].root_provider_uuid, found[0].generation) == (host, 1)
    assert 100 <= found[0].age < 150 > 50 > found[1].age >= 0
    assert [claim.consumer_uuid for claim in store.listed(unaccepted=True)] == [second]
    assert [claim.consumer_uuid for claim in store.listed(older_than=60)] == [first]
    assert store.listed(unaccepted=True, older_than=60) == []
    assert [claim.consumer_uuid for claim in store.listed(consumer_uuids=(second, ids.fresh()))] == [second]


def test_residues_are_listed_on_request_with_their_host(store: Store, host: str) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    store.accept(uuid, claim_id, attempt)
    store.delete(uuid, for_good=True, leave_residue=True)

    assert store.listed() == []
    [residue] = store.listed(residues=True)
    assert (residue.consumer_uuid, residue.consumer_type, residue.claim_id) == (attempt, "RESIDUE", None)
    assert (residue.node, residue.accepted_host, residue.accepted_by) == ("host", "host", attempt)
    assert store.listed(residues=True, older_than=60) == []


def test_residues_are_listed_whatever_type_a_put_gave_them_and_no_other_consumers(store: Store, host: str) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    store.accept(uuid, store.claim(uuid, {host: SMALL}).claim_id, attempt)
    store.delete(uuid, for_good=True, leave_residue=True)
    store.put(attempt, {host: {"VCPU": 1}}, 1, consumer_type="INSTANCE")
    store.put(ids.fresh(), {host: {"VCPU": 1}}, consumer_type="RESIDUE")

    assert [found.consumer_uuid for found in store.listed(residues=True)] == [attempt]


def test_an_audit_names_the_root_providers_of_each_consumers_allocations(store: Store, host: str) -> None:
    pool, uuid = store.provider("pool", DISK_GB=100), ids.fresh()
    store.claim(uuid, {host: SMALL, pool: {"DISK_GB": 5}})

    audit = store.dispatcher.call(AuditStore())

    [holder] = audit.holders
    assert (holder.uuid, holder.allocations) == (uuid, 3)
    assert set(holder.root_provider_uuids) == {host, pool}
    assert (audit.overcommitted, audit.drifted) == ((), ())


def test_an_audit_names_the_roots_of_sharing_providers_and_does_not_take_them_for_hosts_of_a_consumer(
    store: Store, host: str
) -> None:
    other = store.provider("other", VCPU=8)
    pool, emptied = (store.provider(name, parent=other, DISK_GB=100) for name in ("pool", "emptied"))
    for uuid in (pool, emptied):
        store.dispatcher.call(SetTraits(request_id=ids.fresh(), uuid=uuid, traits=(MISC_SHARES_VIA_AGGREGATE,)))
    store.claim(ids.fresh(), {host: SMALL, pool: {"DISK_GB": 5}})

    audit = store.dispatcher.call(AuditStore(amounts=True))

    assert [holder.root_provider_uuids for holder in audit.holders] == [(host,)]
    assert audit.roots == {pool: other, emptied: other}
    assert store.dispatcher.call(AuditStore(amounts=True, after=2**40)).roots == {}


def test_an_audit_in_parts_lists_each_consumer_once_with_all_its_allocations(store: Store, host: str) -> None:
    pool = store.provider("pool", DISK_GB=100)
    uuids = [ids.fresh() for _ in range(5)]
    for uuid in uuids:
        store.claim(uuid, {host: {"VCPU": 1, "MEMORY_MB": 1}, pool: {"DISK_GB": 1}})
    whole = store.dispatcher.call(AuditStore())
    for limit in (1, 2, 5, 6):
        parts = [store.dispatcher.call(AuditStore(limit=limit))]
        while parts[-1].more_after is not None:
            parts.append(store.dispatcher.call(AuditStore(limit=limit, after=parts[-1].more_after)))
        assert [holder for part in parts for holder in part.holders] == list(whole.holders)
        assert all(len(part.holders) <= limit for part in parts)


def test_only_the_first_part_of_an_audit_lists_inventories(store: Store, host: str) -> None:
    store.claim(ids.fresh(), {host: {"VCPU": 2}})
    store.claim(ids.fresh(), {host: {"VCPU": 2}})
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE inventories SET used = 1 WHERE used = 4")
    first = store.dispatcher.call(AuditStore(limit=1))
    assert first.more_after is not None
    second = store.dispatcher.call(AuditStore(limit=1, after=first.more_after))
    assert [finding.allocated for finding in first.drifted] == [4]
    assert second.drifted == ()
    assert len(second.holders) == 1


def test_a_permanent_consumer_is_in_exactly_one_part_while_others_are_created_and_deleted(
    store: Store, host: str
) -> None:
    def come() -> str:
        uuid = ids.fresh()
        store.claim(uuid, {host: {"VCPU": 1}})
        return uuid

    staying, going = [come() for _ in range(3)], [come() for _ in range(3)]
    staying.append(come())
    audited: list[str | None] = []
    listed: list[str] = []
    after: int | None = 0
    claims = store.listed(limit=2)
    while after is not None or len(claims) == 2:
        if after is not None:
            part = store.dispatcher.call(AuditStore(limit=2, after=after))
            audited += [holder.uuid for holder in part.holders]
            after = part.more_after
        listed += [claim.consumer_uuid for claim in claims]
        if going:
            store.delete(going.pop())
            come()
        if claims:
            claims = store.listed(limit=2, after=max(claim.consumer_uuid for claim in claims))
    listed += [claim.consumer_uuid for claim in claims]
    assert [audited.count(uuid) for uuid in staying] == [1] * 4
    assert [listed.count(uuid) for uuid in staying] == [1] * 4


def test_a_stopped_service_is_listed_as_stopped_until_it_reports_again(store: Store) -> None:
    service = ServiceReport(name="a", kind="scheduler", machine="m1", version="1.0")

    def reported(**how: bool) -> bool:
        store.dispatcher.call(ReportService(request_id=ids.fresh(), service=service, **how))
        time.sleep(0.01)
        [state] = store.dispatcher.call(ListServices())
        return state.stopped

    assert [reported(), reported(stopped=True), reported(), reported(stopped=True)] == [False, True, False, True]


def test_a_service_whose_first_report_is_its_stop_is_listed_as_stopped(store: Store) -> None:
    service = ServiceReport(name="b", kind="scheduler", machine="m1", version="1.0")
    store.dispatcher.call(ReportService(request_id=ids.fresh(), service=service, stopped=True))
    assert [state.stopped for state in store.dispatcher.call(ListServices())] == [True]


def test_a_report_of_a_running_service_can_be_read_by_the_previous_release() -> None:
    service = ServiceReport(name="b", kind="scheduler", machine="m1", version="1.0")
    assert ReportService(request_id=ids.fresh(), service=service).lowest_version() == "1.1"
    assert ReportService(request_id=ids.fresh(), service=service, stopped=True).lowest_version() == "1.6"


def test_claims_are_listed_in_parts_ordered_by_consumer(store: Store, host: str) -> None:
    uuids = sorted(ids.fresh() for _ in range(5))
    for uuid in uuids:
        store.claim(uuid, {host: {"VCPU": 1}})
    parts = [store.listed(limit=2), store.listed(limit=2, after=uuids[1]), store.listed(limit=2, after=uuids[3])]
    assert [sorted(claim.consumer_uuid for claim in part) for part in parts] == [uuids[:2], uuids[2:4], uuids[4:]]
    assert store.listed(limit=2, after=uuids[4]) == []
    assert [claim.consumer_uuid for claim in store.listed(unaccepted=True, limit=1, after=uuids[0])] == [uuids[1]]


@pytest.mark.backends("mariadb")
def test_the_few_unaccepted_claims_are_listed_without_reading_all_others(store: Store, host: str) -> None:
    few = sorted(ids.fresh() for _ in range(3))
    for uuid in few:
        store.claim(uuid, {host: {"VCPU": 1}})
    # No host has accepted a consumer without a claim either.
    add_consumers(store, accepted_by=ids.fresh(), claim_id=ids.fresh(), claimed_at=1.0)
    add_consumers(store, accepted_by=None, claim_id=None, claimed_at=None)
    message = ListClaims(unaccepted=True, limit=5_000)
    found, read = rows_read(store.database, lambda connection: claims(connection, message))
    assert sorted(claim.consumer_uuid for claim in found) == few
    assert read < 100


@pytest.mark.backends("mariadb")
def test_the_few_old_claims_are_found_in_an_index_without_reading_the_rows_of_all_others(
    store: Store, host: str
) -> None:
    few = sorted(ids.fresh() for _ in range(3))
    for uuid in few:
        store.claim(uuid, {host: {"VCPU": 1}})
    store.age("consumers", "claimed_at", 100.0)
    add_consumers(store, accepted_by=ids.fresh(), claim_id=ids.fresh(), claimed_at=4e9)
    with statements_of(store.database) as statements:
        assert [claim.consumer_uuid for claim in store.listed(older_than=60, limit=2)] == few[:2]
        assert [claim.consumer_uuid for claim in store.listed(older_than=60, limit=2, after=few[1])] == few[2:]
    searches = [one for one in statements if "FORCE INDEX (ix_consumers_unaccepted)" in one]
    assert (len(searches), len(statements)) == (2, 6)  # with a search, a look-up and a COMMIT for each page
    assert not any("ORDER BY" in one for one in statements)
    with store.database.engine.connect() as connection:
        [plan] = connection.exec_driver_sql("EXPLAIN " + searches[0], {"param_1": 60.0, "param_2": 10}).all()
    assert "Using index" in plan.Extra


def test_old_claims_are_listed_in_the_same_pages_whether_they_are_few_or_many(
    store: Store, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sorted(ids.fresh() for _ in range(5))
    residue, new = old[2], ids.fresh()
    for uuid in old:
        if uuid == residue:
            store.accept(new, store.claim(new, {host: {"VCPU": 1}}).claim_id, residue)
            store.delete(new, for_good=True, leave_residue=True)
        else:
            store.claim(uuid, {host: {"VCPU": 1}})
    store.age("consumers", "claimed_at", 100.0)
    store.age("consumers", "created_at", 100.0)
    store.claim(ids.fresh(), {host: {"VCPU": 1}})

    def pages(**wanted: bool) -> list[list[str]]:
        found = [store.listed(older_than=60, limit=2, after=after, **wanted) for after in (None, old[1], old[3])]
        return [sorted(claim.consumer_uuid for claim in page) for page in found]

    claims = [uuid for uuid in old if uuid != residue]
    for few in (10, 3):
        monkeypatch.setattr(claim_list, "_FEW", few)
        assert pages() == pages(unaccepted=True) == [claims[:2], claims[2:], claims[3:]]
        assert pages(residues=True) == pages(residues=True, unaccepted=True) == [old[:2], old[2:4], old[4:]]


@pytest.mark.backends("mariadb")
def test_the_audit_reads_all_allocations_of_the_store_for_their_sums_alone(store: Store, host: str) -> None:
    # Another statement over all allocations would take longer than a statement may, in a cloud with a million of them.
    provider_id = store.scalar(select(resource_providers.c.id).where(resource_providers.c.uuid == host))
    class_id = store.scalar(
        select(inventories.c.resource_class_id).where(inventories.c.resource_provider_id == provider_id)
    )
    rows = [
        {"consumer_id": number, "resource_provider_id": provider_id, "resource_class_id": class_id, "used": 1}
        for number in range(1, 10_001)
    ]
    store.database.write(lambda connection: connection.execute(allocations.insert(), rows))
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE allocations, inventories")
    audit, read = rows_read(store.database, lambda connection: report(connection, AuditStore(limit=1)))
    assert [finding.allocated for finding in audit.drifted] == [len(rows)]
    assert read < 2.5 * len(rows)


def test_services_are_told_apart_by_kind_name_and_cell(store: Store) -> None:
    cell = ids.fresh()

    def report(version: str, **more: str) -> None:
        described = {"name": "a", "kind": "scheduler", "machine": "m1"} | more
        store.dispatcher.call(
            ReportService(request_id=ids.fresh(), service=ServiceReport(version=version, **described))
        )

    report("1.0")
    report("1.0", kind="cell conductor", cell_uuid=cell)
    store.age("services", "first_heard_at", 50.0)
    store.age("services", "heard_at", 50.0)
    report("1.1", machine="m2")
    time.sleep(0.01)

    found = store.dispatcher.call(ListServices())

    assert [(s.service.kind, s.service.cell_uuid) for s in found] == [("cell conductor", cell), ("scheduler", None)]
    assert (found[1].service.version, found[1].service.machine) == ("1.1", "m2")
    assert found[0].heard >= 50 > 25 > found[1].heard > 0
    assert all(state.running >= 50 for state in found)
