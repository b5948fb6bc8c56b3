"""Test the host information that a cell keeps and forwards to the schedulers."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs
from support.conductor.builders import CELL_1, FakeScheduler, World, report, wait_until

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    REPORTS_TOPIC,
    HostsRegistered,
    HostsReported,
    NumberedDescription,
    ReportHosts,
    ReportHostsInCell,
    ReturnHosts,
)
from moorage.model import HostLoad


def test_descriptions_are_passed_on_and_again_when_they_change_and_who_is_alive_always(world: World) -> None:
    cell = world.bus.client(f"conductor.{CELL_1.uuid}")

    def told() -> list[tuple[str, str]]:
        return [(host.service_host, host.availability_zone) for sent in world.scheduler.reports for host in sent.hosts]

    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"), report("b"))))
    wait_until(lambda: told() == [("a", "nova"), ("b", "nova")])
    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"), report("b", "west"))))
    wait_until(lambda: told()[2:] == [("b", "west")])
    world.scheduler.reports.clear()

    def b_alone_is_alive() -> bool:
        cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=("b",)))
        return any(sent.alive == ("b",) for sent in world.scheduler.reports)

    # More than once: the last round may have looked before both were described, and the next one tells of both.
    wait_until(b_alone_is_alive, interval=0.2)

    time.sleep(0.5)
    silent = len(world.scheduler.reports)
    time.sleep(0.5)
    assert len(world.scheduler.reports) == silent, "hosts that were not seen are not reported as alive"
    assert set(told()) <= {("b", "west")}, "only a description whose acknowledgement was under way is told once more"


def test_long_descriptions_are_passed_on_in_messages_that_the_broker_takes(world: World) -> None:
    cell = world.bus.client(f"conductor.{CELL_1.uuid}")
    long = [structs.replace(report(name), attributes={"topology": "x" * 2**20}) for name in "abcde"]

    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=tuple(long), alive=tuple("abcde")))
    wait_until(lambda: {host.service_host for sent in world.scheduler.reports for host in sent.hosts} == {*"abcde"})

    sizes = [sum(len(host.attributes["topology"]) for host in sent.hosts) for sent in world.scheduler.reports]
    assert max(sizes) == 2 * 2**20


def test_a_description_with_a_name_that_ends_with_a_blank_is_refused_by_its_place(world: World) -> None:
    cell = world.bus.client(f"conductor.{CELL_1.uuid}")

    with pytest.raises(errors.InvalidRequest) as caught:
        cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"), report("b "))))
    assert caught.value.path == "$.hosts[1].service_host"

    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"),)))
    wait_until(lambda: any(sent.hosts for sent in world.scheduler.reports))
    assert {host.service_host for sent in world.scheduler.reports for host in sent.hosts} == {"a"}


def test_what_no_scheduler_has_heard_is_told_when_one_is_back(world: World) -> None:
    for topic in ("scheduler", REPORTS_TOPIC):
        world.servers.pop(topic).stop()
    cell = world.bus.client(f"conductor.{CELL_1.uuid}")
    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"),)))
    time.sleep(0.5)

    world.serve("scheduler", world.scheduler)

    wait_until(lambda: any(sent.hosts for sent in world.scheduler.reports))


# --- What goes on on them ---------------------------------------------------------------------------------------------


def loads(world: World) -> dict[str, HostLoad]:
    """Return the load last reported to the schedulers of each host that has any."""
    told: dict[str, HostLoad] = {}
    for sent in list(world.scheduler.reports):
        told |= sent.loads
    return {host: load for host, load in told.items() if load != HostLoad()}


def test_schedulers_hear_of_builds_under_way_of_those_that_fail_and_of_those_that_succeed_after_all(
    world: World,
) -> None:
    world.agent.failing.add("a")
    world.agent.hanging.add("b")
    [uuid] = world.build()
    wait_until(
        lambda: loads(world) == {"a": HostLoad(failed_builds=1.0), "b": HostLoad(io_ops=1)}, lambda: loads(world)
    )

    world.agent.released.set()
    world.becomes(uuid, "active")
    wait_until(lambda: loads(world) == {"a": HostLoad(failed_builds=1.0)}, lambda: loads(world))

    world.agent.failing.clear()
    for _ in range(2):
        world.becomes(world.build()[0], "active")
    wait_until(lambda: loads(world) == {}, lambda: loads(world))


def test_a_host_that_has_failed_a_build_is_told_to_be_as_good_as_others_after_a_time(world: World) -> None:
    world.restart("cell", failed_build_half_life=1.0)
    world.agent.failing.add("a")
    world.becomes(world.build()[0], "active")
    wait_until(lambda: any(sent.loads for sent in world.scheduler.reports))
    wait_until(lambda: loads(world) == {}, lambda: loads(world))


def test_a_cell_that_is_started_anew_tells_what_goes_on_on_all_its_hosts(world: World) -> None:
    world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"), report("idle"))))
    world.agent.failing.add("a")
    world.becomes(world.build()[0], "active")
    wait_until(lambda: loads(world) == {"a": HostLoad(failed_builds=1.0)}, lambda: loads(world))
    world.stop("cell")
    world.scheduler.reports.clear()

    world.start("cell")

    wait_until(lambda: any(sent.loads for sent in world.scheduler.reports))
    [told] = [sent.loads for sent in world.scheduler.reports if sent.loads]
    assert told == {"a": HostLoad(failed_builds=1.0), "idle": HostLoad()}


def test_a_host_that_is_described_anew_is_told_of_with_all_that_goes_on_there(world: World) -> None:
    world.agent.failing.add("a")
    world.becomes(world.build()[0], "active")
    wait_until(lambda: loads(world) == {"a": HostLoad(failed_builds=1.0)}, lambda: loads(world))
    world.scheduler.reports.clear()
    world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"),)))
    wait_until(lambda: loads(world) == {"a": HostLoad(failed_builds=1.0)}, lambda: loads(world))


def wait_until_told_of_b(world: World, reports: Callable[[], Sequence[ReportHosts]]) -> None:
    """Send heartbeats of b, as its agent does, until the schedulers have got one.

    More than one: a round that looks while the first is being written has a later time than it, and passes over it.
    """

    def is_told() -> bool:
        world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=("b",)))
        return any(sent.alive == ("b",) for sent in reports())

    wait_until(is_told, interval=0.2)


class KnowsNoLoads(FakeScheduler):
    """One of an earlier version."""

    refused = 0

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> HostsRegistered:
        if message.loads:
            self.refused += 1
            raise errors.InvalidRequest(path="$", reason="unknown field 'loads'")
        return super().report_hosts(message)


def test_heartbeats_arrive_though_the_schedulers_understand_no_loads(world: World) -> None:
    older = KnowsNoLoads(world.placement)
    world.serve("scheduler", older)
    world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("b"),)))
    world.agent.failing.add("a")
    world.becomes(world.build()[0], "active")
    wait_until(lambda: older.refused > 1)
    before = len(older.reports)

    wait_until_told_of_b(world, lambda: older.reports[before:])


class WithoutStore(FakeScheduler):
    """Stands for three schedulers, two of which do not reach their database; each gets a message in turn."""

    def __init__(self, world: World) -> None:
        super().__init__(world.placement)
        self.sent: Counter[str] = Counter()

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> HostsRegistered:
        self.sent[message.request_id] += 1
        if self.sent[message.request_id] <= 2:
            raise errors.StoreUnavailable(schema="main", reason="silent")
        return super().report_hosts(message)


def test_heartbeats_arrive_in_the_same_round_though_two_schedulers_of_three_do_not_reach_their_database(
    world: World,
) -> None:
    schedulers = WithoutStore(world)
    world.serve("scheduler", schedulers)
    world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("b"),)))

    wait_until_told_of_b(world, lambda: schedulers.reports)
    assert set(schedulers.sent.values()) <= {1, 2, 3}


# --- What the schedulers do not know ----------------------------------------------------------------------------------


class Registry(FakeScheduler):
    """Knows no host that it has forgotten, and keeps the newest description of each by its number."""

    def __init__(self, world: World) -> None:
        super().__init__(world.placement)
        self.zones: dict[str, tuple[int, str]] = {}

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> HostsRegistered:
        super().report_hosts(message)
        newer = []
        for host, number in zip(message.hosts, message.numbers, strict=True):
            known, _zone = self.zones.get(host.service_host, (0, ""))
            if number < known:
                newer.append(NumberedDescription(service_host=host.service_host, nodename=host.nodename, number=known))
            else:
                self.zones[host.service_host] = number, host.availability_zone
        unknown = tuple(name for name in message.alive if name not in self.zones)
        return HostsRegistered(unknown=unknown, newer=tuple(newer))


def with_registry(world: World) -> Registry:
    registry = Registry(world)
    world.serve("scheduler", registry)
    return registry


def reports(world: World, incarnation: str | None, number: int, **content: Any) -> HostsReported:
    return world.cell_call(
        ReportHostsInCell(request_id=ids.fresh(), agent="agent", incarnation=incarnation, number=number, **content)
    )


def test_a_host_that_the_schedulers_do_not_know_is_asked_for_and_known_again_once_it_has_started(world: World) -> None:
    registry = with_registry(world)
    mine = ids.fresh()
    reports(world, mine, 1, hosts=(report("a"), report("b")))
    wait_until(lambda: set(registry.zones) == {"a", "b"})
    del registry.zones["a"]

    numbers = itertools.count(2)
    wait_until(lambda: reports(world, mine, next(numbers), alive=("a", "b")).undescribed == ("a",))

    reports(world, mine, next(numbers), hosts=(report("a"),))
    assert reports(world, mine, next(numbers), alive=("a",)).undescribed == ("a",), "not before its providers are"
    answer = reports(world, mine, next(numbers), hosts=(report("a"),), started=("a",))
    assert answer.returning == ("a",)
    assert reports(world, mine, next(numbers), alive=("a",)).undescribed == ()
    world.cell_call(ReturnHosts(request_id=ids.fresh(), agent="agent", hosts=("a",), lives=answer.lives))
    wait_until(lambda: "a" in registry.zones)


def test_an_agent_of_the_former_release_describes_all_its_hosts_where_one_is_asked_for(world: World) -> None:
    registry = with_registry(world)
    reports(world, None, 1, hosts=(report("a"), report("b")))
    wait_until(lambda: set(registry.zones) == {"a", "b"})
    del registry.zones["a"]

    def asked() -> bool:
        try:
            reports(world, None, 1, alive=("a", "b"))
        except errors.HostNotFound:
            return True
        return False

    wait_until(asked)
    lives = reports(world, None, 1, hosts=(report("a"), report("b")), started=("a", "b")).lives
    world.cell_call(ReturnHosts(request_id=ids.fresh(), agent="agent", hosts=("a", "b"), lives=lives))
    wait_until(lambda: "a" in registry.zones)
    assert not asked()


def test_a_cell_that_has_lost_its_records_numbers_its_descriptions_after_those_that_are_known(world: World) -> None:
    registry = with_registry(world)
    registry.zones["a"] = 41, "west"

    reports(world, ids.fresh(), 1, hosts=(report("a", "east"),))

    wait_until(lambda: registry.zones["a"] == (42, "east"), lambda: registry.zones)
