"""Two servers of one topic and one name are refused, on both buses; one that is gone is not in the way."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from moorage import errors
from moorage.bus.bus import Bus, serves
from moorage.config import options
from moorage.messages import ListCells
from moorage.model import Cell


class Cells:
    """Answers at once, unless it is held."""

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
    """Waits for an answer of a namesake no longer than a moment."""

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
def later(conf: Any) -> Iterator[HastyBus]:
    bus = HastyBus(conf)
    yield bus
    bus.close()


def test_a_second_server_of_one_name_is_refused_and_takes_no_message(bus: Bus, later: HastyBus) -> None:
    first, second = Cells(), Cells()
    bus.server("placement", "one", [first]).start()
    with pytest.raises(errors.ServiceNameTaken, match="Another service named one answers on placement"):
        later.server("placement", "one", [second]).start()
    for _ in range(4):
        assert bus.client("placement").call(ListCells()) == []
    assert not second.asked.is_set()


def test_another_name_and_another_topic_are_not_taken(bus: Bus, later: HastyBus) -> None:
    bus.server("placement", "one", [Cells()]).start()
    later.server("placement", "two", [Cells()]).start()
    later.server("scheduler", "one", [Cells()]).start()


def test_the_name_of_a_server_that_was_stopped_is_free_at_once(bus: Bus, later: HastyBus) -> None:
    server = bus.server("placement", "one", [Cells()])
    server.start()
    server.stop()
    begun = time.monotonic()
    later.server("placement", "one", [Cells()]).start()
    assert later.client("placement", "one").call(ListCells()) == []
    assert time.monotonic() - begun < 5


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
