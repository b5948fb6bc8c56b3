"""Concurrent writers on MariaDB: claims for the last slots of a provider, and for one consumer.

`make test` runs a hundred rounds for the last slots; with DRILLS=long in the environment it runs five hundred.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import Store
from support.placement_store.races import ONE, ROOM, Write, hosts, race

from harness.servers import MariaDBServer
from moorage import ids
from moorage.db.database import Database
from moorage.messages import ReportProviders
from moorage.model import Inventory, ProviderReport
from placement_store.schema import MAIN

ROUNDS = 500 if os.environ.get("DRILLS") == "long" else 100
THREADS, WRITES = 8, 2


@pytest.fixture(scope="module")
def store(isolated_mariadb: MariaDBServer, migrated_mariadb: OnMariaDB) -> Iterator[Store]:
    database = Database(migrated_mariadb.url(MAIN), "main", pool_size=THREADS + 1)
    yield Store(database)
    database.close()


def test_of_sixteen_writers_for_five_slots_exactly_five_succeed_in_every_round(store: Store) -> None:
    providers = hosts(store, ROUNDS)

    def put(host: str) -> Write:
        return lambda: store.put(ids.fresh(), {host: ONE})

    outcomes = race([[[put(host)] * WRITES for _ in range(THREADS)] for host in providers])

    expected = {"done": ROOM, "CapacityExceeded": THREADS * WRITES - ROOM}
    assert [outcome for outcome in outcomes if outcome != expected] == []
    full = {name: amount * ROOM for name, amount in ONE.items()}
    assert [host for host in providers if store.used(host) != full] == []
    assert store.is_sound()


def test_writers_that_all_fit_on_the_same_two_providers_all_succeed_in_any_order_of_the_providers(store: Store) -> None:
    first, second = hosts(store, 2, room=2 * THREADS * 50)

    def claim(*named: str) -> Write:
        return lambda: store.claim(ids.fresh(), dict.fromkeys(named, ONE))

    outcomes = race([[[claim(first, second)], [claim(second, first)]] * (THREADS // 2) for _ in range(50)])

    assert set(map(frozenset, map(Counter.items, outcomes))) == {frozenset({("done", THREADS)})}
    assert store.used(first) == store.used(second) == {name: amount * THREADS * 50 for name, amount in ONE.items()}


def test_a_consumer_deleted_for_good_while_it_is_claimed_holds_nothing(store: Store) -> None:
    [host] = hosts(store, 1, room=1000)
    consumers = [ids.fresh() for _ in range(200)]

    def claim(uuid: str) -> Write:
        return lambda: store.claim(uuid, {host: ONE})

    def delete_for_good(uuid: str) -> Write:
        return lambda: store.delete(uuid, for_good=True)

    outcomes = race([[[claim(uuid)], [delete_for_good(uuid)], [claim(uuid)]] for uuid in consumers])

    # The delete always succeeds. At most one claim succeeds: one before the delete.
    assert {outcome["done"] for outcome in outcomes} <= {1, 2}
    assert not {name for outcome in outcomes for name in outcome} - {
        "done",
        "ConsumerDeleted",
        "ConsumerGenerationConflict",
        "ClaimContention",
    }
    assert not {holder.uuid for holder in store.audit().holders} & set(consumers)
    assert set(store.used(host).values()) == {0}
    assert store.is_sound()


def test_of_an_acceptance_and_a_swap_to_the_next_host_exactly_one_succeeds(store: Store) -> None:
    first, second = hosts(store, 2, room=1000)
    claims = {uuid: store.claim(uuid, {first: ONE}).claim_id for uuid in (ids.fresh() for _ in range(200))}

    def accept(uuid: str) -> Write:
        return lambda: store.accept(uuid, claims[uuid], ids.fresh())

    def swap(uuid: str) -> Write:
        return lambda: store.swap(uuid, claims[uuid], {first: ONE}, {second: ONE})

    outcomes = race([[[accept(uuid)], [swap(uuid)]] for uuid in claims])

    assert {outcome["done"] for outcome in outcomes} == {1}
    for uuid, claim_id in claims.items():
        found = store.consumer(uuid)
        if found.accepted_by is None:
            assert (found.claim_id != claim_id, found.root_provider_uuid) == (True, second)
        else:
            assert (found.claim_id, found.root_provider_uuid) == (claim_id, first)
    assert store.is_sound()


def test_concurrent_swaps_and_releases_of_one_consumer_are_repeated_until_one_claim_or_none_is_left(
    store: Store,
) -> None:
    first, second = hosts(store, 2, room=1000)
    claims = {uuid: store.claim(uuid, {first: ONE}).claim_id for uuid in (ids.fresh() for _ in range(100))}

    def swap(uuid: str) -> Write:
        return lambda: store.swap(uuid, claims[uuid], {first: ONE}, {second: ONE})

    def release(uuid: str) -> Write:
        return lambda: store.delete(uuid, claim_id=claims[uuid])

    def grow(uuid: str) -> Write:
        extra = {first: {**ONE, "VCPU": 9}}
        return lambda: store.put(uuid, extra, 1)

    outcomes = race([[[swap(uuid)], [release(uuid)], [grow(uuid)]] for uuid in claims])

    # Only the put names a generation. Of the swap and the release, the second one finds the claim released.
    assert all(outcome["ClaimReleased"] == 1 for outcome in outcomes)
    assert not {name for outcome in outcomes for name in outcome} - {
        "done",
        "ClaimReleased",
        "ConsumerGenerationConflict",
    }
    assert store.is_sound()


def test_the_same_report_from_two_conductors_at_once_creates_each_provider_once(store: Store) -> None:
    rounds = []
    for _ in range(20):
        reports = tuple(
            ProviderReport(uuid=uuid, name=uuid, inventories={"CUSTOM_A": Inventory(total=1)})
            for uuid in (ids.fresh() for _ in range(20))
        )
        message = [ReportProviders(request_id=ids.fresh(), providers=reports) for _ in range(4)]
        rounds.append([[lambda one=one: store.dispatcher.call(one)] for one in message])

    outcomes = race(rounds)

    assert set(map(frozenset, map(Counter.items, outcomes))) == {frozenset({("done", 4)})}
