"""Test that a release deletes foreign amounts on a consumer that remains, such as a shelved one, and names them."""

import pytest
from support.placement_store.builders import Amounts, Store, request

from moorage import ids
from moorage.messages import Released

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")

SMALL = {"VCPU": 2, "MEMORY_MB": 2048}


class Burdened:
    """A server on which others have put a third VCPU and 5 GB more."""

    def __init__(self, store: Store, host: str, pool: str) -> None:
        self.store, self.uuid, self.attempt = store, ids.fresh(), ids.fresh()
        self.claimed: Amounts = {host: SMALL, pool: {"DISK_GB": 20}}
        self.claim_id = store.claim(self.uuid, self.claimed).claim_id
        store.accept(self.uuid, self.claim_id, self.attempt)
        generation = store.consumer(self.uuid).generation
        store.put(self.uuid, {host: SMALL | {"VCPU": 3}, pool: {"DISK_GB": 25}}, generation)

    def release(self, claim_id: str | None = None, **more: bool) -> Released:
        """Release what it holds, naming what was claimed with its claim or another one."""
        named = {claim_id or self.claim_id: request(self.claimed)}
        return self.store.delete(self.uuid, claim_id=self.claim_id, claimed_with=named, **more)


def told(released: Released) -> dict[str, dict[str, int]]:
    return {uuid: dict(part.resources) for uuid, part in released.extras.items()}


def test_a_release_that_names_the_claim_says_what_others_had_put_there(store: Store, host: str, pool: str) -> None:
    server = Burdened(store, host, pool)

    released = server.release()

    assert told(released) == {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}
    assert store.held(server.uuid) == {}
    again = store.claim(server.uuid, {host: SMALL}, consumer_generation=store.consumer(server.uuid).generation)
    assert again.claim_id, "it lives on"
    assert store.is_sound()


def test_a_release_that_names_no_claim_or_another_one_tells_nothing_apart(store: Store, host: str, pool: str) -> None:
    server = Burdened(store, host, pool)
    assert told(server.release(claim_id=ids.fresh())) == {}
    server = Burdened(store, host, pool)
    assert told(store.delete(server.uuid)) == {}
    assert store.held(server.uuid) == {}


def test_a_release_that_leaves_a_residue_names_them_and_the_residue_has_what_was_on_the_host(
    store: Store, host: str, pool: str
) -> None:
    server = Burdened(store, host, pool)

    released = server.release(leave_residue=True)

    assert released.residue_uuid == server.attempt
    assert told(released) == {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}
    assert store.held(server.attempt) == {host: SMALL | {"VCPU": 3}}
    store.delete(server.attempt, for_good=True)
    assert store.rows() == {}
    assert store.is_sound()
