"""Test random operations of four actors on ten servers, on six hosts of two cells.

`make test` plays three stories; with DRILLS=long in the environment it plays sixty longer ones.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from support.operations.cloud import TroublesomeCloud
from support.operations.random_aftermath import Aftermath, drifts
from support.operations.random_operations import DEEDS, HOSTS, PLAN, SERVERS, Deed, Mishaps, RandomClients

from moorage import failpoints

LONG = os.environ.get("DRILLS") == "long"
ACTORS = 4
STORIES = 60 if LONG else 3
DEEDS_EACH = 40 if LONG else 15

pytestmark = pytest.mark.timeout(3600 if LONG else 600)


def deeds() -> st.SearchStrategy[list[Deed]]:
    one = st.tuples(st.sampled_from(DEEDS), st.integers(0, SERVERS - 1), st.integers(0, HOSTS - 1))
    return st.lists(one, min_size=DEEDS_EACH, max_size=DEEDS_EACH)


@pytest.fixture(scope="module")
def mishaps() -> Iterator[Mishaps]:
    mishaps = Mishaps()
    with failpoints.observed(mishaps):
        yield mishaps


@pytest.fixture(scope="module")
def clients(mishaps: Mishaps) -> Iterator[RandomClients]:
    with TroublesomeCloud(PLAN) as cloud:
        clients = RandomClients(cloud)
        clients.furnish()
        yield clients


@given(scripts=st.lists(deeds(), min_size=ACTORS, max_size=ACTORS), seed=st.integers(0, 2**16))
@settings(
    max_examples=STORIES,
    deadline=None,
    phases=[Phase.generate],
    # A story takes seconds, and is not repeatable: it depends on the timing of four threads.
    suppress_health_check=list(HealthCheck),
    derandomize=not LONG,
    database=None,
)
def test_after_random_operations_exactly_the_servers_that_should_hold_allocations_hold_them(
    clients: RandomClients, mishaps: Mishaps, scripts: list[list[Deed]], seed: int
) -> None:
    began = time.monotonic()
    clients.begin()
    mishaps.begin(seed, rate=0.02)
    try:
        with ThreadPoolExecutor(ACTORS) as actors:
            for _ in actors.map(clients.act, scripts):
                pass
    finally:
        mishaps.end()
    after = Aftermath(clients.cloud, {clients.licences}, clients.sizes)
    after.settle()

    findings = after.findings()
    note(f"{time.monotonic() - began:.1f} s; {dict(clients.answers)}")
    assert not findings, "\n".join(findings)
    assert not drifts(clients.cloud)
    assert not after.clear()
