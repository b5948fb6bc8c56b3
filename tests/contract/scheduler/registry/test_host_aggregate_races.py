"""Test that concurrent writers of aggregates, hosts and providers leave each node in the aggregates of its host."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from msgspec import structs
from sqlalchemy import Connection, text
from support.databases.rows_read import rows_read
from support.placement_store.builders import at_once
from support.scheduler.aggregate_builders import Aggregates, host_rows, provider
from support.scheduler.builders import CELLS, select
from support.scheduler.rig import Rig, node_uuid, report

from moorage import errors, ids
from moorage.messages import (
    AddAggregateHost,
    CreateResourceProvider,
    DeleteHost,
    DeleteResourceProvider,
    GetResourceProvider,
    ReportHosts,
    SetAggregates,
    SetHost,
)
from moorage.model import ZONE_KEY, AggregateHost, HostAggregate
from placement_store.db.retries import retry_on_stale_read
from placement_store.providers import aggregates as provider_aggregates
from placement_store.providers import create as new_providers
from placement_store.providers.create import NewProvider
from scheduler.registry import hosts, reports
from scheduler.registry.aggregates import changes, nodes

ROUNDS = 6
ZONES = ("east", "west")
#: The number of a host's second node is the number of its first node plus this.
ANOTHER = 100

#: SQLite has one writer at a time.
ON_MARIADB = pytest.mark.parametrize("rig", [pytest.param("mariadb", marks=pytest.mark.servers)], indirect=True)

#: Writes to the host of a number, in a transaction of the caller.
Writer = Callable[[Rig, Connection, int], None]


def test_of_two_aggregates_of_different_zones_one_gets_the_host(rig: Rig) -> None:
    rig.add_hosts(range(ROUNDS))
    aggregates = Aggregates(rig)
    for zone in ZONES:
        aggregates.create(zone, availability_zone=zone)
    for number in range(ROUNDS):
        outcome = at_once(*[lambda zone=zone, n=number: aggregates.add(zone, f"host{n}") for zone in ZONES])
        assert sorted(outcome) == ["ZoneConflict", "done"]
    hosts = [host.service_host for zone in ZONES for host in aggregates.get(zone).hosts]
    assert sorted(hosts) == sorted(host_rows(rig))


def test_a_host_that_joins_an_aggregate_while_that_gets_a_zone_has_one_zone(rig: Rig) -> None:
    rig.add_hosts(range(ROUNDS))
    aggregates = Aggregates(rig)
    for number in range(ROUNDS):
        host = f"host{number}"
        aggregates.create(f"east{number}", host, availability_zone="east")
        aggregates.create(f"other{number}")
        outcome = at_once(
            partial(aggregates.change, f"other{number}", availability_zone="west"),
            partial(aggregates.add, f"other{number}", host),
        )
        assert sorted(outcome) == ["ZoneConflict", "done"]
        assert len(host_rows(rig)[host].metadata["availability_zone"]) == 1


def test_of_concurrent_creations_of_one_aggregate_one_succeeds(rig: Rig) -> None:
    aggregates = Aggregates(rig)
    for number in range(ROUNDS):
        outcome = at_once(*[lambda n=number: aggregates.create(f"one{n}")] * 3)
        assert sorted(outcome) == ["AlreadyExists", "AlreadyExists", "done"]


def test_a_host_that_is_deleted_while_it_joins_is_in_no_aggregate(rig: Rig) -> None:
    aggregates = Aggregates(rig)
    aggregates.create("one")
    for number in range(ROUNDS):
        name = f"host{number}"
        rig.add_hosts([number])
        rig.set_host(name, forced_down=True)
        delete = DeleteHost(request_id=rig.fresh(), service_host=name)
        outcome = at_once(partial(rig.serve, delete), partial(aggregates.add, "one", name))
        assert outcome[0] == "done"
        assert outcome[1] in {"done", "HostNotFound"}
        assert aggregates.get("one").hosts == ()


# --- Two transactions that do not see each other --------------------------------------------------------------------


def _create(rig: Rig, connection: Connection, number: int) -> None:
    new_providers.create(connection, [NewProvider(node_uuid(number), f"host{number}")])


def _replace(rig: Rig, connection: Connection, number: int) -> None:
    message = SetAggregates(request_id=rig.fresh(), uuid=node_uuid(number), aggregates=(ids.fresh(),))
    provider_aggregates.set_aggregates(connection, message)


def _report_another_node(rig: Rig, connection: Connection, number: int) -> None:
    new = report(number + ANOTHER, service_host=f"host{number}")
    reports.write(connection, ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=(new,)))


def _join(rig: Rig, connection: Connection, number: int) -> None:
    message = AddAggregateHost(request_id=rig.fresh(), aggregate="one", service_host=f"host{number}")
    changes.add_host(connection, message)


def _disable(rig: Rig, connection: Connection, number: int) -> None:
    hosts.set_host(connection, SetHost(request_id=rig.fresh(), service_host=f"host{number}", disabled=True))


def _force_down(rig: Rig, connection: Connection, number: int) -> None:
    hosts.set_host(connection, SetHost(request_id=rig.fresh(), service_host=f"host{number}", forced_down=True))


def _set_reason(rig: Rig, connection: Connection, number: int) -> None:
    hosts.set_host(connection, SetHost(request_id=rig.fresh(), service_host=f"host{number}", disabled_reason="disks"))


def _enable(rig: Rig, connection: Connection, number: int) -> None:
    hosts.set_host(connection, SetHost(request_id=rig.fresh(), service_host=f"host{number}", disabled=False))


def _prepare(rig: Rig, writer: Writer, number: int) -> list[int]:
    """Add a host in the state that a writer needs; return the numbers of the nodes that it has after the write."""
    rig.add_hosts([number])
    if writer is _create:
        rig.delete_provider(node_uuid(number))
    if writer is not _report_another_node:
        return [number]
    other = CreateResourceProvider(request_id=rig.fresh(), uuid=node_uuid(number + ANOTHER), name=f"other{number}")
    rig.placement.call(other)
    return [number, number + ANOTHER]


def _wait_for_a_waiting_writer(rig: Rig, done: Callable[[], bool]) -> None:
    """Return once a statement has run for a while, as one that waits for a row lock, or once the writer is done."""
    waiting = text(
        "SELECT COUNT(*) FROM information_schema.processlist"
        " WHERE command = 'Query' AND time_ms > 100 AND id <> CONNECTION_ID()"
    )
    end = time.monotonic() + 60
    while not done() and not rig.database.read(lambda connection: connection.scalar(waiting)):
        assert time.monotonic() < end
        time.sleep(0.01)


def _begin_both(rig: Rig, first: Writer, second: Writer, number: int) -> None:
    """Begin the second write when the first one is complete and not committed."""

    def later() -> None:
        retry_on_stale_read(lambda: rig.database.write(lambda connection: second(rig, connection, number)))

    with ThreadPoolExecutor(1) as pool:
        with rig.database.engine.connect() as connection, connection.begin():
            first(rig, connection, number)
            begun = pool.submit(later)
            _wait_for_a_waiting_writer(rig, begun.done)
        begun.result(timeout=60)


@ON_MARIADB
def test_nodes_are_in_the_aggregate_of_their_host_whichever_writer_commits_last(rig: Rig) -> None:
    aggregates = Aggregates(rig)
    uuid = aggregates.create("one").uuid
    orders = [
        order for writer in (_create, _replace, _report_another_node) for order in ((writer, _join), (_join, writer))
    ]
    for number, (first, second) in enumerate(orders):
        nodes = _prepare(rig, first if second is _join else second, number)
        _begin_both(rig, first, second, number)
        inside = [node for node in nodes if uuid in provider(rig, node).aggregates]
        assert inside == nodes, f"{first.__name__}, and then {second.__name__}"
    assert len(aggregates.get("one").hosts) == len(orders)
    assert aggregates.sync(dry_run=True) == []


def test_a_node_that_is_reported_while_its_host_is_disabled_is_disabled_with_it(rig: Rig) -> None:
    rig.add_hosts(range(ROUNDS))
    for number in range(ROUNDS):
        host = f"host{number}"
        outcome = at_once(
            partial(rig.set_host, host, disabled=True, forced_down=True),
            partial(rig.report, [report(number + ANOTHER, service_host=host)], [host]),
        )
        assert outcome == ["done", "done"]
    assert [(host.disabled, host.forced_down) for host in rig.hosts()] == [(True, True)] * 2 * ROUNDS


@ON_MARIADB
def test_concurrent_settings_of_a_host_by_two_operators_are_both_kept(rig: Rig) -> None:
    rig.add_hosts([1, 2])

    _begin_both(rig, _force_down, _disable, 1)
    _begin_both(rig, _disable, _force_down, 2)

    listed = rig.hosts()
    assert [(host.disabled, host.forced_down) for host in listed] == [(True, True)] * 2


@ON_MARIADB
def test_a_reason_that_is_set_while_the_host_is_being_enabled_is_refused(rig: Rig) -> None:
    rig.add_hosts([1])
    rig.database.write(lambda connection: _disable(rig, connection, 1))

    with pytest.raises(errors.InvalidRequest, match="only a disabled host"):
        _begin_both(rig, _enable, _set_reason, 1)

    [host] = rig.hosts()
    assert (host.disabled, host.disabled_reason) == (False, None)


def _described(number: int) -> Writer:
    """Return a writer of the host's description with this number, in the zone of this number."""

    def write(rig: Rig, connection: Connection, host: int) -> None:
        new = report(host, availability_zone=f"zone{number}")
        message = ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=(new,), numbers=(number,))
        reports.write(connection, message)

    return write


@ON_MARIADB
def test_a_description_that_is_written_after_a_newer_one_is_left_out(rig: Rig) -> None:
    rig.add_hosts([1])

    _begin_both(rig, _described(6), _described(5), 1)

    [host] = rig.hosts()
    assert host.availability_zone == "zone6"


# --- Random writers -------------------------------------------------------------------------------------------------

_MAY_BE_REFUSED = (
    errors.AlreadyExists,
    errors.HostNotFound,
    errors.InvalidState,
    errors.ProviderNotFound,
    errors.ZoneConflict,
    # On a slow machine, a writer may lose every race.
    errors.Overloaded,
    errors.TryAgain,
)


class _RandomWriter:
    """Writes at random to three hosts, their providers and three aggregates."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig, self._random, self._aggregates = rig, random.Random(seed), Aggregates(rig)

    def write_often(self) -> None:
        for _ in range(20):
            self.write()

    def write(self) -> None:
        number, aggregate = self._random.randrange(3), f"aggregate{self._random.randrange(3)}"
        name = f"host{number}"
        writes: list[Callable[[], object]] = [
            lambda: self._aggregates.add(aggregate, name),
            lambda: self._aggregates.add(aggregate, name),
            lambda: self._aggregates.remove(aggregate, name),
            lambda: self._aggregates.change(aggregate, availability_zone=self._random.choice([*ZONES, None])),
            lambda: self._rig.placement.call(
                SetAggregates(request_id=ids.fresh(), uuid=node_uuid(number), aggregates=())
            ),
            lambda: self._rig.placement.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=node_uuid(number))),
            lambda: self._rig.placement.call(
                CreateResourceProvider(request_id=ids.fresh(), uuid=node_uuid(number), name=name)
            ),
            lambda: self._rig.report([report(number), report(number + 10, service_host=name)], [name]),
            lambda: self._retire(name),
        ]
        with suppress(*_MAY_BE_REFUSED):
            self._random.choice(writes)()

    def _retire(self, name: str) -> None:
        self._rig.set_host(name, forced_down=True)
        self._rig.serve(DeleteHost(request_id=ids.fresh(), service_host=name))


@pytest.mark.parametrize("seed", [1, 2])
def test_after_random_concurrent_writes_nodes_are_in_the_aggregates_of_their_hosts_alone_and_each_host_has_one_zone(
    rig: Rig, seed: int
) -> None:
    rig.add_hosts([0, 1, 2])
    aggregates = Aggregates(rig)
    for number in range(3):
        aggregates.create(f"aggregate{number}")
    writers = [_RandomWriter(rig, 1000 * seed + number) for number in range(4)]
    with ThreadPoolExecutor(len(writers)) as pool:
        for future in [pool.submit(one.write_often) for one in writers]:
            future.result()
    uuid_of = {name: aggregates.get(name) for name in aggregates.listed()}
    for row in host_rows(rig).values():
        of_host = {one.uuid for one in uuid_of.values() if row.service_host in {h.service_host for h in one.hosts}}
        assert len(row.metadata.get("availability_zone", ())) <= 1
        assert _aggregates_of(rig, row.compute_node_uuid) in (None, of_host)
    assert {host.service_host for one in uuid_of.values() for host in one.hosts} <= {*host_rows(rig)}
    assert aggregates.sync(dry_run=True) == []


def _aggregates_of(rig: Rig, node: str) -> set[str] | None:
    """Return the aggregates of a provider; None if it does not exist."""
    with suppress(errors.ProviderNotFound):
        return set(rig.placement.call(GetResourceProvider(uuid=node)).aggregates)
    return None


@ON_MARIADB
def test_the_servers_of_only_one_host_are_read_while_the_nodes_of_all_are_locked(rig: Rig) -> None:
    rig.add_hosts(range(4), vcpus=40)
    scheduler, small = rig.scheduler(), {"vcpus": 1, "memory_mb": 1, "root_gb": 0}
    servers = [select(f"on {number}", 30, force_hosts=(f"host{number}",), **small) for number in range(1, 4)]
    for message in servers:
        scheduler.select(message)
    affected = tuple(AggregateHost(service_host=f"host{number}", cell_uuid=CELLS[0]) for number in range(4))
    before = HostAggregate(uuid=ids.fresh(), name="east", hosts=affected)
    after = structs.replace(before, metadata={ZONE_KEY: "east"})

    def refusal(connection: Connection) -> str:
        found = nodes.lock(connection, affected, with_providers=True)
        with pytest.raises(errors.InvalidState) as caught:
            nodes.refuse_zone_change_with_servers(connection, found, {}, before, after)
        return caught.value.reason

    def locking(connection: Connection) -> None:
        nodes.lock(connection, affected, with_providers=True)

    reason, read = rows_read(rig.database, refusal, writing=True)
    _, by_locking = rows_read(rig.database, locking, writing=True)
    named = ", ".join(sorted(servers[0].instance_uuids)[:5])
    assert reason == f"host host1 would go from zone nova to east with {named} and 25 more on it"
    assert read - by_locking < 40
