"""Test claims: how they are made, accepted, swapped and released, and consumers that are deleted for good."""

import pytest
from sqlalchemy import Connection, event
from support.databases.rows_read import rows_read
from support.placement_store.builders import Store, node_report, refusals
from support.placement_store.move_builders import FREE, SMALL

from moorage import errors, ids
from moorage.messages import PutAllocations
from placement_store.claims import claim as claims
from placement_store.claims.claim import current_claims

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")


# --- Claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.backends("sqlite", "mariadb")
def test_a_claim_places_a_new_consumer_on_its_host_unaccepted(store: Store, host: str) -> None:
    uuid = ids.fresh()

    claimed = store.claim(uuid, {host: SMALL})

    found = store.consumer(uuid)
    assert (claimed.consumer_generation, found.generation) == (1, 1)
    assert (found.claim_id, found.root_provider_uuid, found.accepted_by) == (claimed.claim_id, host, None)
    assert (found.owner, found.consumer_type) == ("conductor", "INSTANCE")
    assert store.held(uuid) == {host: SMALL}
    assert store.database.read(lambda c: current_claims(c, [uuid, ids.fresh()])) == {uuid: (claimed.claim_id, 1)}


def test_fifty_consumers_are_claimed_in_one_transaction_or_not_at_all(store: Store) -> None:
    hosts = [store.provider(VCPU=20) for _ in range(5)]
    uuids = [ids.fresh() for _ in range(50)]
    claims = [store.new_claim(uuid, {hosts[n % 5]: {"VCPU": 2}}) for n, uuid in enumerate(uuids)]

    with pytest.raises(errors.CapacityExceeded) as caught:
        store.claim_all([*claims, store.new_claim(ids.fresh(), {hosts[0]: {"VCPU": 1}})])
    assert refusals(caught) == [(hosts[0], "VCPU", 21, 20.0)]
    assert store.rows() == {}
    claimed = store.claim_all(claims)

    assert len({claim.claim_id for claim in claimed}) == 50
    assert [store.consumer(uuid).claim_id for uuid in uuids] == [claim.claim_id for claim in claimed]
    assert {store.used(host)["VCPU"] for host in hosts} == {20}
    assert store.is_sound()


@pytest.mark.parametrize("count", [192, 193, 385])
def test_every_inventory_is_checked_and_changed_however_many_statements_that_takes(store: Store, count: int) -> None:
    store.report(*(node_report(number, VCPU=1) for number in range(count)))

    def claim() -> None:
        store.claim_all(
            [store.new_claim(ids.fresh(), {ids.derived("node", number): {"VCPU": 1}}) for number in range(count)]
        )

    claim()
    assert store.is_sound()
    with pytest.raises(errors.CapacityExceeded) as caught:
        claim()
    assert caught.value.count == count
    assert store.is_sound()


@pytest.mark.parametrize("generation", [None, 2])
def test_a_refused_claim_names_only_the_inventories_without_room(store: Store, generation: int | None) -> None:
    host, uuid = store.provider(VCPU=4, MEMORY_MB=1024), ids.fresh()
    if generation is not None:
        store.put(uuid, {host: {"VCPU": 1}})
        store.put(uuid, {}, 1)
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.claim(uuid, {host: {"VCPU": 3, "MEMORY_MB": 2048}}, consumer_generation=generation)
    assert refusals(caught) == [(host, "MEMORY_MB", 2048, 1024.0)]


@pytest.mark.backends("mariadb")
def test_a_refusal_reads_only_allocations_of_the_class_without_room(store: Store) -> None:
    def refused(connection: Connection) -> None:
        with pytest.raises(errors.CapacityExceeded), connection.begin_nested():
            claims.claim(connection, [store.new_claim(ids.fresh(), {host: {"DISK_GB": 2}})], store.names)

    host = store.provider(VCPU=1000, DISK_GB=1)
    _, before = rows_read(store.database, refused, writing=True)
    store.post({ids.fresh(): store.wanted({host: {"VCPU": 1}}) for _ in range(200)})
    _, after = rows_read(store.database, refused, writing=True)
    assert after - before < 50


def test_a_claim_with_a_stale_consumer_generation_is_a_conflict(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: {"VCPU": 1}})
    for named in (None, 2):
        with pytest.raises(errors.ConsumerGenerationConflict) as caught:
            store.claim(uuid, {host: SMALL}, consumer_generation=named)
        assert (caught.value.named, caught.value.found) == (named, 1)

    assert store.claim(uuid, {host: SMALL}, consumer_generation=1).consumer_generation == 2
    assert store.held(uuid) == {host: SMALL}


# On SQLite there is no other writer during a claim.
@pytest.mark.backends("mariadb")
def test_the_conflict_names_the_consumer_that_has_changed_since_it_was_read(
    store: Store, host: str, other_process: Store, request: pytest.FixtureRequest
) -> None:
    elsewhere = store.provider(VCPU=8)
    first, second = ids.fresh(), ids.fresh()
    for uuid in (first, second):
        store.put(uuid, {host: {"VCPU": 1}})
    writes = iter([lambda: other_process.put(second, {elsewhere: {"VCPU": 1}}, 1)])

    def after(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT consumers.id") and (write := next(writes, None)) is not None:
            write()

    event.listen(store.database.engine, "after_cursor_execute", after)
    request.addfinalizer(lambda: event.remove(store.database.engine, "after_cursor_execute", after))
    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        store.claim_all([store.new_claim(uuid, {host: SMALL}, consumer_generation=1) for uuid in (first, second)])

    assert (caught.value.consumer_uuid, caught.value.named, caught.value.found) == (second, 1, 2)
    assert next(writes, None) is None
    assert store.held(first) == {host: {"VCPU": 1}}


def test_a_claim_with_an_unknown_provider_or_class_or_a_repeated_consumer_is_refused(store: Store, host: str) -> None:
    with pytest.raises(errors.ProviderNotFound):
        store.claim(ids.fresh(), {ids.fresh(): SMALL})
    with pytest.raises(errors.ResourceClassNotFound):
        store.claim(ids.fresh(), {host: {"CUSTOM_NONE": 1}})
    with pytest.raises(errors.InvalidRequest):
        store.claim_all([store.new_claim(host, {host: SMALL})] * 2)


def test_only_one_attempt_may_accept_a_claim_and_repeats_bump_no_generation(store: Store, host: str) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id

    store.accept(uuid, claim_id, attempt)
    store.accept(uuid, claim_id, attempt)

    for other in ({"attempt_id": ids.fresh()}, {"claim_id": ids.fresh()}, {"uuid": ids.fresh()}, {"host": "other"}):
        with pytest.raises(errors.ClaimReleased):
            store.accept(**{"uuid": uuid, "claim_id": claim_id, "attempt_id": attempt} | other)
    found = store.consumer(uuid)
    assert (found.generation, found.accepted_by) == (1, attempt)


def test_a_released_claim_is_not_accepted(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    store.delete(uuid, claim_id=claim_id)
    with pytest.raises(errors.ClaimReleased):
        store.accept(uuid, claim_id, ids.fresh())


def test_an_accepted_claim_is_not_replaced_by_a_new_one(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.accept(uuid, store.claim(uuid, {host: SMALL}).claim_id, ids.fresh())
    with pytest.raises(errors.InvalidState):
        store.claim(uuid, {host: SMALL}, consumer_generation=1)


def test_a_raw_write_keeps_an_accepted_claim_until_nothing_is_left_on_the_host(store: Store, host: str) -> None:
    pool = store.provider("pool", DISK_GB=100)
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL, pool: {"DISK_GB": 5}}).claim_id
    store.accept(uuid, claim_id, attempt)

    store.put(uuid, {host: {"VCPU": 1}, pool: {"DISK_GB": 9}}, 1)
    kept = store.consumer(uuid)
    assert (kept.claim_id, kept.accepted_by, kept.root_provider_uuid) == (claim_id, attempt, host)
    store.put(uuid, {pool: {"DISK_GB": 9}}, 2)

    left = store.consumer(uuid)
    assert (left.claim_id, left.accepted_by, left.root_provider_uuid, left.owner) == (None, None, None, None)
    with pytest.raises(errors.ClaimReleased):
        store.accept(uuid, claim_id, attempt)


# --- Swaps ------------------------------------------------------------------------------------------------------------


def test_a_swap_releases_one_host_and_claims_the_next(store: Store, host: str) -> None:
    after = store.provider(VCPU=8, MEMORY_MB=8192)
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id

    swapped = store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL})

    found = store.consumer(uuid)
    assert swapped.claim_id != claim_id
    assert (found.claim_id, found.root_provider_uuid, found.accepted_by) == (swapped.claim_id, after, None)
    assert (found.generation, swapped.consumer_generation, found.owner) == (2, 2, "conductor")
    assert store.held(uuid) == {after: SMALL}
    assert store.used(host) == FREE
    with pytest.raises(errors.ClaimReleased):
        store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL})


def test_a_swap_that_does_not_fit_keeps_the_claim(store: Store, host: str) -> None:
    tiny = store.provider(VCPU=1, MEMORY_MB=8192)
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    with pytest.raises(errors.CapacityExceeded):
        store.swap(uuid, claim_id, {host: SMALL}, {tiny: SMALL})
    assert store.consumer(uuid).claim_id == claim_id
    assert store.held(uuid) == {host: SMALL}
    store.accept(uuid, claim_id, ids.fresh())


def test_a_swap_keeps_foreign_amounts_on_providers_that_stay_and_releases_the_others(store: Store, host: str) -> None:
    after, pool, device = store.provider(VCPU=8), store.provider(DISK_GB=100), store.provider(CUSTOM_NIC=1)
    uuid, disk = ids.fresh(), {pool: {"DISK_GB": 50}}
    claim_id = store.claim(uuid, {host: {"VCPU": 2}, **disk}).claim_id
    extras = {host: {"VCPU": 2, "MEMORY_MB": 7}, pool: {"DISK_GB": 60}, device: {"CUSTOM_NIC": 1}}
    store.put(uuid, extras, 1)

    store.swap(uuid, claim_id, {host: {"VCPU": 2}, **disk}, {after: {"VCPU": 2}, **disk})

    assert store.held(uuid) == {after: {"VCPU": 2}, pool: {"DISK_GB": 60}, device: {"CUSTOM_NIC": 1}}
    assert store.is_sound()


def test_an_accepted_claim_is_swapped_only_after_its_guest_is_gone(store: Store, host: str) -> None:
    after = store.provider(VCPU=8, MEMORY_MB=8192)
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    store.accept(uuid, claim_id, ids.fresh())
    with pytest.raises(errors.InvalidState):
        store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL})
    assert store.held(uuid) == {host: SMALL}

    store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL}, guest_gone=True)
    assert store.held(uuid) == {after: SMALL}


def test_a_swap_compares_the_provider_generations_that_it_names(store: Store, host: str) -> None:
    after = store.provider(VCPU=8, MEMORY_MB=8192)
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    message = store.swap_message(uuid, claim_id, {host: SMALL}, {after: SMALL})
    message.claimed.allocations[after] = type(message.claimed.allocations[after])(resources=SMALL, generation=7)
    with pytest.raises(errors.ProviderGenerationConflict):
        store.dispatcher.call(message)


def test_a_claim_is_swapped_on_the_same_host(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: {"VCPU": 6}}).claim_id
    swapped = store.swap(uuid, claim_id, {host: {"VCPU": 6}}, {host: {"VCPU": 7}})
    assert store.held(uuid) == {host: {"VCPU": 7}}
    assert store.consumer(uuid).claim_id == swapped.claim_id != claim_id


# --- Release and tombstones -------------------------------------------------------------------------------------------


def test_a_release_of_one_claim_does_not_release_another(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    for for_good in (False, True):
        with pytest.raises(errors.ClaimReleased):
            store.delete(uuid, claim_id=ids.fresh(), for_good=for_good)
    assert store.held(uuid) == {host: SMALL}

    store.delete(uuid, claim_id=claim_id)

    found = store.consumer(uuid)
    assert (found.allocations, found.claim_id, found.root_provider_uuid, found.generation) == ({}, None, None, 2)
    assert store.used(host) == FREE
    store.delete(uuid)
    assert store.consumer(uuid).generation == 2


def test_a_consumer_deleted_for_good_is_gone_and_cannot_be_claimed_for_again(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id

    store.delete(uuid, claim_id=claim_id, for_good=True)

    with pytest.raises(errors.ConsumerNotFound):
        store.consumer(uuid)
    assert store.used(host) == FREE
    for generation in (None, 1):
        with pytest.raises(errors.ConsumerDeleted):
            store.claim(uuid, {host: SMALL}, consumer_generation=generation)
        with pytest.raises(errors.ConsumerDeleted):
            store.put(uuid, {host: SMALL}, generation)
    with pytest.raises(errors.ClaimReleased):
        store.swap(uuid, claim_id, {host: SMALL}, {host: SMALL})
    store.delete(uuid, for_good=True)
    store.delete(uuid, claim_id=claim_id, for_good=True)
    assert store.rows() == {}


def test_a_consumer_that_never_existed_can_be_deleted_for_good(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.delete(uuid, for_good=True)
    with pytest.raises(errors.ConsumerDeleted):
        store.claim(uuid, {host: SMALL})
    with pytest.raises(errors.ConsumerNotFound):
        store.delete(uuid)


def test_one_deleted_consumer_refuses_a_whole_request(store: Store, host: str) -> None:
    alive, dead = ids.fresh(), ids.fresh()
    store.delete(dead, for_good=True)
    with pytest.raises(errors.ConsumerDeleted) as caught:
        store.claim_all([store.new_claim(uuid, {host: SMALL}) for uuid in (alive, dead)])
    assert caught.value.consumer_uuid == dead
    assert store.rows() == {}


# --- Stored requests --------------------------------------------------------------------------------------------------


def test_a_repeated_request_is_carried_out_once_and_gets_its_stored_answer(store: Store, host: str) -> None:
    uuid, after = ids.fresh(), store.provider(VCPU=8, MEMORY_MB=8192)
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    swap = store.swap_message(uuid, claim_id, {host: SMALL}, {after: SMALL})
    put = PutAllocations(request_id="put", consumer_uuid=ids.fresh(), wanted=store.wanted({host: SMALL}))

    assert store.dispatcher.call(swap) == store.dispatcher.call(swap)
    assert store.dispatcher.call(put) == store.dispatcher.call(put)

    assert (store.used(host), store.used(after)) == (SMALL, SMALL)


def test_a_request_id_with_other_content_is_refused(store: Store, host: str) -> None:
    put = PutAllocations(request_id="put", consumer_uuid=ids.fresh(), wanted=store.wanted({host: SMALL}))
    store.dispatcher.call(put)
    other = PutAllocations(request_id="put", consumer_uuid=ids.fresh(), wanted=store.wanted({host: SMALL}))
    with pytest.raises(errors.RequestIdReused):
        store.dispatcher.call(other)


def test_a_refused_request_may_be_repeated_with_its_id(store: Store) -> None:
    host = store.provider(VCPU=1)
    put = PutAllocations(request_id="put", consumer_uuid=ids.fresh(), wanted=store.wanted({host: {"VCPU": 2}}))
    with pytest.raises(errors.CapacityExceeded):
        store.dispatcher.call(put)
    store.set_inventories(host, 1, VCPU=2)
    assert store.dispatcher.call(put).consumer_generation == 1
