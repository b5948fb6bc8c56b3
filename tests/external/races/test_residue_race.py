"""The last moment of a claim on MariaDB: accepted, released, revoked and reported gone, all at once.

`make test` has fifty rounds of each; with DRILLS=long in the environment it is two hundred.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.db.database import Database
from moorage.service.stored_requests import Retention
from placement_store.schema import MAIN
from placement_store.upkeep.pruning import Pruning

ROUNDS = 200 if os.environ.get("DRILLS") == "long" else 50
ONE = {"VCPU": 2, "MEMORY_MB": 512}


@pytest.fixture
def store(mariadb_url: str) -> Iterator[Store]:
    database = Database(mariadb_url, "main")
    MAIN.upgrade(database)
    yield Store(database)
    database.close()


@pytest.fixture
def hosts(store: Store) -> tuple[str, str]:
    first, second = (store.provider(VCPU=2000, MEMORY_MB=512000) for _ in range(2))
    return first, second


def at_once(*writes: Callable[[], object]) -> list[str]:
    """Run these writes, each in a thread of its own; return what came of each."""

    def tried(write: Callable[[], object]) -> str:
        try:
            write()
        except errors.MoorageError as refused:
            return type(refused).__name__
        return "succeeded"

    with ThreadPoolExecutor(len(writes)) as threads:
        return list(threads.map(tried, writes))


def test_a_claim_given_up_while_it_is_accepted_and_its_guest_reported_gone_is_held_by_one_of_two_or_nobody(
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
            lambda uuid=uuid, claim_id=claim_id, attempt=attempt: store.accept(uuid, claim_id, attempt),
            lambda uuid=uuid, claim_id=claim_id: store.swap(
                uuid, claim_id, {first: ONE}, {second: ONE}, leave_residue=True
            ),
            lambda attempt=attempt: store.delete(attempt, for_good=True),
        )
        outcomes[tuple(outcome)] += 1
        assert store.held(uuid) == {second: ONE}

    # The host may come too late; the other two always come through, whatever they meet.
    assert {outcome[1:] for outcome in outcomes} == {("succeeded", "succeeded")}
    assert {outcome[0] for outcome in outcomes} <= {"succeeded", "ClaimReleased"}
    assert set(store.used(first).values()) == {0}
    assert store.is_sound()


def test_of_an_accepting_host_and_a_release_of_the_unaccepted_exactly_one_wins(
    store: Store, hosts: tuple[str, str]
) -> None:
    first, _ = hosts
    for _ in range(ROUNDS):
        uuid, attempt = ids.fresh(), ids.fresh()
        claim_id = store.claim(uuid, {first: ONE}).claim_id
        outcome = at_once(
            lambda uuid=uuid, claim_id=claim_id, attempt=attempt: store.accept(uuid, claim_id, attempt),
            lambda uuid=uuid, claim_id=claim_id: store.delete(uuid, claim_id=claim_id, unaccepted=True),
        )
        assert outcome in (["succeeded", "InvalidState"], ["ClaimReleased", "succeeded"])
        found = store.consumer(uuid)
        assert (found.accepted_by == attempt) == bool(found.allocations) == (outcome[0] == "succeeded")
    assert store.is_sound()


def test_an_instance_deleted_while_its_claim_moves_on_leaves_residues_alone(
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
            lambda uuid=uuid, claim_id=claim_id: store.swap(
                uuid, claim_id, {first: ONE}, {second: ONE}, leave_residue=True
            ),
            lambda uuid=uuid: store.delete(uuid, for_good=True, leave_residue=True),
        )
        assert (moved, deleted) in (("succeeded", "succeeded"), ("ClaimReleased", "succeeded"))
    assert {holder.uuid for holder in store.audit().holders} == set(attempts)
    assert set(store.used(second).values()) == {0}
    assert store.used(first) == {name: amount * ROUNDS for name, amount in ONE.items()}
    for attempt in attempts:
        store.delete(attempt, for_good=True)
    assert store.rows() == {}


def test_pruning_by_several_at_once_is_in_nobodys_way(store: Store, hosts: tuple[str, str]) -> None:
    pruning = Pruning(store.database, Retention(acknowledged=0.0, unacknowledged=0.0, tombstones=0.0))

    def prune() -> None:
        for _ in range(20):
            pruning.round()

    def write() -> None:
        for _ in range(100):
            uuid = ids.fresh()
            store.put(uuid, {hosts[0]: ONE})
            store.delete(uuid, for_good=True)

    assert at_once(prune, write, prune, write, write) == ["succeeded"] * 5
    assert store.rows() == {}
    assert store.is_sound()
