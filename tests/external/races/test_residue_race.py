"""Concurrent acceptances, releases, swaps and deletions of one claim, on MariaDB.

`make test` runs fifty rounds of each test; with DRILLS=long in the environment it runs two hundred.
"""

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import Store, at_once

from moorage import ids
from moorage.db.database import Database
from moorage.service.stored_requests import Retention
from placement_store.schema import MAIN
from placement_store.upkeep.pruning import Pruning

ROUNDS = 200 if os.environ.get("DRILLS") == "long" else 50
ONE = {"VCPU": 2, "MEMORY_MB": 512}


@pytest.fixture
def store(migrated_mariadb: OnMariaDB) -> Iterator[Store]:
    database = Database(migrated_mariadb.url(MAIN), "main")
    yield Store(database)
    database.close()


@pytest.fixture
def hosts(store: Store) -> tuple[str, str]:
    first, second = (store.provider(VCPU=2000, MEMORY_MB=512000) for _ in range(2))
    return first, second


def test_a_claim_swapped_while_it_is_accepted_and_its_guest_reported_gone_leaves_nothing_on_the_first_host(
    store: Store, hosts: tuple[str, str]
) -> None:
    first, second = hosts
    outcomes: Counter[tuple[str, ...]] = Counter()
    for number in range(ROUNDS):
        uuid, attempt = ids.fresh(), ids.fresh()
        claim_id = store.claim(uuid, {first: ONE}).claim_id
        if number % 2:
            store.accept(uuid, claim_id, attempt)
        outcome = at_once(
            partial(store.accept, uuid, claim_id, attempt),
            partial(store.swap, uuid, claim_id, {first: ONE}, {second: ONE}, leave_residue=True),
            partial(store.delete, attempt, for_good=True),
        )
        outcomes[tuple(outcome)] += 1
        assert store.held(uuid) == {second: ONE}

    # The acceptance may be too late; the other two writes always succeed.
    assert {outcome[1:] for outcome in outcomes} == {("done", "done")}
    assert {outcome[0] for outcome in outcomes} <= {"done", "ClaimReleased"}
    assert set(store.used(first).values()) == {0}
    assert store.is_sound()


def test_of_an_acceptance_and_a_release_of_an_unaccepted_claim_exactly_one_succeeds(
    store: Store, hosts: tuple[str, str]
) -> None:
    first, _ = hosts
    for _ in range(ROUNDS):
        uuid, attempt = ids.fresh(), ids.fresh()
        claim_id = store.claim(uuid, {first: ONE}).claim_id
        outcome = at_once(
            partial(store.accept, uuid, claim_id, attempt),
            partial(store.delete, uuid, claim_id=claim_id, unaccepted=True),
        )
        assert outcome in (["done", "InvalidState"], ["ClaimReleased", "done"])
        found = store.consumer(uuid)
        assert (found.accepted_by == attempt) == bool(found.allocations) == (outcome[0] == "done")
    assert store.is_sound()


def test_an_instance_deleted_while_its_claim_is_swapped_leaves_only_residues(
    store: Store, hosts: tuple[str, str]
) -> None:
    first, second = hosts
    attempts = []
    for _ in range(ROUNDS):
        uuid, attempt = ids.fresh(), ids.fresh()
        attempts.append(attempt)
        claim_id = store.claim(uuid, {first: ONE}).claim_id
        store.accept(uuid, claim_id, attempt)
        moved, deleted = at_once(
            partial(store.swap, uuid, claim_id, {first: ONE}, {second: ONE}, leave_residue=True),
            partial(store.delete, uuid, for_good=True, leave_residue=True),
        )
        assert (moved, deleted) in (("done", "done"), ("ClaimReleased", "done"))
    assert {holder.uuid for holder in store.audit().holders} == set(attempts)
    assert set(store.used(second).values()) == {0}
    assert store.used(first) == {name: amount * ROUNDS for name, amount in ONE.items()}
    for attempt in attempts:
        store.delete(attempt, for_good=True)
    assert store.rows() == {}


def test_concurrent_prunings_do_not_disturb_writers_or_each_other(store: Store, hosts: tuple[str, str]) -> None:
    pruning = Pruning(store.database, Retention(acknowledged=0.0, unacknowledged=0.0, tombstones=0.0))

    def prune() -> None:
        for _ in range(20):
            pruning.round()

    def write() -> None:
        for _ in range(100):
            uuid = ids.fresh()
            store.put(uuid, {hosts[0]: ONE})
            store.delete(uuid, for_good=True)

    assert at_once(prune, write, prune, write, write) == ["done"] * 5
    assert store.rows() == {}
    assert store.is_sound()
