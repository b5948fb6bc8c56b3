"""Test simultaneous writes of allocations over HTTP: each is written or refused as if it were alone."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, func, select
from support.databases.statements import executed
from support.placement_store.builders import Store, at_once, http_put

from moorage import errors, ids
from moorage.db.shared_transactions import Alone
from moorage.model import Inventory
from placement_store.claims import put as puts
from placement_store.claims.put import Put
from placement_store.schema import requests

SMALL, LARGE = {"VCPU": 2}, {"VCPU": 3}


def together(store: Store, *sent: tuple[str, Put]) -> list[Any]:
    """Write these in one transaction; return None for each put that was written, otherwise the type of its outcome."""
    outcomes = store.database.write(lambda connection: puts.write_each(connection, sent, store.names))
    return [None if outcome is None else type(outcome) for outcome in outcomes]


def each_at_once(store: Store, sent: Sequence[tuple[str, Put]]) -> list[str]:
    """Write these concurrently, as the API does."""

    def write_each(connection: Connection, values: Sequence[tuple[str, Put]]) -> Sequence[Exception | None]:
        return puts.write_each(connection, values, store.names)

    write = store.dispatcher.unnamed_together(write_each, "test")
    return at_once(*(partial(write, one) for one in sent))


def test_each_put_of_a_shared_transaction_is_written_or_refused_separately(store: Store, host: str) -> None:
    new, held, stale, elsewhere, odd = (ids.fresh() for _ in range(5))
    together(store, (held, http_put({host: SMALL})), (stale, http_put({host: SMALL})))

    outcomes = together(
        store,
        (new, http_put({host: SMALL})),
        (stale, http_put({host: LARGE}, 7)),
        (elsewhere, http_put({ids.fresh(): SMALL})),
        (held, http_put({host: {"VCPU": 2, "MEMORY_MB": 5}}, 1)),
        (odd, http_put({host: {"CUSTOM_UNKNOWN": 1}})),
        (ids.fresh(), http_put({})),
    )

    refused = [errors.ConsumerGenerationConflict, errors.ProviderNotFound, errors.ResourceClassNotFound]
    assert outcomes == [None, refused[0], refused[1], None, refused[2], None]
    assert [store.held(uuid)[host] for uuid in (new, held, stale)] == [SMALL, {"VCPU": 2, "MEMORY_MB": 5}, SMALL]
    assert [store.consumer(uuid).generation for uuid in (new, held, stale)] == [1, 2, 1]
    assert store.used(host) == {"VCPU": 6, "MEMORY_MB": 5}
    assert store.is_sound()


def test_the_second_put_of_the_same_consumer_is_written_alone(store: Store, host: str) -> None:
    uuid = ids.fresh()

    assert together(store, (uuid, http_put({host: SMALL})), (uuid, http_put({host: LARGE}))) == [None, Alone]
    assert store.held(uuid) == {host: SMALL}


def test_the_second_put_of_a_consumer_may_name_a_host_that_no_first_put_names(store: Store, host: str) -> None:
    uuid, other = ids.fresh(), store.provider(VCPU=2)

    assert together(store, (uuid, http_put({host: SMALL})), (uuid, http_put({other: SMALL}))) == [None, Alone]


def test_a_simultaneous_release_makes_no_room_on_an_over_committed_host(store: Store, host: str) -> None:
    leaving, new = ids.fresh(), ids.fresh()
    together(store, (leaving, http_put({host: LARGE})), (ids.fresh(), http_put({host: LARGE})))
    store.set_inventories(host, store.generation(host), VCPU=1, MEMORY_MB=8192)

    assert together(store, (leaving, http_put({}, 1)), (new, http_put({host: SMALL}))) == [None, Alone]
    with pytest.raises(errors.CapacityExceeded):
        together(store, (new, http_put({host: SMALL})))
    assert store.used(host)["VCPU"] == 3


def test_two_simultaneous_puts_do_not_exchange_full_hosts(store: Store) -> None:
    hosts = [store.provider(VCPU=2), store.provider(VCPU=2)]
    uuids = [ids.fresh(), ids.fresh()]
    together(store, *((uuid, http_put({host: SMALL})) for uuid, host in zip(uuids, hosts, strict=True)))

    # Each put alone is refused; only their sums would fit.
    changes = [(uuid, http_put({host: SMALL}, 1)) for uuid, host in zip(uuids, reversed(hosts), strict=True)]
    with pytest.raises(errors.CapacityExceeded):
        together(store, *changes)
    assert each_at_once(store, changes) == ["CapacityExceeded"] * 2


def test_a_release_makes_no_room_for_an_earlier_put_beside_a_put_on_another_host(store: Store) -> None:
    host, other = store.provider(VCPU=3), store.provider(VCPU=3)
    held, new = ids.fresh(), ids.fresh()
    together(store, (held, http_put({host: LARGE})))

    with pytest.raises(errors.CapacityExceeded):
        together(
            store,
            (new, http_put({host: {"VCPU": 1}})),
            (ids.fresh(), http_put({other: SMALL})),
            (held, http_put({host: SMALL}, 1)),
        )
    assert store.held(held) == {host: LARGE}


def test_simultaneous_puts_fill_hosts_exactly(store: Store) -> None:
    hosts = [store.provider(VCPU=Inventory(total=5, max_unit=2)) for _ in range(2)]
    sent = [(ids.fresh(), http_put({hosts[n % 2]: {"VCPU": 1}})) for n in range(16)]

    outcomes = each_at_once(store, sent)

    assert Counter(outcomes) == {"done": 10, "CapacityExceeded": 6}
    written = [uuid for (uuid, _), outcome in zip(sent, outcomes, strict=True) if outcome == "done"]
    assert all(store.consumer(uuid).generation == 1 for uuid in written)
    assert [store.used(host)["VCPU"] for host in hosts] == [5, 5]
    assert store.is_sound()


def test_a_transaction_without_writes_is_not_committed(store: Store) -> None:
    assert each_at_once(store, [(ids.fresh(), http_put({ids.fresh(): SMALL}))]) == ["ProviderNotFound"]
    assert store.scalar(select(func.count()).select_from(requests).where(requests.c.method == "http")) == 0


def test_eight_puts_in_one_transaction_cost_one_statement_more_than_one_put(store: Store) -> None:
    hosts = [store.provider(VCPU=8) for _ in range(8)]
    counts = []
    for some in (hosts[:1], hosts):
        with executed(store.database) as statements:
            together(store, *((ids.fresh(), http_put({host: SMALL})) for host in some))
        counts.append(len(statements))

    assert counts == [6, 7]
