"""Test the traits and aggregates of providers: each set is replaced as a whole."""

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Connection, select
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.messages import DeleteResourceProvider, ListResourceProviders, SetAggregates, SetTraits
from moorage.model import ResourceProvider
from placement_store.providers import traits as provider_traits
from placement_store.schema import aggregates, resource_providers

AVX, SSE, SSD = "HW_CPU_X86_AVX2", "HW_CPU_X86_SSE42", "STORAGE_DISK_SSD"
RACK, ROOM = ids.derived("rack"), ids.derived("room")


def set_traits(store: Store, uuid: str, *traits: str, generation: int | None = None) -> ResourceProvider:
    return store.dispatcher.call(SetTraits(request_id=ids.fresh(), uuid=uuid, traits=traits, generation=generation))


def set_aggregates(store: Store, uuid: str, *uuids: str, generation: int | None = None) -> ResourceProvider:
    return store.dispatcher.call(
        SetAggregates(request_id=ids.fresh(), uuid=uuid, aggregates=uuids, generation=generation)
    )


def test_traits_are_replaced_as_a_whole_and_shown_sorted(store: Store, host: str) -> None:
    other = store.provider("other")
    set_traits(store, other, SSD)

    assert set_traits(store, host, SSE, AVX, SSE).traits == (AVX, SSE)
    assert set_traits(store, host, SSD, AVX).traits == (AVX, SSD)
    assert set_traits(store, host).traits == ()

    [listed] = store.dispatcher.call(ListResourceProviders(name="other"))
    assert listed.traits == (SSD,)


@pytest.mark.backends("mariadb")
def test_all_traits_are_read_even_if_the_database_truncates_group_concat(store: Store, host: str) -> None:
    other, plain = store.provider("other"), store.provider("plain")
    set_traits(store, host, AVX, SSE, SSD)
    set_traits(store, other, AVX, SSE, SSD)
    query = select(resource_providers.c.id, resource_providers.c.uuid)

    def read(connection: Connection, longest: int) -> dict[str, frozenset[str]]:
        known = {row.id: row.uuid for row in connection.execute(query)}
        connection.exec_driver_sql(f"SET SESSION group_concat_max_len = {longest}")
        found = provider_traits.of(connection, known)
        connection.exec_driver_sql("SET SESSION group_concat_max_len = DEFAULT")
        return {known[id_]: names for id_, names in found.items()}

    # The text is cut within a number, before and after a comma, at the end, and not at all.
    for longest in (*range(4, 16), 1024):
        found = store.database.read(partial(read, longest=longest))
        assert found == {host: {AVX, SSE, SSD}, other: {AVX, SSE, SSD}}
        assert found[host] is found[other]
        assert plain not in found


def test_traits_bump_the_generation_only_if_they_change(store: Store, host: str) -> None:
    assert set_traits(store, host, AVX).generation == 2
    before, changes = store.seq(host), store.changes()

    assert set_traits(store, host, AVX, generation=2).generation == 2

    assert (store.seq(host), store.changes()) == (before, changes)
    assert set_traits(store, host).generation == 3
    assert (store.seq(host), store.changes()) == (before + 1, changes + 1)
    assert set_traits(store, host).generation == 3


def test_aggregates_are_created_when_first_named_and_are_shared(store: Store, host: str) -> None:
    other = store.provider("other")

    assert set_aggregates(store, host, ROOM, RACK).aggregates == tuple(sorted([RACK, ROOM]))
    assert set_aggregates(store, other, RACK).aggregates == (RACK,)
    assert set_aggregates(store, host, ROOM).aggregates == (ROOM,)

    assert store.get(other).aggregates == (RACK,)
    found = store.database.read(lambda connection: connection.scalars(select(aggregates.c.uuid)).all())
    assert sorted(found) == sorted([RACK, ROOM])


def test_aggregates_always_bump_the_generation_as_in_placement(store: Store, host: str) -> None:
    before, changes = store.seq(host), store.changes()

    assert [set_aggregates(store, host, RACK).generation for _ in range(2)] == [2, 3]

    assert (store.seq(host), store.changes()) == (before + 2, changes + 2)


@pytest.mark.parametrize("write", [set_traits, set_aggregates])
def test_neither_is_written_with_a_stale_generation_or_to_a_missing_provider(
    store: Store, host: str, write: Callable[..., ResourceProvider]
) -> None:
    with pytest.raises(errors.ProviderGenerationConflict) as caught:
        write(store, host, generation=0)
    assert (caught.value.named, caught.value.found) == (0, 1)
    with pytest.raises(errors.ProviderNotFound):
        write(store, ids.fresh())


def test_a_provider_created_again_has_no_traits_and_aggregates(store: Store) -> None:
    uuid = store.provider("host")
    set_traits(store, uuid, AVX)
    set_aggregates(store, uuid, RACK)
    store.dispatcher.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=uuid))

    store.provider("host", uuid)

    assert (store.get(uuid).traits, store.get(uuid).aggregates) == ((), ())
