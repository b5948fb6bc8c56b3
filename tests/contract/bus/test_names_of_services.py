"""Test that the name of a running server of a topic cannot be used by another server, on both buses."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from support.processes.stopwatch import Stopwatch

from moorage import errors
from moorage.bus.bus import Bus, serves
from moorage.config import options
from moorage.messages import ListCells
from moorage.model import Cell


class Cells:
    """Answers at once, unless a test clears `go_on`."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked = threading.Event()

    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        self.asked.set()
        assert self.go_on.wait(20)
        return []


class HastyBus(Bus):
    """Waits only a short time for the answer of a server with the same name."""

    namesake_seconds = 0.3


@pytest.fixture
def conf(bus_url: str) -> Any:
    return options.new({"DEFAULT": {"transport_url": bus_url}})


@pytest.fixture
def bus(conf: Any) -> Iterator[Bus]:
    bus = Bus(conf)
    yield bus
    bus.close()


@pytest.fixture
def patient(conf: Any) -> Iterator[Bus]:
    bus = Bus(conf)
    yield bus
    bus.close()


@pytest.fixture
def later(conf: Any) -> Iterator[HastyBus]:
    bus = HastyBus(conf)
    yield bus
    bus.close()


def test_a_second_server_of_a_name_is_refused_and_takes_no_message(bus: Bus, patient: Bus) -> None:
    first, second = Cells(), Cells()
    bus.server("placement", "one", [first]).start()
    # Its answer shows that it is a consumer, which a server becomes shortly after its start.
    assert bus.client("placement", "one").call(ListCells()) == []
    with pytest.raises(errors.ServiceNameTaken, match="Another service named one answers on placement"):
        patient.server("placement", "one", [second]).start()
    for _ in range(4):
        assert bus.client("placement").call(ListCells()) == []
    assert not second.asked.is_set()


@pytest.mark.parametrize("name", ["one ", "one\ntwo", "\x1b[2J"])
def test_a_name_that_ends_with_a_blank_or_has_control_characters_is_refused(bus: Bus, name: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="is no name of a service: it has 1 to"):
        bus.server("placement", name, [Cells()])


class UncountedBus(HastyBus):
    """Cannot count servers, because the broker does not let its user do so."""

    def servers_of(self, topic: str, server: str | None = None) -> int | None:
        return None


@pytest.mark.parametrize("kind", [Bus, UncountedBus])
def test_of_two_servers_of_one_name_that_start_at_the_same_time_at_most_one_runs(
    conf: Any, kind: type[Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the usual number, one pair in a few thousand misses each other.
    monkeypatch.setattr("moorage.bus.bus_server._LOOKS", 25)
    with closing(kind(conf)) as bus, closing(kind(conf)) as other, closing(Bus(conf)) as asking:
        start_at_once(bus, other, asking)


def start_at_once(bus: Bus, other: Bus, asking: Bus) -> None:
    at_once = threading.Barrier(2)

    def start(on: Bus) -> bool:
        server = on.server("placement", "one", [Cells()])
        at_once.wait(10)
        try:
            server.start()
        except errors.ServiceNameTaken:
            return False
        return True

    with ThreadPoolExecutor() as threads:
        started = list(threads.map(start, [bus, other]))

    assert sum(started) <= 1
    if not any(started):
        # Each has found the other one; either may start now.
        bus.server("placement", "one", [Cells()]).start()
    assert asking.client("placement", "one").call(ListCells()) == []
    assert asking.servers_of("placement", "one") == 1


def test_another_name_and_the_same_name_on_another_topic_are_free(bus: Bus, later: HastyBus) -> None:
    bus.server("placement", "one", [Cells()]).start()
    later.server("placement", "two", [Cells()]).start()
    later.server("scheduler", "one", [Cells()]).start()


def test_the_name_of_a_server_that_was_stopped_is_free_at_once(bus: Bus, later: HastyBus) -> None:
    server = bus.server("placement", "one", [Cells()])
    server.start()
    server.stop()
    watch = Stopwatch()
    later.server("placement", "one", [Cells()]).start()
    assert later.client("placement", "one").call(ListCells()) == []
    assert watch.seconds < 5


def test_the_name_of_a_server_that_no_longer_answers_is_taken_over(bus: Bus, later: HastyBus) -> None:
    held = Cells()
    held.go_on.clear()
    bus.server("placement", "one", [held], threads=1).start()
    asking = threading.Thread(target=bus.client("placement", "one").call, args=[ListCells()])
    asking.start()
    assert held.asked.wait(10)
    try:
        later.server("placement", "one", [Cells()]).start()
    finally:
        held.go_on.set()
        asking.join()
