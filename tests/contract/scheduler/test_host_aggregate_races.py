"""Writers of aggregates, hosts and providers at the same moment: nodes are where their hosts are, nothing is lost."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import Connection, text
from support.placement_store.builders import at_once
from support.scheduler.aggregate_builders import Aggregates, host_rows, provider
from support.scheduler.builders import CELLS
from support.scheduler.rig import Rig, node_uuid, report, rig_on_each_store

from moorage import errors, ids
from moorage.messages import (
    AddAggregateHost,
    CreateResourceProvider,
    DeleteHost,
    DeleteResourceProvider,
    GetResourceProvider,
    ListHosts,
    ReportHosts,
    SetAggregates,
    SetHost,
)
from placement_store.db.retries import retry_on_stale_read
from placement_store.providers import aggregates as provider_aggregates
from placement_store.providers import create as new_providers
from placement_store.providers.create import NewProvider
from scheduler.registry import hosts, reports
from scheduler.registry.aggregates import changes

rig = rig_on_each_store

ROUNDS = 6
ZONES = ("east", "west")
#: By so much the number of a host's second node is more than that of its first.
ANOTHER = 100

#: Does something to a host of a number, in a transaction that is not its own to end.
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


def test_a_host_that_comes_while_its_aggregate_gets_a_zone_has_one_zone_or_is_refused(rig: Rig) -> None:
    rig.add_hosts(range(ROUNDS))
    aggregates = Aggregates(rig)
    for number in range(ROUNDS):
        host = f"host{number}"
        aggregates.create(f"east{number}", host, availability_zone="east")
        aggregates.create(f"other{number}")
        outcome = at_once(
            lambda n=number: aggregates.change(f"other{n}", availability_zone="west"),
            lambda n=number, host=host: aggregates.add(f"other{n}", host),
        )
        assert sorted(outcome) == ["ZoneConflict", "done"]
        assert len(host_rows(rig)[host].metadata["availability_zone"]) == 1


def test_of_several_who_create_an_aggregate_one_is_first(rig: Rig) -> None:
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
        rig.registry.set_host(SetHost(request_id=rig.fresh(), service_host=name, forced_down=True))
        delete = DeleteHost(request_id=rig.fresh(), service_host=name)
        outcome = at_once(
            lambda delete=delete: rig.registry.delete_host(delete), lambda name=name: aggregates.add("one", name)
        )
        assert outcome[0] == "done"
        assert outcome[1] in {"done", "HostNotFound"}
        assert aggregates.get("one").hosts == ()


# --- What each of two does that do not see each other yet -----------------------------------------------------------


def _create(rig: Rig, connection: Connection, number: int) -> None:
    new_providers.create(connection, [NewProvider(node_uuid(number), f"host{number}")])


def _replace(rig: Rig, connection: Connection, number: int) -> None:
    message = SetAggregates(request_id=rig.fresh(), uuid=node_uuid(number), aggregates=(ids.fresh(),))
    provider_aggregates.set_aggregates(connection, message)


def _bring_another_node(rig: Rig, connection: Connection, number: int) -> None:
    new = report(number + ANOTHER, service_host=f"host{number}")
    reports.write(connection, ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=(new,)))


def _join(rig: Rig, connection: Connection, number: int) -> None:
    message = AddAggregateHost(request_id=rig.fresh(), aggregate="one", service_host=f"host{number}")
    changes.add_host(connection, message)


def _disable(rig: Rig, connection: Connection, number: int) -> None:
    hosts.set_host(connection, SetHost(request_id=rig.fresh(), service_host=f"host{number}", disabled=True))


def _force_down(rig: Rig, connection: Connection, number: int) -> None:
    hosts.set_host(connection, SetHost(request_id=rig.fresh(), service_host=f"host{number}", forced_down=True))


def _say_why(rig: Rig, connection: Connection, number: int) -> None:
    hosts.set_host(connection, SetHost(request_id=rig.fresh(), service_host=f"host{number}", disabled_reason="disks"))


def _enable(rig: Rig, connection: Connection, number: int) -> None:
    hosts.set_host(connection, SetHost(request_id=rig.fresh(), service_host=f"host{number}", disabled=False))


def _prepare(rig: Rig, writer: Writer, number: int) -> list[int]:
    """Make a host as a writer wants to find it; return the numbers of the nodes that it will have."""
    rig.add_hosts([number])
    if writer is _create:
        rig.placement.call(DeleteResourceProvider(request_id=rig.fresh(), uuid=node_uuid(number)))
    if writer is not _bring_another_node:
        return [number]
    other = CreateResourceProvider(request_id=rig.fresh(), uuid=node_uuid(number + ANOTHER), name=f"other{number}")
    rig.placement.call(other)
    return [number, number + ANOTHER]


def _wait_for_a_waiting_writer(rig: Rig, done: Callable[[], bool]) -> None:
    """Return once a statement takes its time, as one does that waits for a row lock, or all have been carried out."""
    waiting = text(
        "SELECT COUNT(*) FROM information_schema.processlist"
        " WHERE command = 'Query' AND time_ms > 100 AND id <> CONNECTION_ID()"
    )
    end = time.monotonic() + 60
    while not done() and not rig.database.read(lambda connection: connection.scalar(waiting)):
        assert time.monotonic() < end
        time.sleep(0.01)


def _begin_both(rig: Rig, first: Writer, second: Writer, number: int) -> None:
    """Have the second writer begin while the first has written everything and not committed."""

    def later() -> None:
        retry_on_stale_read(lambda: rig.database.write(lambda connection: second(rig, connection, number)))

    with ThreadPoolExecutor(1) as pool:
        with rig.database.engine.connect() as connection, connection.begin():
            first(rig, connection, number)
            begun = pool.submit(later)
            _wait_for_a_waiting_writer(rig, begun.done)
        begun.result(timeout=60)


def test_nodes_are_in_the_aggregate_of_their_host_whoever_commits_last(mariadb_url: str) -> None:
    rig = Rig(mariadb_url)
    aggregates = Aggregates(rig)
    uuid = aggregates.create("one").uuid
    orders = [
        order for writer in (_create, _replace, _bring_another_node) for order in ((writer, _join), (_join, writer))
    ]
    for number, (first, second) in enumerate(orders):
        nodes = _prepare(rig, first if second is _join else second, number)
        _begin_both(rig, first, second, number)
        inside = [node for node in nodes if uuid in provider(rig, node).aggregates]
        assert inside == nodes, f"{first.__name__}, and then {second.__name__}"
    assert len(aggregates.get("one").hosts) == len(orders)
    assert aggregates.sync(dry_run=True) == []
    rig.close()


def test_what_two_operators_say_of_a_host_at_once_is_both_true(mariadb_url: str) -> None:
    rig = Rig(mariadb_url)
    rig.add_hosts([1, 2])

    _begin_both(rig, _force_down, _disable, 1)
    _begin_both(rig, _disable, _force_down, 2)

    listed = rig.registry.list_hosts(ListHosts())
    assert [(host.disabled, host.forced_down) for host in listed] == [(True, True)] * 2
    rig.close()


def test_a_reason_that_comes_while_a_host_is_enabled_is_refused(mariadb_url: str) -> None:
    rig = Rig(mariadb_url)
    rig.add_hosts([1])
    rig.database.write(lambda connection: _disable(rig, connection, 1))

    with pytest.raises(errors.InvalidRequest, match="only a disabled host"):
        _begin_both(rig, _enable, _say_why, 1)

    [host] = rig.registry.list_hosts(ListHosts())
    assert (host.disabled, host.disabled_reason) == (False, None)
    rig.close()


def _described(number: int) -> Writer:
    """The cell describes a host for the time of this number, in a zone that says so."""

    def write(rig: Rig, connection: Connection, host: int) -> None:
        new = report(host, availability_zone=f"zone{number}")
        message = ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=(new,), numbers=(number,))
        reports.write(connection, message)

    return write


def test_a_description_that_is_written_after_its_successor_is_left_out(mariadb_url: str) -> None:
    rig = Rig(mariadb_url)
    rig.add_hosts([1])

    _begin_both(rig, _described(6), _described(5), 1)

    [host] = rig.registry.list_hosts(ListHosts())
    assert host.availability_zone == "zone6"
    rig.close()


# --- All at once ----------------------------------------------------------------------------------------------------

_MAY_BE_REFUSED = (
    errors.AlreadyExists,
    errors.HostNotFound,
    errors.InvalidState,
    errors.ProviderNotFound,
    errors.ZoneConflict,
    # Where a machine is so slow that others are faster every time.
    errors.Overloaded,
    errors.TryAgain,
)


class _Anybody:
    """Does something at random to three hosts, their providers and three aggregates."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig, self._random, self._aggregates = rig, random.Random(seed), Aggregates(rig)

    def does_something(self) -> None:
        number, aggregate = self._random.randrange(3), f"aggregate{self._random.randrange(3)}"
        name = f"host{number}"
        deeds: list[Callable[[], object]] = [
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
            self._random.choice(deeds)()

    def _retire(self, name: str) -> None:
        self._rig.registry.set_host(SetHost(request_id=ids.fresh(), service_host=name, forced_down=True))
        self._rig.registry.delete_host(DeleteHost(request_id=ids.fresh(), service_host=name))


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_many_do_at_once_nodes_are_in_the_aggregates_of_their_hosts_and_in_no_other_and_zones_are_one(
    rig: Rig, seed: int
) -> None:
    rig.add_hosts([0, 1, 2])
    aggregates = Aggregates(rig)
    for number in range(3):
        aggregates.create(f"aggregate{number}")
    people = [_Anybody(rig, 1000 * seed + number) for number in range(4)]
    with ThreadPoolExecutor(len(people)) as pool:
        for future in [pool.submit(lambda one=one: [one.does_something() for _ in range(20)]) for one in people]:
            future.result()
    uuid_of = {name: aggregates.get(name) for name in aggregates.listed()}
    for row in host_rows(rig).values():
        of_host = {one.uuid for one in uuid_of.values() if row.service_host in {h.service_host for h in one.hosts}}
        assert len(row.metadata.get("availability_zone", ())) <= 1
        assert _aggregates_of(rig, row.compute_node_uuid) in (None, of_host)
    assert {host.service_host for one in uuid_of.values() for host in one.hosts} <= {*host_rows(rig)}
    assert aggregates.sync(dry_run=True) == []


def _aggregates_of(rig: Rig, node: str) -> set[str] | None:
    """The aggregates of a provider, or nothing if it is not there."""
    with suppress(errors.ProviderNotFound):
        return set(rig.placement.call(GetResourceProvider(uuid=node)).aggregates)
    return None
