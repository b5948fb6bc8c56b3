"""Reshapes against writers of the same moment: claims of what moves, and consumers that change elsewhere."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from support.placement_store.builders import Store
from support.placement_store.reshape_builders import Reshaping, child

from harness.servers import MariaDBServer
from moorage import errors, ids
from moorage.db.database import Database
from placement_store.schema import MAIN

ROUNDS, CLAIMERS = 40, 4


@pytest.fixture
def store(mariadb: MariaDBServer) -> Iterator[Store]:
    database = Database(mariadb.create_database("reshape_races"), "main", pool_size=CLAIMERS + 3)
    MAIN.upgrade(database)
    store = Store(database)
    store.names.sync()
    yield store
    database.close()


def at_once(*writes: Callable[[], object]) -> list[str]:
    """Do all of these at one moment; return what came of each."""
    together = Barrier(len(writes))

    def tried(write: Callable[[], object]) -> str:
        together.wait(60)
        try:
            write()
        except errors.MoorageError as refused:
            return type(refused).__name__
        return "done"

    with ThreadPoolExecutor(len(writes)) as threads:
        return list(threads.map(tried, writes))


def test_what_is_claimed_before_a_reshape_moves_and_nothing_is_claimed_of_what_has_moved(store: Store) -> None:
    node, gpu, reshaping = store.provider("node", VGPU=100), ids.fresh(), Reshaping(store)
    new = (child("gpu", node, uuid=gpu),)
    first, lag = 0, 0.0

    def claim(uuid: str, lag: float) -> None:
        time.sleep(lag)
        store.claim(uuid, {node: {"VGPU": 2}})

    for _ in range(ROUNDS):
        uuids = [ids.fresh() for _ in range(CLAIMERS)]
        outcomes = at_once(
            lambda: reshaping.move((node, {"VGPU": 100}, "gpu"), providers=new),
            *(lambda uuid=uuid, lag=lag: claim(uuid, lag) for uuid in uuids),
        )

        assert outcomes[0] == "done"
        assert set(outcomes[1:]) <= {"done", "CapacityExceeded"}
        claimed = [uuid for uuid, outcome in zip(uuids, outcomes[1:], strict=True) if outcome == "done"]
        assert [store.held(uuid) for uuid in claimed] == [{gpu: {"VGPU": 2}}] * len(claimed)
        assert (store.get(node).inventories, store.used(gpu)) == ({}, {"VGPU": 2 * len(claimed)})
        assert store.is_sound()
        first += len(claimed)
        # Who came first on all sides begins later the next time, and so on until they meet on this machine.
        lag = lag * 1.5 + 0.001 if len(claimed) == CLAIMERS else lag * 0.8
        for uuid in claimed:
            store.delete(uuid, for_good=True)
        reshaping.move((gpu, {"VGPU": 100}, node))
    assert 0 < first < ROUNDS * CLAIMERS, "nobody has raced"


def test_consumers_that_change_elsewhere_at_the_same_moment_hold_both_changes(store: Store) -> None:
    node, pool, reshaping = store.provider("node", VGPU=8), store.provider("pool", DISK_GB=1000), Reshaping(store)
    gpu = ids.fresh()
    reshaping.move((node, {"VGPU": 1}, "gpu"), providers=(child("gpu", node, uuid=gpu),))
    reshaping.move((gpu, {"VGPU": 1}, node))
    uuids = [ids.fresh() for _ in range(CLAIMERS)]
    for uuid in uuids:
        store.claim(uuid, {node: {"VGPU": 2}, pool: {"DISK_GB": 1}})

    def grow(uuid: str) -> None:
        """Take one more of the pool, as whoever reads again what has changed under them."""
        while True:
            found = store.consumer(uuid)
            amounts = {one: dict(part.resources) for one, part in found.allocations.items()}
            amounts[pool]["DISK_GB"] += 1
            try:
                store.put(uuid, amounts, found.generation)
            except (errors.ConsumerGenerationConflict, errors.CapacityExceeded):
                continue
            return

    places = [node, gpu]
    for number in range(ROUNDS):
        source, target = places[number % 2], places[(number + 1) % 2]
        outcomes = at_once(
            lambda source=source, target=target: reshaping.move((source, {"VGPU": 8}, target)),
            *(lambda uuid=uuid: grow(uuid) for uuid in uuids),
        )
        assert set(outcomes) == {"done"}
        for uuid in uuids:
            assert store.held(uuid) == {target: {"VGPU": 2}, pool: {"DISK_GB": number + 2}}
    assert store.is_sound()
