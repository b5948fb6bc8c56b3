"""Test the host information that a cell keeps and forwards to the schedulers."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from msgspec import structs
from support.conductor.builders import FakeScheduler, World, report, wait_until
from support.conductor.host_reports import list_of_guests, report_hosts, return_hosts

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    REPORTS_TOPIC,
    HostsRegistered,
    NumberedDescription,
    ReportHosts,
)
from moorage.model import HostLoad


def test_descriptions_are_forwarded_when_they_change_and_heartbeats_always(world: World) -> None:
    def reported() -> list[tuple[str, str]]:
        return [(host.service_host, host.availability_zone) for sent in world.scheduler.reports for host in sent.hosts]

    report_hosts(world, hosts=(report("a"), report("b")))
    wait_until(lambda: reported() == [("a", "nova"), ("b", "nova")])
    report_hosts(world, hosts=(report("a"), report("b", "west")))
    wait_until(lambda: reported()[2:] == [("b", "west")])
    world.scheduler.reports.clear()

    def b_alone_is_alive() -> bool:
        report_hosts(world, alive=("b",))
        return any(sent.alive == ("b",) for sent in world.scheduler.reports)

    # Repeated: the last round may have begun before both were described, and the next one then names both.
    wait_until(b_alone_is_alive, interval=0.2)

    time.sleep(0.5)
    silent = len(world.scheduler.reports)
    time.sleep(0.5)
    assert len(world.scheduler.reports) == silent, "hosts that did not report are not reported as alive"
    assert set(reported()) <= {("b", "west")}, "at most the unacknowledged description is sent again"


def test_long_descriptions_are_forwarded_in_messages_that_the_broker_takes(world: World) -> None:
    long = [structs.replace(report(name), attributes={"topology": "x" * 2**20}) for name in "abcde"]

    report_hosts(world, hosts=tuple(long), alive=tuple("abcde"))
    wait_until(lambda: {host.service_host for sent in world.scheduler.reports for host in sent.hosts} == {*"abcde"})

    sizes = [sum(len(host.attributes["topology"]) for host in sent.hosts) for sent in world.scheduler.reports]
    assert max(sizes) == 2 * 2**20


def test_a_description_with_a_name_that_ends_with_a_blank_is_refused_with_its_path(world: World) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        report_hosts(world, hosts=(report("a"), report("b ")))
    assert caught.value.path == "$.hosts[1].service_host"

    report_hosts(world, hosts=(report("a"),))
    wait_until(lambda: any(sent.hosts for sent in world.scheduler.reports))
    assert {host.service_host for sent in world.scheduler.reports for host in sent.hosts} == {"a"}


def test_descriptions_that_no_scheduler_has_received_are_forwarded_when_one_is_back(world: World) -> None:
    for topic in ("scheduler", REPORTS_TOPIC):
        world.servers.pop(topic).stop()
    report_hosts(world, hosts=(report("a"),))
    time.sleep(0.5)

    world.serve("scheduler", world.scheduler)

    wait_until(lambda: any(sent.hosts for sent in world.scheduler.reports))


# --- Loads ------------------------------------------------------------------------------------------------------------


def loads(world: World) -> dict[str, HostLoad]:
    """Return the last load of each host that was reported to the schedulers, without empty ones."""
    last: dict[str, HostLoad] = {}
    for sent in list(world.scheduler.reports):
        last |= sent.loads
    return {host: load for host, load in last.items() if load != HostLoad()}


def wait_for_loads(world: World, expected: dict[str, HostLoad]) -> None:
    wait_until(lambda: loads(world) == expected, lambda: loads(world))


FAILED_ON_A = {"a": HostLoad(failed_builds=1.0)}


def test_builds_under_way_and_failed_builds_of_each_host_are_reported_to_the_schedulers(
    world: World,
) -> None:
    world.agent.failing.add("a")
    world.agent.hanging.add("b")
    [uuid] = world.build()
    wait_for_loads(world, FAILED_ON_A | {"b": HostLoad(io_ops=1)})

    world.agent.released.set()
    world.becomes(uuid, "active")
    wait_for_loads(world, FAILED_ON_A)

    world.agent.failing.clear()
    for _ in range(2):
        world.becomes(world.build()[0], "active")
    wait_for_loads(world, {})


def test_a_failed_build_of_a_host_is_no_longer_reported_after_a_time(world: World) -> None:
    world.restart("cell", failed_build_half_life=1.0)
    world.agent.failing.add("a")
    world.becomes(world.build()[0], "active")
    wait_until(lambda: any(sent.loads for sent in world.scheduler.reports))
    wait_for_loads(world, {})


def test_a_restarted_cell_reports_the_loads_of_all_its_hosts(world: World) -> None:
    report_hosts(world, hosts=(report("a"), report("idle")))
    world.agent.failing.add("a")
    world.becomes(world.build()[0], "active")
    wait_for_loads(world, FAILED_ON_A)
    world.stop("cell")
    world.scheduler.reports.clear()

    world.start("cell")

    wait_until(lambda: any(sent.loads for sent in world.scheduler.reports))
    [reported] = [sent.loads for sent in world.scheduler.reports if sent.loads]
    assert reported == FAILED_ON_A | {"idle": HostLoad()}


def test_a_host_that_is_described_again_is_reported_with_its_load(world: World) -> None:
    world.agent.failing.add("a")
    world.becomes(world.build()[0], "active")
    wait_for_loads(world, FAILED_ON_A)
    world.scheduler.reports.clear()
    report_hosts(world, hosts=(report("a"),))
    wait_for_loads(world, FAILED_ON_A)


def record_heartbeats_often(world: World) -> None:
    """Let the cell record a heartbeat of each host in 0.2 seconds, a sixth of this option, instead of in ten."""
    world.conf.set_override("silent_after", 1.2, group="service")
    world.restart("cell")


def wait_for_heartbeat_of_b(world: World, reports: Callable[[], Sequence[ReportHosts]]) -> None:
    """Send heartbeats of b until the schedulers have received one.

    More than one: a round that begins while the first is being written has a later time than it, and omits it.
    """

    def is_received() -> bool:
        report_hosts(world, alive=("b",))
        return any(sent.alive == ("b",) for sent in reports())

    wait_until(is_received, interval=0.2)


class OlderScheduler(FakeScheduler):
    """A scheduler of a version without loads."""

    refused = 0

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> HostsRegistered:
        if message.loads:
            self.refused += 1
            raise errors.InvalidRequest(path="$", reason="unknown field 'loads'")
        return super().report_hosts(message)


def test_heartbeats_arrive_although_older_schedulers_refuse_loads(world: World) -> None:
    record_heartbeats_often(world)
    older = world.replace(OlderScheduler(world.placement))
    report_hosts(world, hosts=(report("b"),))
    world.agent.failing.add("a")
    world.becomes(world.build()[0], "active")
    wait_until(lambda: older.refused > 1)
    before = len(older.reports)

    wait_for_heartbeat_of_b(world, lambda: older.reports[before:])


class WithoutDatabase(FakeScheduler):
    """Stands for three schedulers that get messages in turn, and of which two do not reach their database."""

    def __init__(self, world: World) -> None:
        super().__init__(world.placement)
        self.sent: Counter[str] = Counter()

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> HostsRegistered:
        self.sent[message.request_id] += 1
        if self.sent[message.request_id] <= 2:
            raise errors.StoreUnavailable(schema="main", reason="silent")
        return super().report_hosts(message)


def test_heartbeats_arrive_although_two_of_three_schedulers_do_not_reach_their_database(
    world: World,
) -> None:
    record_heartbeats_often(world)
    schedulers = world.replace(WithoutDatabase(world))
    report_hosts(world, hosts=(report("b"),))

    wait_for_heartbeat_of_b(world, lambda: schedulers.reports)
    assert set(schedulers.sent.values()) <= {1, 2, 3}


# --- What the schedulers do not know ----------------------------------------------------------------------------------


class Registry(FakeScheduler):
    """Keeps the newest description of each host by its number, and reports hosts without one as unknown."""

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


def test_a_host_that_the_schedulers_do_not_know_is_requested_until_it_has_started_again(world: World) -> None:
    registry = world.replace(Registry(world))
    incarnation = ids.fresh()
    report_hosts(world, incarnation=incarnation, number=1, hosts=(report("a"), report("b")))
    wait_until(lambda: set(registry.zones) == {"a", "b"})
    del registry.zones["a"]

    numbers = itertools.count(2)
    wait_until(
        lambda: (
            report_hosts(world, incarnation=incarnation, number=next(numbers), alive=("a", "b")).undescribed == ("a",)
        )
    )

    report_hosts(world, incarnation=incarnation, number=next(numbers), hosts=(report("a"),))
    assert report_hosts(world, incarnation=incarnation, number=next(numbers), alive=("a",)).undescribed == ("a",), (
        "its providers come first"
    )
    answer = report_hosts(world, incarnation=incarnation, number=next(numbers), hosts=(report("a"),), started=("a",))
    assert answer.returning == ("a",)
    assert report_hosts(world, incarnation=incarnation, number=next(numbers), alive=("a",)).undescribed == ()
    world.cell_call(list_of_guests("a", answer.lives))
    wait_until(lambda: "a" in registry.zones)


def test_an_agent_of_the_previous_release_describes_all_its_hosts_when_one_is_requested(world: World) -> None:
    registry = world.replace(Registry(world))
    report_hosts(world, incarnation=None, number=1, hosts=(report("a"), report("b")))
    wait_until(lambda: set(registry.zones) == {"a", "b"})
    del registry.zones["a"]

    def is_requested() -> bool:
        try:
            report_hosts(world, incarnation=None, number=1, alive=("a", "b"))
        except errors.HostNotFound:
            return True
        return False

    wait_until(is_requested)
    report_hosts(world, incarnation=None, number=1, hosts=(report("a"), report("b")), started=("a", "b"))
    return_hosts(world, "a", "b")
    wait_until(lambda: "a" in registry.zones)
    assert not is_requested()


def test_a_cell_that_has_lost_its_records_numbers_its_descriptions_after_the_known_ones(world: World) -> None:
    registry = world.replace(Registry(world))
    registry.zones["a"] = 41, "west"

    report_hosts(world, incarnation=ids.fresh(), number=1, hosts=(report("a", "east"),))

    wait_until(lambda: registry.zones["a"] == (42, "east"), lambda: registry.zones)
