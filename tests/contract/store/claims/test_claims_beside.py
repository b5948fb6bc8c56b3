"""Test claims that are added to existing allocations of a consumer, and claims with a server group."""

import pytest
from sqlalchemy import select
from support.placement_store.builders import Amounts, Store
from support.placement_store.move_builders import SMALL

from moorage import errors, ids
from moorage.messages import Claimed
from moorage.model import ServerGroup
from placement_store.schema import consumer_groups, consumers

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")


def add_one(store: Store, uuid: str, amounts: Amounts, generation: int | None) -> Claimed:
    return store.claim_all([store.new_claim(uuid, amounts, consumer_generation=generation)], keep_held=True)[0]


@pytest.mark.backends("sqlite", "mariadb")
def test_a_claim_is_added_to_foreign_amounts_of_the_consumer(store: Store, host: str, pool: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {pool: {"DISK_GB": 5}, host: {"VCPU": 1}})
    store.register_host(host)

    answer = add_one(store, uuid, {host: SMALL, pool: {"DISK_GB": 50}}, 1)

    assert store.held(uuid) == {host: {"VCPU": 3, "MEMORY_MB": 2048}, pool: {"DISK_GB": 55}}
    found = store.consumer(uuid)
    assert (found.claim_id, found.root_provider_uuid, found.generation) == (answer.claim_id, host, 2)
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
def test_a_claim_is_not_added_to_a_consumer_that_is_placed_already(store: Store, host: str) -> None:
    other, uuid, claimed = store.provider("other", VCPU=8), ids.fresh(), ids.fresh()
    store.register_host(other)
    child = store.provider("child", parent=other, CUSTOM_NIC=4)
    store.put(uuid, {child: {"CUSTOM_NIC": 1}})
    store.claim(claimed, {host: SMALL})
    before = store.rows()

    for consumer in (uuid, claimed):
        with pytest.raises(errors.ConsumerGenerationConflict) as caught:
            add_one(store, consumer, {host: SMALL}, 1)
        assert (caught.value.named, caught.value.found) == (1, 1)

    assert store.rows() == before
    add_one(store, uuid, {other: {"VCPU": 1}}, 1)
    assert store.held(uuid) == {other: {"VCPU": 1}, child: {"CUSTOM_NIC": 1}}


def test_a_claim_beside_allocations_names_the_generation_of_an_existing_consumer(
    store: Store, host: str, pool: str
) -> None:
    uuid, new = ids.fresh(), ids.fresh()
    store.put(uuid, {pool: {"DISK_GB": 5}})
    for named in (None, 2):
        with pytest.raises(errors.ConsumerGenerationConflict):
            add_one(store, uuid, {host: SMALL}, named)
    both = [store.new_claim(new, {host: SMALL}), store.new_claim(uuid, {host: SMALL}, consumer_generation=1)]
    store.claim_all(both, keep_held=True)
    assert store.held(new) == {host: SMALL}
    assert store.held(uuid) == {host: SMALL, pool: {"DISK_GB": 5}}


def test_the_sum_of_the_old_and_the_claimed_amount_must_fit(store: Store, pool: str) -> None:
    tiny, uuid = store.provider(VCPU=2), ids.fresh()
    store.put(uuid, {tiny: {"VCPU": 1}})
    with pytest.raises(errors.CapacityExceeded):
        add_one(store, uuid, {tiny: {"VCPU": 2}}, 1)
    add_one(store, uuid, {tiny: {"VCPU": 1}}, 1)
    assert store.used(tiny) == {"VCPU": 2}


@pytest.mark.backends("sqlite", "mariadb")
def test_a_claim_without_a_group_leaves_the_consumer_in_its_group(store: Store, host: str) -> None:
    uuid, group = ids.fresh(), ServerGroup(uuid=ids.fresh(), policy="soft-affinity")
    store.claim(uuid, {host: SMALL}, group=group)
    bound = select(consumer_groups.c.uuid).join(consumers, consumers.c.consumer_group_id == consumer_groups.c.id)
    assert store.scalar(bound.where(consumers.c.uuid == uuid)) == group.uuid
    store.claim(uuid, {host: SMALL}, consumer_generation=1)
    assert store.scalar(bound.where(consumers.c.uuid == uuid)) == group.uuid
