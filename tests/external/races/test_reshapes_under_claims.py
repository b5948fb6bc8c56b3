"""A compute node is reshaped back and forth while eight processes claim on it and one checks it, all without a pause.

`make test` reshapes it forty times; with DRILLS=long in the environment it is reshaped two hundred times.
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import Store
from support.processes import reshape_rig as rig

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import ReshapeByInstructions
from moorage.model import MoveInstruction, ReshapePlan
from placement_store.db.names import ResourceClassNames
from placement_store.dispatcher import Dispatcher
from placement_store.schema import MAIN

pytestmark = pytest.mark.timeout(600)

LONG = os.environ.get("DRILLS") == "long"
RESHAPES = 200 if LONG else 40
#: The minimum rate of claims during reshapes, as a share of the undisturbed rate. It varies more in a short run.
KEPT = 0.5 if LONG else 0.3
CLAIMERS = 8
#: The number of reshapes in a series, and the minimum seconds between two of them: the pause is at least as long as the
#: reshape. After a series, no reshape is made for an equally long time.
AT_ONCE, APART = 10, 0.1
#: The moved total, half of it for each child: more than is ever allocated, so that a distribution always exists.
VGPUS = 48


@pytest.fixture
def store(migrated_mariadb: OnMariaDB) -> Iterator[Store]:
    database = Database(migrated_mariadb.url(MAIN), "main")
    store = Store(database)
    store.names.sync()
    yield store
    database.close()


@pytest.fixture
def host(store: Store) -> rig.Host:
    root = store.provider("node", VCPU=100_000, MEMORY_MB=10_000_000, VGPU=VGPUS)
    children = tuple(store.provider(f"gpu {number}", parent=root) for number in (0, 1))
    url = store.database.url.render_as_string(hide_password=False)
    return rig.Host(url, root, children, "VGPU", store.names.id_of("VGPU"), VGPUS)


@pytest.fixture
def resting(store: Store, host: rig.Host) -> list[rig.Guest]:
    """Guests whose claims are accepted; nothing may change their amounts or claims."""
    guests = []
    for number in range(6):
        uuid, amounts = ids.fresh(), {"VCPU": 1, "VGPU": 1 + number % 2}
        guests.append(rig.Guest(uuid, store.claim(uuid, {host.root: amounts}).claim_id, amounts))
        store.accept(uuid, guests[-1].claim_id, ids.derived("attempt", uuid))
    return guests


class Reshaper:
    """Moves the whole inventory of a class from the node to its children, and back."""

    def __init__(self, store: Store, host: rig.Host) -> None:
        self.dispatcher = Dispatcher(store.database, ResourceClassNames(store.database))
        self._host = host
        self._on_root = True
        self.done: list[ReshapePlan] = []
        self.refused: list[errors.MoorageError] = []
        self.seconds = 0.0

    def reshape(self) -> float:
        """Reshape once; return the duration in seconds."""
        part = {"VGPU": self._host.total // len(self._host.children)}
        instructions = tuple(
            MoveInstruction(
                from_resource_provider=self._host.root if self._on_root else child,
                moved_resources=part,
                to_resource_provider=child if self._on_root else self._host.root,
            )
            for child in self._host.children
        )
        began = time.monotonic()
        try:
            message = ReshapeByInstructions(request_id=ids.fresh(), instructions=instructions)
            self.done.append(self.dispatcher.call(message))
            self._on_root = not self._on_root
        except errors.MoorageError as fault:
            self.refused.append(fault)
        took = time.monotonic() - began
        self.seconds += took
        return took


class Rates:
    """The rates of claims with and without reshapes, measured alternately: other work of the machine affects both."""

    def __init__(self, counters: rig.Counters) -> None:
        self._counters = counters
        self._claims = {True: 0, False: 0}
        self._seconds = {True: 0.0, False: 0.0}

    def measure(self, work: Callable[[], None], *, disturbed: bool) -> float:
        """Do ``work`` and count the claims meanwhile; return the duration in seconds."""
        began, before = time.monotonic(), self._counters.claimed.value
        work()
        took = time.monotonic() - began
        self._claims[disturbed] += self._counters.claimed.value - before
        self._seconds[disturbed] += took
        return took

    def rate(self, *, disturbed: bool) -> float:
        """Return the claims per second."""
        return self._claims[disturbed] / self._seconds[disturbed]


def reshape_again_and_again(reshaper: Reshaper, rates: Rates) -> None:
    def some() -> None:
        for _ in range(AT_ONCE):
            time.sleep(max(APART, reshaper.reshape()))

    while len(reshaper.done) + len(reshaper.refused) < RESHAPES:
        took = rates.measure(some, disturbed=True)
        rates.measure(partial(time.sleep, took), disturbed=False)


def test_claims_continue_while_a_node_is_reshaped_and_no_snapshot_has_its_inventory_twice_or_not_at_all(
    store: Store, host: rig.Host, resting: list[rig.Guest], record_property: Callable[[str, object], None]
) -> None:
    reshaper = Reshaper(store, host)
    with rig.at_work(host, resting, CLAIMERS) as counters:
        rates = Rates(counters)
        while counters.claimed.value < 10 * CLAIMERS or not counters.looked.value:
            time.sleep(0.05)
        reshape_again_and_again(reshaper, rates)
    guests, wrong = rig.results(counters, CLAIMERS + 1)

    quiet, disturbed = rates.rate(disturbed=False), rates.rate(disturbed=True)
    moved = sum(len(plan.dealt) for plan in reshaper.done)
    measured = (
        f"{len(reshaper.done)} of {RESHAPES} reshapes, {1000 * reshaper.seconds / RESHAPES:.0f} ms each, {moved} "
        f"allocations moved; {quiet:.0f} claims/s undisturbed, {disturbed:.0f} meanwhile ({disturbed / quiet:.2f}); "
        f"looked {counters.looked.value} times"
    )
    record_property("measured", measured)
    assert wrong == []
    assert len(reshaper.done) >= 0.95 * RESHAPES, (measured, reshaper.refused)
    assert disturbed >= KEPT * quiet, measured
    assert moved > RESHAPES
    assert store.is_sound()
    for guest in [*resting, *guests]:
        found = store.consumer(guest.uuid)
        held = [(name, amount) for part in found.allocations.values() for name, amount in part.resources.items()]
        assert (dict(held), len(held), found.claim_id) == (guest.amounts, len(guest.amounts), guest.claim_id)
    assert {holder.uuid for holder in store.audit().holders} == {guest.uuid for guest in [*resting, *guests]}
