"""Test releases of a consumer that remains, for instance when shelved: foreign amounts are deleted and named."""

import pytest
from support.placement_store.builders import Store, request
from support.placement_store.move_builders import SMALL, Server

from moorage import ids
from moorage.messages import Released
from moorage.model.allocations import amounts_of

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")


def release(server: Server, claim_id: str | None = None, **more: bool) -> Released:
    """Release all allocations, naming the claimed amounts under the server's claim or another one."""
    claimed = {claim_id or server.claim_id: request(server.claimed)}
    return server.store.delete(server.uuid, claim_id=server.claim_id, claimed_with=claimed, **more)


def test_a_release_that_names_the_claim_returns_foreign_amounts(
    store: Store, host: str, pool: str, burdened: Server
) -> None:
    released = release(burdened)

    assert amounts_of(released.extras) == {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}
    assert store.held(burdened.uuid) == {}
    again = store.claim(burdened.uuid, {host: SMALL}, consumer_generation=store.consumer(burdened.uuid).generation)
    assert again.claim_id, "the consumer can be claimed for again"
    assert store.is_sound()


@pytest.mark.parametrize("names_another", [True, False])
def test_a_release_without_the_right_claim_returns_no_foreign_amounts(
    store: Store, burdened: Server, names_another: bool
) -> None:
    released = release(burdened, claim_id=ids.fresh()) if names_another else store.delete(burdened.uuid)

    assert released.extras == {}
    assert store.held(burdened.uuid) == {}


def test_a_release_with_a_residue_returns_foreign_amounts_and_the_residue_holds_those_on_the_host(
    store: Store, host: str, pool: str, burdened: Server
) -> None:
    released = release(burdened, leave_residue=True)

    assert released.residue_uuid == burdened.attempt
    assert amounts_of(released.extras) == {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}
    assert store.held(burdened.attempt) == {host: SMALL | {"VCPU": 3}}
    store.delete(burdened.attempt, for_good=True)
    assert store.rows() == {}
    assert store.is_sound()
