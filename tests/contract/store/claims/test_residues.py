"""Test residues: allocations that stay on a host for a guest that may still run there."""

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from support.placement_store.builders import Store, call_between
from support.placement_store.move_builders import FREE, SMALL, Moving

from moorage import errors, ids
from moorage.model import Inventory

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")


@pytest.fixture
def after(store: Store) -> str:
    return store.provider("after", VCPU=8, MEMORY_MB=8192)


@pytest.fixture
def accepted(store: Store, host: str) -> tuple[str, str, str]:
    """The uuid of an instance on the host, its claim, and the attempt that has accepted the claim."""
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    store.accept(uuid, claim_id, attempt)
    return uuid, claim_id, attempt


def test_a_claim_that_was_never_accepted_is_released_outright(store: Store, host: str, after: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id

    swapped = store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL}, leave_residue=True)

    assert swapped.residue_uuid is None
    assert store.used(host) == FREE
    assert store.delete(uuid, for_good=True, leave_residue=True).residue_uuid is None
    assert store.rows() == {}


def test_the_swap_of_an_accepted_claim_leaves_a_residue_on_its_host(
    store: Store, host: str, after: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, attempt = accepted

    swapped = store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL}, leave_residue=True)

    assert swapped.residue_uuid == attempt
    residue, instance = store.consumer(attempt), store.consumer(uuid)
    assert (residue.consumer_type, residue.claim_id, residue.owner) == ("RESIDUE", None, None)
    assert (residue.root_provider_uuid, residue.project_id, residue.user_id) == (host, "project", "user")
    assert (instance.claim_id, instance.root_provider_uuid, instance.accepted_by) == (swapped.claim_id, after, None)
    assert store.held(attempt) == {host: SMALL}
    assert store.held(uuid) == {after: SMALL}
    assert store.used(host) == SMALL
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
def test_a_residue_is_refused_if_the_attempt_has_the_uuid_of_its_instance(store: Store, host: str, after: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    store.accept(uuid, claim_id, uuid)

    for leave in (
        lambda: store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL}, leave_residue=True),
        lambda: store.delete(uuid, claim_id=claim_id, for_good=True, leave_residue=True),
    ):
        with pytest.raises(errors.InvalidState, match=f"there is a consumer with the uuid of its attempt {uuid}"):
            leave()
    assert store.held(uuid) == {host: SMALL}
    assert store.delete(uuid, for_good=True, leave_residue=True, guests_gone=(uuid,)).residue_uuid is None


@pytest.mark.backends("mariadb")
def test_a_concurrent_delete_that_leaves_the_same_residue_is_no_error(store: Store, other_process: Store) -> None:
    def interrupted(after: int) -> list[str]:
        uuid, attempt = ids.fresh(), ids.fresh()
        store.accept(uuid, store.claim(uuid, {store.provider(**SMALL): SMALL}).claim_id, attempt)
        leave = {"for_good": True, "leave_residue": True}
        with call_between(store.database, after, lambda: other_process.delete(uuid, **leave)) as between:
            store.delete(uuid, **leave)
        assert store.consumer(attempt).consumer_type == "RESIDUE"
        return between

    reads = list(itertools.takewhile(lambda sql: not sql.startswith("UPDATE"), interrupted(0)))
    assert len(reads) > 4
    for after in range(1, len(reads) + 1):
        interrupted(after)


@pytest.mark.backends("sqlite", "mariadb")
def test_the_second_instance_of_one_attempt_leaves_a_residue_only_after_the_first_residue_is_gone(
    store: Store, host: str
) -> None:
    first, second, attempt = ids.fresh(), ids.fresh(), ids.fresh()
    for uuid in (first, second):
        store.accept(uuid, store.claim(uuid, {host: SMALL}).claim_id, attempt)
    assert store.delete(first, for_good=True, leave_residue=True).residue_uuid == attempt

    with pytest.raises(errors.InvalidState, match=f"there is a consumer with the uuid of its attempt {attempt}"):
        store.delete(second, for_good=True, leave_residue=True)

    store.delete(attempt, for_good=True)
    store.delete(second, for_good=True, leave_residue=True)
    assert store.rows() == {}


def test_a_residue_deleted_for_good_is_not_created_again(
    store: Store, host: str, after: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, attempt = accepted
    message = store.swap_message(uuid, claim_id, {host: SMALL}, {after: SMALL}, leave_residue=True)
    answer = store.dispatcher.call(message)

    for _ in range(2):
        store.delete(attempt, for_good=True)

    assert store.dispatcher.call(message) == answer
    assert store.used(host) == FREE
    with pytest.raises(errors.ConsumerNotFound):
        store.consumer(attempt)
    assert store.held(uuid) == {after: SMALL}


def test_a_guest_reported_gone_before_the_swap_leaves_no_residue(
    store: Store, host: str, after: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, attempt = accepted
    store.delete(attempt, for_good=True)

    swapped = store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL}, leave_residue=True)

    assert swapped.residue_uuid is None
    assert store.used(host) == FREE


def test_a_delete_for_good_leaves_a_residue_and_a_tombstone_in_one_transaction(
    store: Store, host: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, attempt = accepted
    request_id = ids.fresh()

    for _ in range(2):
        released = store.delete(uuid, claim_id=claim_id, for_good=True, leave_residue=True, request_id=request_id)
        assert released.residue_uuid == attempt

    with pytest.raises(errors.ConsumerDeleted):
        store.claim(uuid, {host: SMALL})
    assert store.held(attempt) == {host: SMALL}
    assert store.is_sound()
    store.delete(attempt, for_good=True, leave_residue=True)
    assert store.rows() == {}


def test_a_guest_that_was_destroyed_first_leaves_no_residue(
    store: Store, host: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, _ = accepted
    assert store.delete(uuid, claim_id=claim_id, for_good=True).residue_uuid is None
    assert store.rows() == {}


def test_a_residue_on_a_shrunk_host_needs_no_room_and_no_unit_rules(
    store: Store, host: str, after: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, attempt = accepted
    generation = store.generation(host)
    store.set_inventories(host, generation, VCPU=1, MEMORY_MB=Inventory(total=4096, max_unit=512, step_size=500))

    store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL}, leave_residue=True)

    assert store.held(attempt) == {host: SMALL}
    assert store.used(host) == SMALL


def test_a_residue_and_the_next_claim_on_the_same_host_must_both_fit(
    store: Store, host: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, attempt = accepted
    with pytest.raises(errors.CapacityExceeded):
        store.swap(uuid, claim_id, {host: SMALL}, {host: {"VCPU": 7}}, leave_residue=True)
    assert store.consumer(uuid).claim_id == claim_id

    store.swap(uuid, claim_id, {host: SMALL}, {host: {"VCPU": 6, "MEMORY_MB": 1}}, leave_residue=True)

    assert store.used(host) == {"VCPU": 8, "MEMORY_MB": 2049}
    assert (store.held(attempt), store.held(uuid)) == ({host: SMALL}, {host: {"VCPU": 6, "MEMORY_MB": 1}})


def test_a_residue_holds_nothing_of_a_shared_pool(store: Store, host: str, after: str) -> None:
    pool = store.provider("pool", DISK_GB=100)
    uuid, attempt, disk = ids.fresh(), ids.fresh(), {pool: {"DISK_GB": 50}}
    claim_id = store.claim(uuid, {host: SMALL, **disk}).claim_id
    store.accept(uuid, claim_id, attempt)

    store.swap(uuid, claim_id, {host: SMALL, **disk}, {after: SMALL, **disk}, leave_residue=True)

    assert (store.held(attempt), store.held(uuid)) == ({host: SMALL}, {after: SMALL, **disk})
    store.delete(uuid, for_good=True)
    assert (store.used(pool), store.used(host)) == ({"DISK_GB": 0}, SMALL)


def test_foreign_amounts_on_the_host_go_to_the_residue(
    store: Store, host: str, after: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, attempt = accepted
    more = {host: {"VCPU": 3, "MEMORY_MB": 2048}}
    store.put(uuid, more, 1)

    store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL}, leave_residue=True)

    assert store.held(attempt) == more


def test_a_claim_accepted_during_its_swap_leaves_a_residue_or_is_not_accepted(store: Store) -> None:
    hosts = [store.provider(VCPU=100), store.provider(VCPU=100)]
    for _ in range(20):
        uuid, attempt = ids.fresh(), ids.fresh()
        claim_id = store.claim(uuid, {hosts[0]: {"VCPU": 1}}).claim_id
        accepted: list[bool] = []

        def accept(
            uuid: str = uuid, claim_id: str = claim_id, attempt: str = attempt, said: list[bool] = accepted
        ) -> None:
            try:
                store.accept(uuid, claim_id, attempt)
                said.append(True)
            except errors.ClaimReleased:
                said.append(False)

        accepting = threading.Thread(target=accept)
        accepting.start()
        swapped = store.swap(uuid, claim_id, {hosts[0]: {"VCPU": 1}}, {hosts[1]: {"VCPU": 1}}, leave_residue=True)
        accepting.join()
        assert swapped.residue_uuid == (attempt if accepted == [True] else None)
    assert store.is_sound()


#: Writes that release the claim of an instance, and whether they leave a residue if a host has accepted it.
RELEASES: dict[str, tuple[Callable[[Moving, str], object], bool]] = {
    "swap": (lambda one, other: one.swap({other: SMALL}, migration_uuid=None, held=None, leave_residue=True), True),
    "delete": (lambda one, _: one.store.delete(one.uuid, for_good=True, leave_residue=True), True),
    "release": (lambda one, _: one.store.delete(one.uuid, claim_id=one.claim_id, unaccepted=True), False),
    "claim": (lambda one, other: one.store.claim(one.uuid, {other: SMALL}, consumer_generation=1), False),
    "revert": (lambda one, _: one.revert(leave_residue=True), True),
}


@pytest.mark.backends("mariadb")
@pytest.mark.parametrize("name", RELEASES)
def test_a_guest_whose_claim_is_accepted_while_it_is_released_keeps_its_amounts(
    store: Store, other_process: Store, name: str
) -> None:
    release, leaves_residue = RELEASES[name]

    def accepted(instance: Moving) -> bool:
        try:
            other_process.accept(instance.uuid, instance.claim_id, instance.next_attempt)
        except errors.ClaimReleased:
            return False
        return True

    def interrupted(after: int) -> list[str]:
        at, other = store.provider(**SMALL), store.provider(**SMALL)
        instance = Moving(store, {other: SMALL})
        if name == "revert":
            instance.build().begin({at: SMALL})
        else:
            instance.claimed, instance.claim_id = {at: SMALL}, store.claim(instance.uuid, {at: SMALL}).claim_id
        said: list[bool] = []
        with (
            call_between(store.database, after, lambda: said.append(accepted(instance))) as between,
            suppress(errors.InvalidState, errors.ClaimContention),
        ):
            release(instance, other)
        if said == [True]:
            there = store.consumer(instance.next_attempt if leaves_residue else instance.uuid)
            assert there.accepted_by == instance.next_attempt
            assert there.allocations[at].resources == SMALL
        return between

    reads = list(itertools.takewhile(lambda sql: not sql.startswith("UPDATE"), interrupted(0)))
    assert len(reads) > 1
    for after in range(1, len(reads) + 1):
        interrupted(after)
    assert store.is_sound()


# --- Releases of unaccepted claims ------------------------------------------------------------------------------------


def test_a_release_of_an_unaccepted_claim_must_name_it_and_refuses_an_accepted_one(
    store: Store, host: str, accepted: tuple[str, str, str]
) -> None:
    uuid, claim_id, _ = accepted
    with pytest.raises(errors.InvalidRequest) as caught:
        store.delete(uuid, unaccepted=True)
    assert caught.value.path == "$.claim_id"
    for for_good in (False, True):
        with pytest.raises(errors.InvalidState):
            store.delete(uuid, claim_id=claim_id, unaccepted=True, for_good=for_good)
    assert store.held(uuid) == {host: SMALL}
    other = ids.fresh()
    unaccepted = store.claim(other, {host: SMALL}).claim_id
    with pytest.raises(errors.ClaimReleased):
        store.delete(other, claim_id=claim_id, unaccepted=True)

    store.delete(other, claim_id=unaccepted, unaccepted=True)

    assert store.held(other) == {}
    with pytest.raises(errors.ClaimReleased):
        store.accept(other, unaccepted, ids.fresh())
