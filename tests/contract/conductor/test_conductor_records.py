"""Test the conductors' records, on SQLite and on MariaDB: operations with leases, instances, hosts."""

import threading
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from sqlalchemy import Connection, update
from support.conductor.record_builders import SPEC, advance, begin, selected

from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.records.instances import CellRecords, NewInstance
from conductor.engine.operation_list import list_operations
from conductor.engine.operations import Operations
from conductor.engine.steps import (
    BUILD,
    DELETE,
    Backoff,
    Ended,
    Next,
    NoPayload,
    Operation,
    Retry,
    Superseded,
    Wait,
)
from conductor.schema import cell_hosts, cell_operations, conductor_operations
from conductor.super.records import instances as super_records
from conductor.super.records.instances import NewInstances
from conductor.super.steps.build import SelectStep
from moorage import errors, ids
from moorage.config import options
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.messages import InstanceBuild, ReportHostsInCell
from moorage.model import HostReport

QUICK = Backoff(first=0.01, longest=0.05)


def of(database: Database, owner: str, cell: str | None = None) -> Operations:
    if cell is None:
        return Operations(database, conductor_operations, owner, {}, QUICK)
    return Operations(database, cell_operations, owner, {"cell_uuid": cell}, QUICK)


def expire_lease(database: Database, operation: Operation) -> None:
    table = conductor_operations
    database.write(
        lambda connection: connection.execute(
            table.update().where(table.c.uuid == operation.uuid).values(lease_until=1.0)
        )
    )


# --- Operations -------------------------------------------------------------------------------------------------------


def test_an_operation_advances_from_step_to_step_until_it_ends(database: Database) -> None:
    operations = of(database, "me")
    first = begin(database, operations)

    payload = SelectStep(number=2, instance_uuids=(ids.fresh(),))
    second = advance(operations, first, lambda _connection: Next("two", payload))

    assert second is not None
    assert (second.step, second.step_number, second.read(SelectStep)) == ("two", 2, payload)
    assert advance(operations, second, lambda _connection: Ended()) is None
    assert list(operations.due(10)) == []
    with pytest.raises(Superseded):
        advance(operations, second, lambda _connection: Ended())


def test_a_step_that_is_tried_again_keeps_its_ids_and_waits_for_the_back_off(database: Database) -> None:
    operations = of(database, "me")
    first = begin(database, operations)

    again = advance(operations, first, lambda _connection: Retry("nobody answers"))

    assert again is not None
    assert (again.step_number, again.tries, again.payload) == (1, 1, first.payload)
    assert again.derived("one") == first.derived("one")
    assert 0 < again.delay <= QUICK.longest
    assert [Backoff().seconds(tries) <= limit for tries, limit in ((1, 1), (2, 3), (3, 9), (9, 30))] == [True] * 4


def test_the_writes_of_a_superseded_step_are_rolled_back(database: Database) -> None:
    operations = of(database, "me")
    first = begin(database, operations)
    advance(operations, first, lambda _connection: Next("two", NoPayload()))

    def record(connection: Connection) -> Ended:
        operations.begin(connection, [Operation.new("req", ids.fresh(), DELETE, "other", "one", NoPayload())])
        return Ended()

    with pytest.raises(Superseded):
        advance(operations, first, record)
    assert database.read(lambda connection: operations.lock_one_pending(connection, "other", DELETE)) is None


def test_an_operation_is_taken_over_only_after_its_lease_has_expired(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)
    assert list(others.due(10)) == []
    assert others.take(operation.uuid) is None
    assert list(mine.due(10)) == [], "the worker is about to get the operation"

    expire_lease(database, operation)
    taken = others.take(operation.uuid)

    assert taken is not None
    assert taken.resumed
    with pytest.raises(Superseded):
        advance(mine, operation, lambda _connection: Ended())
    assert advance(others, taken, lambda _connection: Ended()) is None


def test_of_several_conductors_one_takes_an_operation(database: Database) -> None:
    operation = begin(database, of(database, "dead"))
    expire_lease(database, operation)
    taken: list[Operation | None] = []
    threads = [
        threading.Thread(target=lambda name=name: taken.append(of(database, name).take(operation.uuid)))
        for name in "abcdefgh"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len([one for one in taken if one is not None]) == 1


def test_a_renewed_lease_is_not_taken_over_and_a_lost_one_cannot_be_renewed(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)
    expire_lease(database, operation)
    mine.renew([operation.uuid])
    assert others.take(operation.uuid) is None

    expire_lease(database, operation)
    taken = others.take(operation.uuid)
    mine.renew([operation.uuid])

    assert taken is not None
    expire_lease(database, operation)
    mine.renew([operation.uuid])
    again = of(database, "third").take(operation.uuid)
    assert again is not None
    assert advance(others, again, lambda _connection: Ended()) is None


def test_a_conductor_cannot_release_a_lease_that_another_has_taken(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)
    expire_lease(database, operation)
    assert others.take(operation.uuid) is not None

    mine.release(operation)

    assert of(database, "third").take(operation.uuid) is None


def test_the_step_after_that_of_an_operation_taken_over_is_not_a_repeated_one(database: Database) -> None:
    others = of(database, "other")
    operation = begin(database, of(database, "me"))
    expire_lease(database, operation)
    taken = others.take(operation.uuid)
    assert taken is not None
    assert taken.is_repeated

    following = advance(others, taken, lambda _connection: Next("two", NoPayload()))

    assert following is not None
    assert not following.is_repeated


def test_a_conductor_that_was_suspended_takes_its_operation_again_if_no_other_has_taken_it(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    kept, lost = begin(database, mine), begin(database, mine, "t")
    assert not mine.is_stale(kept)
    for operation in (kept, lost):
        expire_lease(database, operation)
    assert others.take(lost.uuid) is not None

    again = mine.take_again(kept)

    assert again is not None
    assert (again.step, again.lease_number, again.resumed) == ("one", 2, False)
    assert mine.take_again(lost) is None
    with pytest.raises(Superseded):
        advance(mine, kept, lambda _connection: Ended())
    advance(mine, again, lambda _connection: Ended())


def test_a_wait_ends_after_its_time(database: Database) -> None:
    operations = of(database, "me")
    operation = begin(database, operations)
    assert advance(operations, operation, lambda _connection: Wait("two", NoPayload(), seconds=60.0)) is None
    assert list(operations.due(10)) == []
    assert operations.take(operation.uuid) is None

    due_at = conductor_operations.c.due_at
    database.write(lambda connection: connection.execute(update(conductor_operations).values(due_at=due_at - 61.0)))

    assert list(operations.due(10)) == [operation.uuid]
    taken = of(database, "other").take(operation.uuid)
    assert taken is not None
    assert taken.step == "two"


def test_a_conductor_that_stops_releases_its_operations(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)

    mine.release_all()

    assert list(others.due(10)) == [operation.uuid]


@pytest.mark.parametrize("other", ["me-too", "me/too"])
def test_a_restarted_conductor_continues_its_own_operations_and_no_others(database: Database, other: str) -> None:
    left, others = begin(database, of(database, "me")), begin(database, of(database, other))
    again = of(database, "me")
    assert list(again.due(10)) == []

    again.release_former()

    assert list(again.due(10)) == [left.uuid]
    assert again.take(others.uuid) is None
    listed = database.read(lambda connection: list_operations(connection, conductor_operations, {}))
    assert {one.uuid: one.lease_owner for one in listed} == {left.uuid: None, others.uuid: other}


def test_an_operation_whose_commit_was_not_confirmed_is_found_by_its_own_conductor(database: Database) -> None:
    mine = of(database, "me")
    operation = begin(database, mine)
    table = conductor_operations
    database.write(lambda connection: connection.execute(table.update().values(updated_at=1.0)))

    assert list(mine.due(10)) == [operation.uuid]
    assert list(of(database, "other").due(10)) == []


def test_a_waiting_operation_has_no_owner_until_a_message_redirects_it(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)
    assert advance(mine, operation, lambda _connection: Wait("wait", NoPayload())) is None
    assert list(mine.due(10)) == []

    def redirect(connection: Connection) -> Operation | None:
        waiting = others.lock_one_pending(connection, "s", BUILD)
        assert waiting is not None
        return others.redirect(connection, waiting, Next("two", NoPayload()))

    moved = database.write(redirect)

    assert moved is not None
    assert (moved.step, moved.lease_number) == ("two", 2)
    assert mine.take(operation.uuid) is None


def test_a_message_that_ends_an_operation_supersedes_the_step_under_way(database: Database) -> None:
    operations = of(database, "me")
    operation = begin(database, operations)

    def end(connection: Connection) -> None:
        found = operations.lock_one_pending(connection, "s", BUILD)
        assert found is not None
        operations.redirect(connection, found, Ended("deleted"))

    database.write(end)

    with pytest.raises(Superseded):
        advance(operations, operation, lambda _connection: Next("two", NoPayload()))


def test_cells_of_one_database_do_not_see_each_others_operations(database: Database) -> None:
    one, two = of(database, "me", ids.fresh()), of(database, "me", ids.fresh())
    operation = begin(database, one)

    one.release_all()

    assert list(two.due(10)) == []
    assert two.take(operation.uuid) is None
    assert database.read(lambda connection: two.lock_one_pending(connection, "s", BUILD)) is None
    assert list(one.due(10)) == [operation.uuid]


# --- Instances --------------------------------------------------------------------------------------------------------


def test_an_instance_is_recorded_once(database: Database) -> None:
    uuid = ids.fresh()
    add: Callable[[Connection], None] = lambda connection: super_records.add(  # noqa: E731
        connection, [NewInstances([uuid], SPEC, ids.fresh(), "req")]
    )
    database.write(add)
    with pytest.raises(errors.AlreadyExists, match=uuid):
        database.write(add)
    with pytest.raises(errors.AlreadyExists, match=uuid):
        database.write(
            lambda connection: super_records.add(
                connection, [NewInstances([ids.fresh(), uuid], SPEC, ids.fresh(), "another")]
            )
        )
    assert database.read(lambda connection: super_records.read(connection, uuid)).flavor == SPEC.flavor


def test_builds_for_a_cell_stay_the_same_until_they_are_handed_over(database: Database) -> None:
    uuids, operation = [ids.fresh() for _ in range(3)], ids.fresh()
    cells = [ids.fresh(), ids.fresh()]

    chosen = {uuid: [selected(cells[number % 2])] for number, uuid in enumerate(uuids)}

    def work(connection: Connection) -> None:
        super_records.add(connection, [NewInstances(uuids, SPEC, operation, "req")])
        super_records.select_for(connection, chosen)

    database.write(work)
    before = database.read(lambda connection: super_records.to_hand_over(connection, operation))
    assert msgspec.json.encode(before) == msgspec.json.encode(super_records.builds_of(SPEC, chosen)), (
        "a repeated step reads the same builds from the records"
    )
    database.write(lambda connection: super_records.set_state(connection, [uuids[0]], "deleting"))
    assert database.read(lambda connection: super_records.to_hand_over(connection, operation)) == before
    assert [build.instance_uuid for build in before[cells[0]]] == [uuids[0], uuids[2]]

    database.write(lambda connection: super_records.handed_over(connection, [operation], cells[0]))

    assert set(database.read(lambda connection: super_records.to_hand_over(connection, operation))) == {cells[1]}
    assert database.read(lambda connection: super_records.read(connection, uuids[0])).state == "deleting"


def test_two_cells_of_one_database_may_have_records_of_one_instance(database: Database) -> None:
    uuid = ids.fresh()
    for cell in (ids.fresh(), ids.fresh()):
        records = CellRecords(cell)
        build = InstanceBuild(instance_uuid=uuid, request_spec=SPEC, selections=(selected(cell),))
        new = NewInstance(ids.fresh(), build, "req")
        database.write(partial(records.add, new=[new]))
        with pytest.raises(errors.RequestInProgress):
            database.write(partial(records.add_deleting, uuid=uuid, request_id="req"))
        [shown] = database.read(partial(records.show, uuids=[uuid]))
        assert (shown.cell_uuid, shown.host, len(shown.attempts)) == (cell, "a", 1)


# --- Hosts ------------------------------------------------------------------------------------------------------------


def test_no_host_is_silent_for_a_conductor_that_has_just_started(database: Database) -> None:
    cell = ids.fresh()
    host = HostReport(service_host="h1", nodename="h1", compute_node_uuid=ids.fresh(), agent="agent")
    hosts = CellHosts(options.new(), database, cell)
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(host,)))
    an_hour_ago = update(cell_hosts).where(cell_hosts.c.cell_uuid == cell).values(last_seen=now() - 3600)
    database.write(lambda connection: connection.execute(an_hour_ago))

    assert CellHosts(options.new(), database, cell).why_silent("h1") is None


def test_a_host_that_has_died_while_no_scheduler_answered_is_not_forwarded_as_alive(database: Database) -> None:
    cell = ids.fresh()
    hosts = CellHosts(options.new(), database, cell)
    reports = tuple(
        HostReport(service_host=name, nodename=name, compute_node_uuid=ids.fresh(), agent="agent")
        for name in ("dead", "alive")
    )
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=reports))
    _seen, clock = hosts.forwarded.seen_since(None, 60.0)
    of_dead = (cell_hosts.c.cell_uuid == cell, cell_hosts.c.service_host == "dead")
    database.write(
        lambda connection: connection.execute(update(cell_hosts).where(*of_dead).values(last_seen=now() - 3600))
    )

    assert hosts.forwarded.seen_since(clock - 7200.0, 60.0)[0] == ["alive"]


def test_thousands_of_hosts_are_described_reported_and_found_silent(database: Database) -> None:
    cell = ids.fresh()
    hosts = CellHosts(options.new(), database, cell)
    impatient = CellHosts(options.new({"scheduler": {"host_down_after": 0.1}}), database, cell)
    reports = tuple(
        HostReport(service_host=f"h{n}", nodename=f"h{n}", compute_node_uuid=ids.derived("n", n), agent="agent")
        for n in range(2500)
    )
    names = tuple(host.service_host for host in reports)

    def report(described: tuple[HostReport, ...] = (), alive: tuple[str, ...] = ()) -> None:
        hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=described, alive=alive))

    report(described=reports)
    found = hosts.forwarded.unacknowledged(5000)
    assert len(found) == 2500
    hosts.forwarded.acknowledge(found)
    assert hosts.forwarded.unacknowledged(5000) == []
    report(described=reports, alive=names)
    assert hosts.forwarded.unacknowledged(5000) == []
    seen, clock = hosts.forwarded.seen_since(None, 60.0)
    assert len(seen) == 2500
    threading.Event().wait(0.2)
    assert hosts.forwarded.seen_since(clock + 0.1, 60.0)[0] == []
    assert "not reported" in str(impatient.why_silent("h7"))
    assert hosts.why_silent("h7") is None
    assert hosts.why_silent("unheard-of") is None
    assert hosts.why_returning("unheard-of") is None
    again = ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=("h7",))
    assert impatient.report_hosts(again).returning == ("h7",)
    assert "not yet worked through" in str(hosts.why_returning("h7")), "the host was silent for too long"
    assert hosts.forwarded.seen_since(clock + 0.1, 60.0)[0] == []
    assert hosts.returned("agent", ["h7"], {"h7": 1}) == ["h7"]
    assert (hosts.why_silent("h7"), hosts.why_returning("h7")) == (None, None)
    assert hosts.forwarded.seen_since(clock + 0.1, 60.0)[0] == ["h7"]
