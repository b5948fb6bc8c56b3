"""The conductors' records, on SQLite and on MariaDB: operations and their leases, instances, hosts."""

import threading
import time
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from sqlalchemy import Connection, update
from support.conductor.record_builders import SPEC, begin, selected

from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.records.instances import CellRecords, NewInstance
from conductor.engine.bulkheads import Bulkheads, Postponed
from conductor.engine.operations import Operations
from conductor.engine.steps import (
    BUILD,
    DELETE,
    Backoff,
    Ended,
    NewOperation,
    Next,
    NoPayload,
    Operation,
    Retry,
    Superseded,
    Wait,
)
from conductor.engine.worker import Worker
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
BULKHEADS = Bulkheads("host", 1, QUICK, (errors.NoReply,), 1.0, postpones=True)


def of(database: Database, owner: str, cell: str | None = None) -> Operations:
    if cell is None:
        return Operations(database, conductor_operations, owner, {}, QUICK)
    return Operations(database, cell_operations, owner, {"cell_uuid": cell}, QUICK)


def run_out(database: Database, operation: Operation) -> None:
    table = conductor_operations
    database.write(
        lambda connection: connection.execute(
            table.update().where(table.c.uuid == operation.uuid).values(lease_until=1.0)
        )
    )


# --- Operations -------------------------------------------------------------------------------------------------------


def test_an_operation_goes_from_step_to_step_and_ends(database: Database) -> None:
    operations = of(database, "me")
    first = begin(database, operations)

    payload = SelectStep(number=2, instance_uuids=(ids.fresh(),))
    second = operations.advance(first, lambda _connection: Next("two", payload))

    assert second is not None
    assert (second.step, second.step_number, second.read(SelectStep)) == ("two", 2, payload)
    assert operations.advance(second, lambda _connection: Ended()) is None
    assert operations.due((), 10) == []
    with pytest.raises(Superseded):
        operations.advance(second, lambda _connection: Ended())


def test_a_step_that_is_tried_again_keeps_its_ids_and_waits_longer_each_time(database: Database) -> None:
    operations = of(database, "me")
    first = begin(database, operations)

    again = operations.advance(first, lambda _connection: Retry("nobody answers"))

    assert again is not None
    assert (again.step_number, again.tries, again.payload) == (1, 1, first.payload)
    assert again.derived("one") == first.derived("one")
    assert 0 < again.delay <= QUICK.longest
    assert [Backoff().seconds(tries) <= limit for tries, limit in ((1, 1), (2, 3), (3, 9), (9, 30))] == [True] * 4


def test_what_a_superseded_step_has_written_is_rolled_back(database: Database) -> None:
    operations = of(database, "me")
    first = begin(database, operations)
    operations.advance(first, lambda _connection: Next("two", NoPayload()))

    def record(connection: Connection) -> Ended:
        operations.begin(connection, [NewOperation(ids.fresh(), DELETE, "other", "one", NoPayload())], "req")
        return Ended()

    with pytest.raises(Superseded):
        operations.advance(first, record)
    assert database.read(lambda connection: operations.pending(connection, "other", DELETE)) is None


def test_what_another_conductor_has_is_left_alone_until_its_lease_has_run_out(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)
    assert others.due((), 10) == []
    assert others.take(operation.uuid) is None
    assert mine.due((), 10) == [], "it is on its way to the worker"

    run_out(database, operation)
    taken = others.take(operation.uuid)

    assert taken is not None
    assert taken.resumed
    with pytest.raises(Superseded):
        mine.advance(operation, lambda _connection: Ended())
    assert others.advance(taken, lambda _connection: Ended()) is None


def test_of_many_conductors_one_takes_an_operation(database: Database) -> None:
    operation = begin(database, of(database, "dead"))
    run_out(database, operation)
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


def test_a_lease_that_is_renewed_is_not_taken_and_a_lost_one_does_not_come_back(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)
    run_out(database, operation)
    mine.renew([operation.uuid])
    assert others.take(operation.uuid) is None

    run_out(database, operation)
    taken = others.take(operation.uuid)
    mine.renew([operation.uuid])

    assert taken is not None
    assert others.advance(taken, lambda _connection: Ended()) is None


def test_before_a_step_a_conductor_that_was_stopped_finds_out_whether_it_still_has_it(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    kept, lost = begin(database, mine), begin(database, mine, "t")
    assert not mine.is_stale(kept)
    for operation in (kept, lost):
        run_out(database, operation)
    assert others.take(lost.uuid) is not None

    again = mine.take_again(kept)

    assert again is not None
    assert (again.step, again.lease_number, again.resumed) == ("one", 2, False)
    assert mine.take_again(lost) is None
    with pytest.raises(Superseded):
        mine.advance(kept, lambda _connection: Ended())
    mine.advance(again, lambda _connection: Ended())


def test_a_step_that_takes_longer_than_the_lease_is_not_taken_over(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        begun.set()
        assert go_on.wait(20)
        return lambda _connection: Ended()

    mine = Operations(database, conductor_operations, "me", {}, QUICK, lease_seconds=1.0)
    others = of(database, "other")
    worker = Worker(mine, 1, "test", BULKHEADS)
    worker.start({(BUILD, "one"): one})
    worker.take_up(begin(database, mine))
    try:
        assert begun.wait(10)
        threading.Event().wait(2.5)
        assert others.due((), 10) == []
    finally:
        go_on.set()
        worker.stop()
    assert database.read(lambda connection: mine.pending(connection, "s", BUILD)) is None


def test_a_wait_ends_by_itself_when_its_time_is_over(database: Database) -> None:
    operations = of(database, "me")
    operation = begin(database, operations)
    assert operations.advance(operation, lambda _connection: Wait("two", NoPayload(), seconds=0.3)) is None
    assert operations.due((), 10) == []
    assert operations.take(operation.uuid) is None

    threading.Event().wait(0.4)

    assert operations.due((), 10) == [operation.uuid]
    taken = of(database, "other").take(operation.uuid)
    assert taken is not None
    assert taken.step == "two"


def test_a_conductor_that_stops_gives_back_what_it_has(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)

    mine.release_all()

    assert others.due((), 10) == [operation.uuid]


def test_a_conductor_that_is_started_again_goes_on_with_what_its_last_life_has_left_and_nobody_elses(
    database: Database,
) -> None:
    left, others = begin(database, of(database, "me")), begin(database, of(database, "me-too"))
    again = of(database, "me")
    assert again.due((), 10) == []

    again.release_former()

    assert again.due((), 10) == [left.uuid]
    assert again.take(others.uuid) is None


def test_what_a_lost_connection_has_hidden_is_found_again_by_its_own_conductor(database: Database) -> None:
    mine = of(database, "me")
    operation = begin(database, mine)
    table = conductor_operations
    database.write(lambda connection: connection.execute(table.update().values(updated_at=1.0)))

    assert mine.due({operation.uuid}, 10) == []
    assert mine.due((), 10) == [operation.uuid]
    assert of(database, "other").due((), 10) == []


def test_an_operation_that_waits_is_nobodys_until_a_message_moves_it(database: Database) -> None:
    mine, others = of(database, "me"), of(database, "other")
    operation = begin(database, mine)
    assert mine.advance(operation, lambda _connection: Wait("wait", NoPayload())) is None
    assert mine.due((), 10) == []

    def redirect(connection: Connection) -> Operation | None:
        waiting = others.pending(connection, "s", BUILD)
        assert waiting is not None
        return others.redirect(connection, waiting, Next("two", NoPayload()))

    moved = database.write(redirect)

    assert moved is not None
    assert (moved.step, moved.lease_number) == ("two", 2)
    assert mine.take(operation.uuid) is None


def test_a_message_supersedes_the_step_under_way(database: Database) -> None:
    operations = of(database, "me")
    operation = begin(database, operations)

    def end(connection: Connection) -> None:
        found = operations.pending(connection, "s", BUILD)
        assert found is not None
        operations.redirect(connection, found, Ended("deleted"))

    database.write(end)

    with pytest.raises(Superseded):
        operations.advance(operation, lambda _connection: Next("two", NoPayload()))


def test_cells_of_one_database_do_not_see_each_others_operations(database: Database) -> None:
    one, two = of(database, "me", ids.fresh()), of(database, "me", ids.fresh())
    operation = begin(database, one)

    one.release_all()

    assert two.due((), 10) == []
    assert two.take(operation.uuid) is None
    assert database.read(lambda connection: two.pending(connection, "s", BUILD)) is None
    assert one.due((), 10) == [operation.uuid]


# --- The worker -------------------------------------------------------------------------------------------------------


def test_the_worker_repeats_a_step_that_raises_and_takes_up_what_was_left(database: Database) -> None:
    tries: list[bool] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Next]:
        tries.append(operation.resumed)
        if len(tries) == 1:
            raise errors.BusUnavailable(reason="it is away")
        if len(tries) == 2:
            raise ValueError("ours")
        return lambda _connection: Next("two", NoPayload())

    def two(operation: Operation) -> Callable[[Connection], Ended]:
        ended.set()
        return lambda _connection: Ended()

    operations = of(database, "me")
    begin(database, operations)
    worker = Worker(operations, 2, "test", BULKHEADS)
    worker.start({(BUILD, "one"): one, (BUILD, "two"): two})
    try:
        assert ended.wait(10)
    finally:
        worker.stop()

    assert tries == [True, True, True], "found in the records, a step may have been done before, also when repeated"
    assert operations.due((), 10) == []


# --- Instances --------------------------------------------------------------------------------------------------------


def test_a_step_is_given_what_the_one_before_had_in_hand_and_reads_the_records_when_it_is_repeated(
    database: Database,
) -> None:
    carried: list[tuple[str, object]] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Next]:
        carried.append(("one", operation.carried_as(str)))
        return lambda _connection: Next("two", NoPayload(), carried="from one")

    def two(operation: Operation) -> Callable[[Connection], Ended]:
        carried.append(("two", operation.carried_as(str)))
        if len(carried) == 2:
            raise errors.BusUnavailable(reason="it is away")
        ended.set()
        return lambda _connection: Ended()

    operations = of(database, "me")
    new = NewOperation(ids.fresh(), BUILD, "s", "one", NoPayload(), "from the order")
    worker = Worker(operations, 1, "test", BULKHEADS)
    worker.start({(BUILD, "one"): one, (BUILD, "two"): two})
    worker.take_up(*database.write(lambda connection: operations.begin(connection, [new], "req")))
    try:
        assert ended.wait(10)
    finally:
        worker.stop()

    assert carried == [("one", "from the order"), ("two", "from one"), ("two", None)]


@pytest.mark.parametrize(("seconds", "kept"), [(5.0, "from the order"), (0.0, None)])
def test_a_step_that_waits_for_room_keeps_what_is_carried_to_it_for_a_short_time(
    database: Database, monkeypatch: pytest.MonkeyPatch, seconds: float, kept: str | None
) -> None:
    monkeypatch.setattr("conductor.engine.worker._CARRIED_SECONDS", seconds)
    carried: list[object] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        carried.append(operation.carried_as(str))
        if len(carried) == 1:
            raise Postponed(lambda wake: wake(None))
        ended.set()
        return lambda _connection: Ended()

    operations = of(database, "me")
    new = NewOperation(ids.fresh(), BUILD, "s", "one", NoPayload(), "from the order")
    worker = Worker(operations, 1, "test", BULKHEADS)
    worker.start({(BUILD, "one"): one})
    worker.take_up(*database.write(lambda connection: operations.begin(connection, [new], "req")))
    try:
        assert ended.wait(10)
    finally:
        worker.stop()

    assert carried == ["from the order", kept]


def test_a_step_waits_for_room_once_whatever_comes_after_it(database: Database) -> None:
    all_of_them = Bulkheads("host", 1, QUICK, (errors.NoReply,), 60.0, postpones=True)
    begun, ended = Counter[str](), threading.Semaphore(0)

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        begun[operation.uuid] += 1
        with all_of_them.admit("a", "a", lambda: None):
            time.sleep(0.01)  # long enough for the other thread to begin one that finds no room
        ended.release()
        return lambda _connection: Ended()

    operations = of(database, "me")
    new = [NewOperation(ids.fresh(), BUILD, f"s{number}", "one", NoPayload()) for number in range(12)]
    worker = Worker(operations, 2, "test", all_of_them)
    worker.take_up(*database.write(lambda connection: operations.begin(connection, new, "req")))
    worker.start({(BUILD, "one"): one})
    try:
        for _ in new:
            assert ended.acquire(timeout=20)
    finally:
        worker.stop()

    assert len(begun) == 12
    assert max(begun.values()) <= 2, begun


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


def test_what_is_to_be_handed_over_stays_the_same_until_it_is(database: Database) -> None:
    uuids, operation = [ids.fresh() for _ in range(3)], ids.fresh()
    cells = [ids.fresh(), ids.fresh()]

    chosen = {uuid: [selected(cells[number % 2])] for number, uuid in enumerate(uuids)}

    def work(connection: Connection) -> None:
        super_records.add(connection, [NewInstances(uuids, SPEC, operation, "req")])
        super_records.select_for(connection, chosen)

    database.write(work)
    before = database.read(lambda connection: super_records.to_hand_over(connection, operation))
    assert msgspec.json.encode(before) == msgspec.json.encode(super_records.builds_of(SPEC, chosen)), (
        "a step that is repeated reads from the records what it was given at first"
    )
    database.write(lambda connection: super_records.set_state(connection, [uuids[0]], "deleting"))
    assert database.read(lambda connection: super_records.to_hand_over(connection, operation)) == before
    assert [build.instance_uuid for build in before[cells[0]]] == [uuids[0], uuids[2]]

    database.write(lambda connection: super_records.handed_over(connection, [operation], cells[0]))

    assert set(database.read(lambda connection: super_records.to_hand_over(connection, operation))) == {cells[1]}
    assert database.read(lambda connection: super_records.read(connection, uuids[0])).state == "deleting"


def test_the_same_instance_may_be_on_record_in_two_cells_of_one_database(database: Database) -> None:
    uuid = ids.fresh()
    for cell in (ids.fresh(), ids.fresh()):
        records = CellRecords(cell)
        build = InstanceBuild(instance_uuid=uuid, request_spec=SPEC, selections=(selected(cell),))
        new = NewInstance(ids.fresh(), build, "req")
        database.write(lambda connection, records=records, new=new: records.add(connection, [new]))
        with pytest.raises(errors.RequestInProgress):
            database.write(lambda connection, records=records: records.add_deleting(connection, uuid, "req"))
        [shown] = database.read(lambda connection, records=records: records.show(connection, [uuid]))
        assert (shown.cell_uuid, shown.host, len(shown.attempts)) == (cell, "a", 1)


# --- Hosts ------------------------------------------------------------------------------------------------------------


def test_no_host_is_silent_to_a_conductor_that_has_just_begun(database: Database) -> None:
    cell = ids.fresh()
    host = HostReport(service_host="h1", nodename="h1", compute_node_uuid=ids.fresh(), agent="agent")
    hosts = CellHosts(options.new(), database, cell)
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(host,)))
    an_hour_ago = update(cell_hosts).where(cell_hosts.c.cell_uuid == cell).values(last_seen=now() - 3600)
    database.write(lambda connection: connection.execute(an_hour_ago))

    assert CellHosts(options.new(), database, cell).why_silent("h1") is None


def test_thousands_of_hosts_are_described_told_of_and_found_down(database: Database) -> None:
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
    assert "not yet worked through" in str(hosts.why_returning("h7")), "the cell has missed it"
    assert hosts.forwarded.seen_since(clock + 0.1, 60.0)[0] == []
    assert hosts.returned("agent", ["h7"], {"h7": 1}) == ["h7"]
    assert (hosts.why_silent("h7"), hosts.why_returning("h7")) == (None, None)
    assert hosts.forwarded.seen_since(clock + 0.1, 60.0)[0] == ["h7"]
