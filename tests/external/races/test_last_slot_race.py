"""Many writers at once on MariaDB: the last slots of a provider, the last moment of a consumer.

`make test` has a hundred rounds for the last slots; with DRILLS=long in the environment it is five hundred.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text
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


@pytest.fixture(scope="module", params=["READ-COMMITTED", "REPEATABLE-READ"])
def store(request: pytest.FixtureRequest, mariadb: MariaDBServer) -> Iterator[Store]:
    """A store on a server whose own default is this isolation level."""
    url = mariadb.create_database("races")
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        before = connection.scalar(text("SELECT @@GLOBAL.tx_isolation"))
        connection.execute(text(f"SET GLOBAL tx_isolation = '{request.param}'"))
    database = Database(url, "main", pool_size=THREADS + 1)
    MAIN.upgrade(database)
    yield Store(database)
    database.close()
    with admin.connect() as connection:
        connection.execute(text(f"SET GLOBAL tx_isolation = '{before}'"))
    admin.dispose()


def test_of_sixteen_writers_for_five_slots_exactly_five_succeed_in_every_round(store: Store) -> None:
    providers = hosts(store, ROUNDS)

    def put(host: str) -> Write:
        return lambda: store.put(ids.fresh(), {host: ONE})

    outcomes = race([[[put(host)] * WRITES for _ in range(THREADS)] for host in providers])

    expected = {"succeeded": ROOM, "CapacityExceeded": THREADS * WRITES - ROOM}
    assert [outcome for outcome in outcomes if outcome != expected] == []
    full = {name: amount * ROOM for name, amount in ONE.items()}
    assert [host for host in providers if store.used(host) != full] == []
    assert store.is_sound()


def test_writers_that_all_fit_all_succeed_on_the_same_two_providers_in_whatever_order(store: Store) -> None:
    first, second = hosts(store, 2, room=2 * THREADS * 50)

    def claim(*named: str) -> Write:
        return lambda: store.claim(ids.fresh(), dict.fromkeys(named, ONE))

    outcomes = race([[[claim(first, second)], [claim(second, first)]] * (THREADS // 2) for _ in range(50)])

    assert set(map(frozenset, map(Counter.items, outcomes))) == {frozenset({("succeeded", THREADS)})}
    assert store.used(first) == store.used(second) == {name: amount * THREADS * 50 for name, amount in ONE.items()}


def test_a_consumer_deleted_for_good_while_it_is_claimed_holds_nothing_whoever_was_first(store: Store) -> None:
    [host] = hosts(store, 1, room=1000)
    consumers = [ids.fresh() for _ in range(200)]

    def claim(uuid: str) -> Write:
        return lambda: store.claim(uuid, {host: ONE})

    def bury(uuid: str) -> Write:
        return lambda: store.delete(uuid, for_good=True)

    outcomes = race([[[claim(uuid)], [bury(uuid)], [claim(uuid)]] for uuid in consumers])

    # The delete always comes through; of the claims one came before it, or none did.
    assert {outcome["succeeded"] for outcome in outcomes} <= {1, 2}
    assert not {name for outcome in outcomes for name in outcome} - {
        "succeeded",
        "ConsumerDeleted",
        "ConsumerGenerationConflict",
        "ClaimContention",
    }
    assert not {holder.uuid for holder in store.audit().holders} & set(consumers)
    assert set(store.used(host).values()) == {0}
    assert store.is_sound()


def test_of_an_accepting_host_and_a_swap_to_the_next_one_only_one_wins(store: Store) -> None:
    first, second = hosts(store, 2, room=1000)
    claims = {uuid: store.claim(uuid, {first: ONE}).claim_id for uuid in (ids.fresh() for _ in range(200))}

    def accept(uuid: str) -> Write:
        return lambda: store.accept(uuid, claims[uuid], ids.fresh())

    def swap(uuid: str) -> Write:
        return lambda: store.swap(uuid, claims[uuid], {first: ONE}, {second: ONE})

    outcomes = race([[[accept(uuid)], [swap(uuid)]] for uuid in claims])

    assert {outcome["succeeded"] for outcome in outcomes} == {1}
    for uuid, claim_id in claims.items():
        found = store.consumer(uuid)
        if found.accepted_by is None:
            assert (found.claim_id != claim_id, found.root_provider_uuid) == (True, second)
        else:
            assert (found.claim_id, found.root_provider_uuid) == (claim_id, first)
    assert store.is_sound()


def test_swaps_and_releases_of_one_consumer_at_once_repeat_themselves_until_one_claim_or_none_is_left(
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

    # A raw write names the generation it relies on; the others find theirs, and one of the two finds the claim gone.
    assert all(outcome["ClaimReleased"] == 1 for outcome in outcomes)
    assert not {name for outcome in outcomes for name in outcome} - {
        "succeeded",
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

    assert set(map(frozenset, map(Counter.items, outcomes))) == {frozenset({("succeeded", 4)})}
