"""Test random operations on servers over a bus that delivers calls twice, late, or not at all.

`make test` plays two stories; with DRILLS=long in the environment it plays forty longer ones. A story depends on the
seed in the name of its test: to repeat a story, select the test by name.
"""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.bus.deliveries import observed
from support.bus.disordered_bus import Disorder
from support.operations.cloud import TroublesomeCloud
from support.operations.random_aftermath import Aftermath, drifts
from support.operations.random_operations import DEEDS, HOSTS, PLAN, SERVERS, Deed, RandomClients

from moorage.messages.wire import Mutation

LONG = os.environ.get("DRILLS") == "long"
ACTORS = 4
SEEDS = range(1, 41 if LONG else 3)
DEEDS_EACH = 40 if LONG else 15

pytestmark = pytest.mark.timeout(3600 if LONG else 600)


class ImpatientClients(RandomClients):
    """Clients that try some orders only once: such an order may be carried out late, after later orders."""

    dice = random.Random()

    def order(self, message: Mutation[Any]) -> Any:
        if self.dice.random() < 0.3:
            return self.cloud.client("conductor").call(message)
        return super().order(message)


@pytest.fixture(scope="module")
def disorder() -> Disorder:
    return Disorder()


@pytest.fixture(scope="module")
def clients(disorder: Disorder) -> Iterator[ImpatientClients]:
    with TroublesomeCloud(PLAN) as cloud, observed(cloud.conf, cloud.transport_url, disorder):
        clients = ImpatientClients(cloud)
        clients.furnish()
        yield clients


def script(dice: random.Random) -> list[Deed]:
    return [(dice.choice(DEEDS), dice.randrange(SERVERS), dice.randrange(HOSTS)) for _ in range(DEEDS_EACH)]


@pytest.mark.parametrize("seed", SEEDS)
def test_allocations_and_guests_are_correct_although_calls_are_delivered_late_twice_or_not_at_all(
    clients: ImpatientClients, disorder: Disorder, seed: int
) -> None:
    dice = clients.dice = random.Random(seed)
    scripts = [script(dice) for _ in range(ACTORS)]
    after, before = Aftermath(clients.cloud, {clients.licences}, clients.sizes), disorder.done.total()
    clients.begin()
    disorder.begin(seed)
    try:
        with ThreadPoolExecutor(ACTORS) as actors:
            for _ in actors.map(clients.act, scripts):
                pass
        disorder.calm()
        # Calls that are delivered later find that everything has ended.
        after.settle()
    finally:
        faults = disorder.end()
    assert not faults, "\n".join(faults)
    assert disorder.done.total() > before + DEEDS_EACH

    after.settle()
    findings = after.findings()
    assert not findings, "\n".join(findings)
    assert not drifts(clients.cloud)
    assert not after.clear()
