"""Test orders that reach a cell late, twice, or after a later one: they change nothing."""

from typing import Literal

import pytest
from msgspec import structs
from support.conductor.builders import FakePlacement, World, node, selection, wait_until
from support.conductor.moving_instances import Mover, becomes, built, shelve, shown

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    CancelUnshelveInCell,
    Claimed,
    DeleteAllocations,
    DetachResourceInCell,
    EndMoveInCell,
    MoveInCell,
    PrepareMoveInCell,
    PrepareUnshelveInCell,
    RebuildInCell,
    RebuildOnHost,
    Released,
    ShelveInCell,
    ShelveInstance,
    StopOnHost,
    SwapClaim,
    UnshelveInCell,
)
from moorage.model import Image


def rebuild(world: World, uuid: str, image: str, number: int | None, request_id: str | None = None) -> None:
    message = RebuildInCell(
        request_id=request_id or ids.fresh(), instance_uuid=uuid, image=Image(id=image), order_number=number
    )
    world.cell_call(message)


def image_of(world: World, uuid: str) -> str | None:
    orders = [order for order in world.agent.orders if isinstance(order, RebuildOnHost)]
    assert {order.instance_uuid for order in orders} == {uuid}
    return orders[-1].image.id


def test_an_order_that_comes_after_a_later_one_is_refused_and_changes_nothing(world: World) -> None:
    uuid = built(world)
    rebuild(world, uuid, "new", 5)
    before = becomes(world, uuid, "active")

    with pytest.raises(errors.StaleOrder, match="it is order 4, and order 5 has been carried out"):
        rebuild(world, uuid, "old", 4)
    with pytest.raises(errors.StaleOrder):
        world.cell_call(ShelveInCell(request_id=ids.fresh(), instance_uuid=uuid, order_number=4))
    with pytest.raises(errors.StaleOrder):
        world.cell_call(
            PrepareMoveInCell(
                request_id=ids.fresh(), instance_uuid=uuid, migration_uuid=ids.fresh(), kind="resize", order_number=4
            )
        )
    with pytest.raises(errors.StaleOrder):
        world.cell_call(
            DetachResourceInCell(request_id=ids.fresh(), instance_uuid=uuid, suffix="_port", order_number=4)
        )

    assert (shown(world, uuid), image_of(world, uuid)) == (before, "new")
    rebuild(world, uuid, "newer", 6)
    becomes(world, uuid, "active")
    assert image_of(world, uuid) == "newer"


def test_an_order_that_was_refused_is_not_carried_out_when_a_copy_of_it_comes_later(world: World) -> None:
    uuid = built(world)
    shelve(world, uuid)
    becomes(world, uuid, "shelved")
    request_id = ids.fresh()
    with pytest.raises(errors.InvalidState):
        rebuild(world, uuid, "old", 7, request_id)
    unshelved(world, uuid, 8)

    with pytest.raises(errors.StaleOrder):
        rebuild(world, uuid, "old", 7, request_id)

    assert world.agent.orders == []
    with pytest.raises(errors.InvalidState):
        world.cell_call(PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid, order_number=9))
    with pytest.raises(errors.StaleOrder, match="order 9 has been refused"):
        rebuild(world, uuid, "old", 9)


def test_a_refused_order_that_is_repeated_under_its_id_is_answered_that_it_needs_a_new_one(world: World) -> None:
    world.agent.may_finish.clear()
    [uuid] = world.build()
    wait_until(lambda: world.waiting() == 1)
    order = ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid)
    conductor = world.bus.client("conductor")
    with pytest.raises(errors.InvalidState):
        conductor.call(order)
    world.agent.may_finish.set()
    world.becomes(uuid, "active")

    with pytest.raises(errors.StaleOrder, match="to order it again, use a new request id"):
        conductor.call(order)

    conductor.call(structs.replace(order, request_id=ids.fresh()))
    world.becomes(uuid, "shelved")


def test_an_order_of_the_previous_release_has_no_number_and_is_carried_out(world: World) -> None:
    uuid = built(world)
    rebuild(world, uuid, "new", 5)
    becomes(world, uuid, "active")

    rebuild(world, uuid, "of the previous release", None)

    becomes(world, uuid, "active")
    assert image_of(world, uuid) == "of the previous release"


def unshelved(world: World, uuid: str, number: int) -> None:
    world.cell_call(PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid, order_number=number))
    claim_id = world.placement.claim(uuid, node("a"), world.placement.generations[uuid])
    world.cell_call(
        UnshelveInCell(
            request_id=ids.fresh(), instance_uuid=uuid, selections=(selection("a", claim_id),), order_number=number
        )
    )
    becomes(world, uuid, "active")


def test_messages_of_an_abandoned_unshelving_do_not_affect_the_next_one(world: World) -> None:
    uuid = built(world)
    shelve(world, uuid)
    becomes(world, uuid, "shelved")
    for number in (3, 4):
        world.cell_call(PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid, order_number=number))

    late = CancelUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid, reason="no room", order_number=3)
    with pytest.raises(errors.StaleOrder):
        world.cell_call(late)
    with pytest.raises(errors.StaleOrder):
        world.cell_call(
            UnshelveInCell(
                request_id=ids.fresh(), instance_uuid=uuid, selections=(selection("a", ids.fresh()),), order_number=3
            )
        )

    assert shown(world, uuid).state == "unshelving"


# --- Orders that are repeated after their stored answers have expired -------------------------------------------------


def purge_stored_requests(world: World) -> None:
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM cell_requests")


def test_an_unshelving_that_is_handed_over_again_after_its_answer_has_expired_is_not_begun_again(world: World) -> None:
    uuid = built(world)
    shelve(world, uuid)
    becomes(world, uuid, "shelved")
    world.cell_call(PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid, order_number=2))
    claim_id = world.placement.claim(uuid, node("a"), world.placement.generations[uuid])
    handed_over = UnshelveInCell(
        request_id=ids.fresh(), instance_uuid=uuid, selections=(selection("a", claim_id),), order_number=2
    )
    world.cell_call(handed_over)
    before = becomes(world, uuid, "active")

    purge_stored_requests(world)
    world.cell_call(handed_over)
    assert shown(world, uuid) == before

    rebuild(world, uuid, "new", 3)
    before = becomes(world, uuid, "active")
    purge_stored_requests(world)
    world.cell_call(handed_over)
    assert shown(world, uuid) == before


@pytest.mark.parametrize("later", ["moved", "confirmed", "moved again"])
def test_a_move_that_is_handed_over_again_after_its_answer_has_expired_is_not_begun_again(
    world: World, later: str
) -> None:
    uuid = built(world)
    move = Mover(world, uuid)
    placement = move.prepare()
    claim_id = move.claim(placement, "b")
    handed_over = MoveInCell(
        request_id=ids.fresh(),
        instance_uuid=uuid,
        migration_uuid=move.migration,
        request_spec=placement.request_spec,
        held=placement.selection.allocation_request,
        selections=(selection("b", claim_id), selection("c")),
    )
    world.cell_call(handed_over)
    becomes(world, uuid, "moved")
    if later != "moved":
        move.end("confirm")
        becomes(world, uuid, "active")
    if later == "moved again":
        Mover(world, uuid).move("a")
        becomes(world, uuid, "moved")
    before = (shown(world, uuid), move.shown())

    purge_stored_requests(world)
    world.cell_call(handed_over)

    assert (shown(world, uuid), move.shown()) == before


# --- Moves ------------------------------------------------------------------------------------------------------------


def end(world: World, uuid: str, outcome: Literal["confirm", "revert", "abort"], migration_uuid: str | None) -> None:
    world.cell_call(
        EndMoveInCell(
            request_id=ids.fresh(),
            instance_uuid=uuid,
            outcome=outcome,
            migration_uuid=migration_uuid,
            order_number=None,
        )
    )


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_an_order_to_end_a_former_migration_does_not_end_the_next_one(
    world: World, outcome: Literal["confirm", "revert"]
) -> None:
    uuid = built(world)
    first, second = Mover(world, uuid), Mover(world, uuid)
    first.move("b")
    becomes(world, uuid, "moved")
    end(world, uuid, "revert", first.migration)
    becomes(world, uuid, "active")
    second.move("c")
    before = becomes(world, uuid, "moved")
    guests = dict(world.agent.guests)

    with pytest.raises(errors.StaleOrder, match=f"it is about migration {first.migration}"):
        end(world, uuid, outcome, first.migration)

    assert (shown(world, uuid), world.agent.guests, second.shown().state) == (before, guests, "moved")
    end(world, uuid, outcome, second.migration)
    becomes(world, uuid, "active")


def test_an_order_to_abort_a_former_migration_does_not_abort_the_next_one(world: World) -> None:
    uuid = built(world)
    first, second = Mover(world, uuid, "live-migration"), Mover(world, uuid, "live-migration")
    first.move("b")
    wait_until(lambda: first.shown().state == "confirmed")
    world.agent.hanging = {"c"}
    second.move("c")

    with pytest.raises(errors.StaleOrder):
        end(world, uuid, "abort", first.migration)

    world.agent.released.set()
    wait_until(lambda: second.shown().state == "confirmed")
    assert becomes(world, uuid, "active").host == "c"


# --- Orders of a cell to its hosts ------------------------------------------------------------------------------------


def test_each_order_to_a_guest_has_a_greater_number_and_keeps_it_when_it_is_repeated(
    world: World,
) -> None:
    uuid = built(world)
    rebuild(world, uuid, "new", None)
    becomes(world, uuid, "active")
    move = Mover(world, uuid)
    world.agent.failing = {"b"}
    move.move("b")
    wait_until(lambda: move.shown().state == "failed")
    world.agent.no_reply_to_orders = {"a"}
    rebuild(world, uuid, "newer", None)
    wait_until(lambda: len(world.agent.orders) > 4)
    world.agent.no_reply_to_orders = set()
    becomes(world, uuid, "active")

    numbers = {order.request_id: order.order_number for order in world.agent.orders}
    ordered = [number for number in numbers.values() if number is not None]
    assert len(ordered) == 4
    assert ordered == sorted(set(ordered))
    assert all(order.order_number == numbers[order.request_id] for order in world.agent.orders)
    assert [type(order) for order in world.agent.orders if order.order_number == ordered[1]] == [StopOnHost]


class WithoutClaims(FakePlacement):
    """Answers each swap that the claim was released, and records the claims that deletes name."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[str | None] = []

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        raise errors.ClaimReleased(consumer_uuid=message.consumer_uuid, claim_id=message.claim_id)

    @serves(DeleteAllocations)
    def delete_allocations(self, message: DeleteAllocations) -> Released:
        self.claims.append(message.claim_id)
        return super().delete_allocations(message)


def test_the_release_after_a_failed_unshelving_names_the_claim_that_it_releases(world: World) -> None:
    placement = world.replace(WithoutClaims())
    uuid = built(world)
    shelve(world, uuid)
    becomes(world, uuid, "shelved")
    placement.claims.clear()
    world.agent.failing = {"b"}
    world.cell_call(PrepareUnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid))
    claim_id = placement.claim(uuid, node("b"), placement.generations[uuid])
    selections = (selection("b", claim_id), selection("c"))
    world.cell_call(UnshelveInCell(request_id=ids.fresh(), instance_uuid=uuid, selections=selections))

    becomes(world, uuid, "shelved")

    assert placement.claims == [claim_id]
