"""Test which hosts the zone of a simulation may have, by what was answered to the operators."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.simulation.clients.zones import VIEW_AGE, Zones
from harness.simulation.machine.kernel import KERNEL
from harness.simulation.story import Action
from moorage import ids

#: The choices of an action that lead to the zone and to another aggregate.
IN_ZONE, ELSEWHERE = 0, 32


@dataclass
class AnsweredCallers:
    """Callers whose requests are all accepted."""

    sent: set[str] = field(default_factory=set)

    def again(self, ask: Callable[[], object]) -> None:
        ask()

    def send(self, _topic: str, message: Any) -> None:
        self.sent.add(message.request_id)

    def is_first(self, message: Any) -> bool:
        return message.request_id not in self.sent

    def host_of(self, _action: Action) -> str:
        return "host"

    def request_id(self, action: Action) -> str:
        return ids.derived("request", action.number)


@pytest.fixture
def zones() -> Zones:
    KERNEL.reset("test")
    return Zones(AnsweredCallers())  # type: ignore[arg-type]


def do(zones: Zones, number: int, kind: str, choice: int) -> None:
    zones.methods[kind](Action(number, kind, 0, choice, 0.0))


def test_a_host_that_was_removed_is_not_in_the_zone_any_more_whatever_else_it_was_added_to(zones: Zones) -> None:
    do(zones, 1, "add to aggregate", ELSEWHERE)
    do(zones, 2, "add to aggregate", IN_ZONE)
    KERNEL.sleep(1.0)
    assert zones.may_have("host", KERNEL.now)
    do(zones, 3, "remove from aggregate", IN_ZONE)
    KERNEL.sleep(2 * VIEW_AGE)
    assert not zones.may_have("host", KERNEL.now)
