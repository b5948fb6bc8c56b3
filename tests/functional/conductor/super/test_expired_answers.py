"""Test steps whose request was carried out, but whose answer is lost and expires before the repetition."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from msgspec import structs
from support.conductor.builders import FakeScheduler, host_state, node, wait_until
from support.conductor.fake_placement import AMOUNTS
from support.conductor.moving_world import NIC, MovingWorld

from moorage import errors, failpoints, ids
from moorage.bus.bus import serves
from moorage.messages import ConfirmMigration, OwnsClaim, SelectDestinations, ShelveInstance, UnshelveInstance
from moorage.model import Selection


def answer(step: str, call: str) -> str:
    """Return the failpoint at which a step receives the answer to a call."""
    return f"step.{step}.answered.{call}"


@contextmanager
def losing(world: MovingWorld, *points: str, meanwhile: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lose the first message at each of these failpoints, and forget all stored answers before the repetition.

    :param meanwhile: called when the last of them is lost.
    """
    left = list(points)

    def forget(name: str) -> None:
        if name in left:
            left.remove(name)
            world.placement.answers.clear()
            if not left:
                meanwhile()
            raise failpoints.Dropped("lost")

    with failpoints.observed(forget):
        yield
    assert left == []


def ended(world: MovingWorld) -> None:
    wait_until(lambda: world.pending("conductor") == 0)


# --- Moves ------------------------------------------------------------------------------------------------------------


def stays_and_can_be_moved(world: MovingWorld, uuid: str) -> None:
    shown = world.show(uuid)
    assert (shown.state, shown.host, shown.migration_uuid) == ("active", "a", None)
    held = world.placement.held[uuid]
    assert (held.claim_id, held.root, held.accepted_host) == (shown.claim_id, node("a"), "a")
    assert world.placement.hosts_held() == {node("a")}
    world.scheduler.states = [host_state(host) for host in world.scheduler.hosts]
    world.comes_to(world.migrate(uuid), "moved")
    world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))
    assert world.show(uuid).state == "active"


@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
@pytest.mark.parametrize("kind", ["migrate", "live_migrate", "evacuate", "resize"])
def test_a_move_whose_answer_has_expired_fails_and_leaves_the_instance_on_its_source(
    world: MovingWorld, kind: str, policy: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = world.active()
    if kind == "evacuate":
        world.scheduler.states = [host_state("a", up=False, forced_down=True), host_state("b"), host_state("c")]

    with losing(world, answer("move.select", "scheduler.select_destinations")):
        migration = world.comes_to(getattr(world, kind)(uuid), "failed")

    assert "order it again" in str(migration.reason)
    late = structs.replace(world.scheduler.requests[-1], consumer_generations={uuid: world.placement.generations[uuid]})
    with pytest.raises(errors.ConsumerDeleted):
        world.scheduler.decide(late)
    stays_and_can_be_moved(world, uuid)


def test_the_foreign_amounts_of_an_instance_stay_as_they_were_after_a_move_whose_answer_has_expired(
    world: MovingWorld,
) -> None:
    uuid = world.active()
    world.placement.put_beside(uuid, NIC, NET_BW_EGR_KILOBIT_PER_SEC=1000)
    before = dict(world.placement.model.holders[uuid].held)

    with losing(world, answer("move.select", "scheduler.select_destinations")):
        world.comes_to(world.migrate(uuid), "failed")

    assert world.placement.model.holders[uuid].held == before
    stays_and_can_be_moved(world, uuid)


def test_a_resize_on_its_host_whose_answer_has_expired_keeps_the_foreign_amounts_of_that_host(
    world: MovingWorld,
) -> None:
    uuid = world.active()
    world.placement.put_beside(uuid, node("a"), VCPU=AMOUNTS["VCPU"] + 3, DISK_GB=7)
    before = dict(world.placement.model.holders[uuid].held)

    with losing(world, answer("move.select", "scheduler.select_destinations")):
        world.comes_to(world.resize(uuid, host="a"), "failed")

    assert world.placement.model.holders[uuid].held == before


@pytest.mark.parametrize(
    "again",
    [
        answer("move.recover", "placement.end_move"),
        answer("move.fence", "placement.delete_allocations"),
    ],
)
def test_a_move_whose_answers_expire_again_and_again_fails(world: MovingWorld, again: str) -> None:
    uuid = world.active()

    with losing(world, answer("move.select", "scheduler.select_destinations"), again):
        world.comes_to(world.migrate(uuid), "failed")

    stays_and_can_be_moved(world, uuid)


def test_a_move_whose_answer_has_expired_keeps_the_source_if_another_client_has_released_its_destination(
    world: MovingWorld,
) -> None:
    uuid = world.active()
    lost = answer("move.select", "scheduler.select_destinations")

    with losing(world, lost, meanwhile=lambda: world.placement.release(uuid)):
        migration = world.comes_to(world.migrate(uuid), "failed")

    assert "moorage audit --heal --apply" in str(migration.reason)
    assert world.show(uuid).state == "active"
    assert {one: held.root for one, held in world.placement.migrations.items()} == {migration.uuid: node("a")}
    assert world.placement.held == {}
    with pytest.raises(errors.MoorageError):
        world.scheduler.decide(world.scheduler.requests[-1])


@pytest.mark.parametrize("kind", ["move", "unshelve"])
def test_an_instance_that_is_deleted_while_its_claim_is_recovered_leaves_nothing(world: MovingWorld, kind: str) -> None:
    uuid = world.active() if kind == "move" else shelved(world)
    lost = answer(f"{kind}.select", "scheduler.select_destinations")
    recovering = f"step.{kind}.recover.send.scheduler.select_destinations"

    with losing(world, lost, recovering, meanwhile=lambda: world.delete(uuid)):
        (world.migrate if kind == "move" else partial(unshelve, world))(uuid)
        world.becomes(uuid, "deleted")
        ended(world)

    assert [migration.state for migration in world.migrations(uuid)] == (["ended"] if kind == "move" else [])
    assert world.placement.hosts_held() == set()


@pytest.mark.parametrize("call", ["put_allocations", "delete_allocations"])
def test_a_refused_move_ends_although_an_answer_to_its_fence_has_expired(world: MovingWorld, call: str) -> None:
    uuid = world.active()
    world.scheduler.hosts = ["a"]

    with losing(world, answer("move.fence", f"placement.{call}")):
        world.comes_to(world.migrate(uuid), "failed")

    world.scheduler.hosts = ["a", "b", "c"]
    stays_and_can_be_moved(world, uuid)


# --- Unshelvings ------------------------------------------------------------------------------------------------------


def shelved(world: MovingWorld) -> str:
    uuid = world.active()
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    return uuid


def unshelve(world: MovingWorld, uuid: str) -> None:
    world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    ended(world)


@pytest.mark.parametrize(
    "steps",
    [
        [answer("unshelve.select", "scheduler.select_destinations")],
        [
            answer("unshelve.select", "scheduler.select_destinations"),
            answer("unshelve.recover", "placement.delete_allocations"),
        ],
    ],
)
@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
def test_an_unshelving_whose_answer_has_expired_claims_again(world: MovingWorld, policy: str, steps: list[str]) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = shelved(world)

    with losing(world, *steps):
        unshelve(world, uuid)

    shown = world.show(uuid)
    assert (shown.state, shown.host) == ("active", "a")
    assert world.placement.held[uuid].claim_id == shown.claim_id
    assert world.placement.hosts_held() == {node("a")}
    first, *_, last = [message for message in world.scheduler.requests if message.consumer_generations]
    assert first.request_id != last.request_id
    with pytest.raises(errors.MoorageError):
        world.scheduler.decide(first)


@pytest.mark.parametrize("accepted", [True, False])
def test_an_unshelving_ends_if_another_client_has_claimed_for_the_instance(
    world: MovingWorld, *, accepted: bool
) -> None:
    uuid = shelved(world)
    scheduler = world.replace(Losing(world.placement))
    scheduler.owner = "conductor" if accepted else "somebody"
    scheduler.accepted_by = ids.fresh() if accepted else None

    unshelve(world, uuid)

    shown = world.show(uuid)
    assert shown.state == "shelved"
    assert scheduler.claim_id in str(shown.reason)
    assert world.placement.held[uuid].claim_id == scheduler.claim_id


class Losing(FakeScheduler):
    """Loses the first request; meanwhile another client claims for its instance."""

    claim_id = ""
    owner: str | None = None
    accepted_by: str | None = None

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if not self.claim_id:
            [uuid] = message.instance_uuids
            self.claim_id = self.placement.claim(uuid, node("c"), self.placement.generations[uuid])
            held = self.placement.held[uuid]
            held.owner, held.accepted_by = self.owner, self.accepted_by
            raise errors.Overloaded(reason="it is lost")
        return super().select_destinations(message)


# --- Builds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
def test_a_build_whose_answer_has_expired_ends_in_error_and_its_claim_is_not_wanted(
    world: MovingWorld, policy: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = ids.fresh()

    with losing(world, answer("build.select", "scheduler.select_destinations")):
        world.build(uuid)
        world.becomes(uuid, "error")
        ended(world)

    # Another client may have made the claim: only the reconciler releases it.
    claim_id = world.placement.held[uuid].claim_id
    assert claim_id is not None
    assert not world.order(OwnsClaim(request_id=ids.fresh(), consumer_uuid=uuid, claim_id=claim_id)).owned
