"""Test moves whose destination is swapped: a common pool is counted once, and the move can still be reverted."""

import pytest
from support.placement_store.builders import Store, request
from support.placement_store.move_builders import FREE, LARGE, SMALL, Moving, disk

from moorage import errors, ids
from moorage.model.allocations import amounts_of

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")


@pytest.fixture
def hosts(store: Store) -> list[str]:
    """A source and two destinations."""
    return [store.provider(name, VCPU=8, MEMORY_MB=8192) for name in ("source", "first", "second")]


@pytest.fixture
def pools(store: Store) -> list[str]:
    return [store.provider(name, DISK_GB=100) for name in ("pool", "other pool")]


@pytest.fixture
def i1(store: Store, hosts: list[str], pools: list[str]) -> Moving:
    return Moving(store, {hosts[0]: SMALL, **disk(pools[0], 50)}).build()


def test_a_swap_to_the_next_destination_leaves_the_source_with_the_migration(
    store: Store, hosts: list[str], pools: list[str], i1: Moving
) -> None:
    source, first, second = hosts
    before = i1.begin({first: SMALL, **disk(pools[0], 50)})

    swapped = i1.swap({second: SMALL, **disk(pools[0], 50)})

    assert (i1.amounts, i1.migrations) == ({second: SMALL, **disk(pools[0], 50)}, {source: SMALL})
    assert swapped.claim_id != before.claim_id
    assert store.consumer(i1.uuid).root_provider_uuid == second
    assert (store.used(first), store.used(pools[0])) == (FREE, {"DISK_GB": 50})
    i1.revert()
    assert i1.amounts == i1.held
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
@pytest.mark.parametrize("news", [(20, 70), (70, 20), (0, 30), (30, 0), (0, 0)])
def test_the_larger_of_the_old_and_the_new_pool_amount_is_held_until_the_exact_end(
    store: Store, hosts: list[str], pools: list[str], i1: Moving, news: tuple[int, int], outcome: str
) -> None:
    """A new size of 0 stands for a destination that uses another pool."""
    source, *destinations = hosts
    pool, other = pools
    for number, new in enumerate(news):
        claimed = {destinations[number]: LARGE, **(disk(pool, new) if new else disk(other, 5))}
        (i1.swap if number else i1.begin)(claimed)
        assert i1.amounts == {destinations[number]: LARGE, **(disk(pool, max(50, new)) if new else disk(other, 5))}
        assert i1.migrations == ({source: SMALL} if new else {source: SMALL, **disk(pool, 50)})

    store.dispatcher.call(i1.ending(outcome, guest_gone=True))

    assert i1.amounts == (i1.claimed if outcome == "confirm" else i1.held)
    assert store.is_sound()
    store.delete(i1.uuid, for_good=True)
    assert store.rows() == {}


def test_foreign_amounts_on_a_pool_go_to_the_migration_while_the_pool_is_not_used(
    store: Store, hosts: list[str], pools: list[str], i1: Moving
) -> None:
    source, first, second = hosts
    pool, other = pools
    i1.begin({first: SMALL, **disk(pool, 50)})
    i1.generation = store.put(i1.uuid, {first: {"VCPU": 3, "MEMORY_MB": 2048}, **disk(pool, 60)}, i1.generation)

    swapped = i1.swap({second: SMALL, **disk(other, 50)})

    assert amounts_of(swapped.extras) == {first: {"VCPU": 1}}
    assert (i1.amounts, i1.migrations) == ({second: SMALL, **disk(other, 50)}, {source: SMALL, **disk(pool, 60)})
    store.put(i1.uuid, {second: SMALL, **disk(other, 55)}, i1.generation)
    i1.swap({first: SMALL, **disk(pool, 30)})
    assert i1.amounts == {first: SMALL, **disk(pool, 60)}
    assert i1.migrations == {source: SMALL, **disk(other, 5)}
    i1.confirm()
    assert i1.amounts == {first: SMALL, **disk(pool, 40)}


def test_a_swap_away_from_the_source_host_leaves_the_old_size_with_the_migration(
    store: Store, hosts: list[str], i1: Moving, pools: list[str]
) -> None:
    source, first, _ = hosts
    more = {source: {"VCPU": 3, "MEMORY_MB": 2048}, **disk(pools[0], 50)}
    i1.generation = store.put(i1.uuid, more, 1)
    i1.begin({source: LARGE, **disk(pools[0], 50)}, kind="resize")
    assert i1.amounts[source] == {"VCPU": 5, "MEMORY_MB": 4096}

    i1.swap({first: LARGE, **disk(pools[0], 50)})

    assert (i1.amounts, i1.migrations) == ({first: LARGE, **disk(pools[0], 50)}, {source: more[source]})
    i1.swap({source: LARGE, **disk(pools[0], 50)})
    assert i1.amounts[source] == {"VCPU": 5, "MEMORY_MB": 4096}
    assert i1.migrations == {source: SMALL}
    i1.revert()
    assert i1.amounts == more


def test_a_swap_from_an_accepted_destination_leaves_a_residue_and_keeps_the_migration(
    store: Store, hosts: list[str], i1: Moving, pools: list[str]
) -> None:
    source, first, second = hosts
    i1.begin({first: LARGE, **disk(pools[0], 20)})
    i1.accept()
    with pytest.raises(errors.InvalidState):
        i1.swap({second: LARGE, **disk(pools[0], 20)})

    swapped = i1.swap({second: LARGE, **disk(pools[0], 20)}, leave_residue=True)

    assert swapped.residue_uuid == i1.next_attempt
    assert store.held(i1.next_attempt) == {first: LARGE}
    assert (i1.amounts, i1.migrations) == ({second: LARGE, **disk(pools[0], 50)}, {source: SMALL})
    i1.revert()
    assert i1.amounts == i1.held
    assert (store.used(first), store.used(second)) == (LARGE, FREE)


def test_a_swap_away_from_the_source_host_divides_the_amounts_between_residue_and_migration(
    store: Store, hosts: list[str], i1: Moving, pools: list[str]
) -> None:
    source, first, _ = hosts
    i1.generation = store.put(i1.uuid, {source: {"VCPU": 3, "MEMORY_MB": 2048}, **disk(pools[0], 50)}, 1)
    i1.begin({source: LARGE, **disk(pools[0], 50)}, kind="resize")
    i1.accept()

    i1.swap({first: LARGE, **disk(pools[0], 50)}, leave_residue=True)

    assert store.held(i1.next_attempt) == {source: LARGE}
    assert i1.migrations == {source: {"VCPU": 3, "MEMORY_MB": 2048}}
    assert store.used(source) == {"VCPU": 7, "MEMORY_MB": 6144}
    assert store.is_sound()


def test_a_refused_swap_changes_nothing_and_may_be_repeated(
    store: Store, hosts: list[str], i1: Moving, pools: list[str]
) -> None:
    _, first, second = hosts
    i1.begin({first: SMALL, **disk(pools[0], 50)})
    before = store.rows()
    message = store.swap_message(
        i1.uuid, i1.claim_id, i1.claimed, {second: {"VCPU": 9}}, migration_uuid=i1.migration, held=request(i1.held)
    )
    with pytest.raises(errors.CapacityExceeded):
        store.dispatcher.call(message)
    assert store.rows() == before
    for wrong in ({"held": None}, {"migration_uuid": None}):
        with pytest.raises(errors.InvalidRequest):
            i1.swap({second: SMALL}, **wrong)
    with pytest.raises(errors.ConsumerNotFound):
        i1.swap({second: SMALL}, migration_uuid=ids.fresh())
    with pytest.raises(errors.InvalidRequest):
        i1.swap({second: SMALL}, migration_uuid=i1.uuid)
    assert store.rows() == before

    store.set_inventories(second, store.generation(second), VCPU=16, MEMORY_MB=8192)
    answer = store.dispatcher.call(message)

    assert store.dispatcher.call(message) == answer
    assert i1.amounts == {second: {"VCPU": 9}}
    assert i1.migrations == i1.held
