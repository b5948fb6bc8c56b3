"""Test claims that pools of other trees serve alone, so that nothing is allocated from the host's own tree."""

import pytest
from support.placement_store.builders import Amounts, Store
from support.placement_store.move_builders import disk

from moorage import ids

pytestmark = pytest.mark.backends("memory", "sqlite", "mariadb")


@pytest.fixture
def bare(store: Store) -> str:
    """A host without inventories."""
    return store.provider("bare")


def claim(store: Store, root: str, amounts: Amounts) -> tuple[str, str]:
    uuid = ids.fresh()
    return uuid, store.claim(uuid, amounts, root=root).claim_id


def test_a_put_that_changes_what_a_pool_serves_keeps_the_claim(store: Store, bare: str, pool: str) -> None:
    other = store.provider("other", DISK_GB=100)
    uuid, claim_id = claim(store, bare, disk(pool, 5))
    store.accept(uuid, claim_id, ids.derived("attempt"))

    # A volume is attached, and the disk grows.
    store.put(uuid, {**disk(pool, 7), **disk(other, 1)}, 1)

    consumer = store.consumer(uuid)
    assert (consumer.claim_id, consumer.root_provider_uuid) == (claim_id, bare)
    assert consumer.accepted_by == ids.derived("attempt")


def test_a_put_that_leaves_nothing_of_what_was_claimed_clears_the_claim(
    store: Store, bare: str, host: str, pool: str
) -> None:
    moved, emptied, beside = (claim(store, bare, disk(pool, 5))[0] for _ in range(3))
    taken = claim(store, host, {host: {"VCPU": 1}, **disk(pool, 5)})[0]

    store.put(moved, {host: {"VCPU": 1}}, 1)
    store.put(emptied, {}, 1)
    # The host served the others itself: a pool that stays does not keep them there.
    store.put(taken, disk(pool, 5), 1)

    found = {uuid: store.consumer(uuid) for uuid in (moved, emptied, taken, beside)}
    assert [one.claim_id is None for one in found.values()] == [True, True, True, False]
    assert [one.root_provider_uuid for one in found.values()] == [None, None, None, bare]
