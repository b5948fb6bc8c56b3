"""Reshapes concurrent with other writers: claims on the moved inventories, and changes of other allocations."""

import time
from collections.abc import Iterator
from functools import partial

import pytest
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import Store, at_once
from support.placement_store.reshape_builders import Reshaping, child

from moorage import errors, ids
from moorage.db.database import Database
from placement_store.schema import MAIN

ROUNDS, CLAIMERS = 40, 4


@pytest.fixture
def store(migrated_mariadb: OnMariaDB) -> Iterator[Store]:
    database = Database(migrated_mariadb.url(MAIN), "main", pool_size=CLAIMERS + 3)
    store = Store(database)
    store.names.sync()
    yield store
    database.close()


def test_claims_before_a_reshape_move_with_it_and_claims_after_it_are_refused(store: Store) -> None:
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
        # If all claims came before the reshape, they begin later in the next round, so that both meet on any machine.
        lag = lag * 1.5 + 0.001 if len(claimed) == CLAIMERS else lag * 0.8
        for uuid in claimed:
            store.delete(uuid, for_good=True)
        reshaping.move((gpu, {"VGPU": 100}, node))
    assert 0 < first < ROUNDS * CLAIMERS, "the claims and the reshapes must be concurrent"


def test_consumers_whose_other_allocations_change_during_a_reshape_hold_both_changes(store: Store) -> None:
    node, pool, reshaping = store.provider("node", VGPU=8), store.provider("pool", DISK_GB=1000), Reshaping(store)
    gpu = ids.fresh()
    reshaping.move((node, {"VGPU": 1}, "gpu"), providers=(child("gpu", node, uuid=gpu),))
    reshaping.move((gpu, {"VGPU": 1}, node))
    uuids = [ids.fresh() for _ in range(CLAIMERS)]
    for uuid in uuids:
        store.claim(uuid, {node: {"VGPU": 2}, pool: {"DISK_GB": 1}})

    def grow(uuid: str) -> None:
        """Take one more of the pool, and retry after a conflict."""
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
            partial(reshaping.move, (source, {"VGPU": 8}, target)),
            *(partial(grow, uuid) for uuid in uuids),
        )
        assert set(outcomes) == {"done"}
        for uuid in uuids:
            assert store.held(uuid) == {target: {"VGPU": 2}, pool: {"DISK_GB": number + 2}}
    assert store.is_sound()
