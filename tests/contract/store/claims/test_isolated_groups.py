"""Test isolated request groups: no reshape moves two of them to one provider, after any change of the claim."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from support.placement_store.builders import Amounts, Store, request
from support.placement_store.move_builders import Moving, row
from support.placement_store.reshape_builders import Reshaping, child, dealt

from moorage import errors, ids
from moorage.messages import HealConsumers, PutAllocations
from moorage.model import AllocationRequest, ConsumerAllocations, ProviderAmounts, RecordedHold, SeenConsumer

GPU = {"VGPU": 1}


class Host:
    """A host with two GPUs."""

    def __init__(self, store: Store, name: str) -> None:
        self.node = store.provider(name, VCPU=8)
        self.gpus = [store.provider(f"{name} gpu{number}", parent=self.node, VGPU=4) for number in range(2)]

    @property
    def amounts(self) -> Amounts:
        return {self.node: {"VCPU": 1}, self.gpus[0]: GPU, self.gpus[1]: GPU}

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        return {f"_{number}": (gpu,) for number, gpu in enumerate(self.gpus, 1)}

    @property
    def request(self) -> AllocationRequest:
        return structs.replace(request(self.amounts), mappings={"": (self.node,), **self.groups})


@pytest.fixture
def host(store: Store) -> Host:
    return Host(store, "host")


@pytest.fixture
def other(store: Store) -> Host:
    return Host(store, "other")


def merge(reshaping: Reshaping, host: Host) -> None:
    """Move all VGPUs of a host to one of its GPUs."""
    reshaping.move((host.gpus[0], {"VGPU": 4}, host.gpus[1]))


def is_kept_apart(reshaping: Reshaping, host: Host) -> bool:
    try:
        merge(reshaping, host)
    except errors.ImpossibleDeal as fault:
        return "whose groups are isolated" in fault.reason
    return False


@pytest.mark.parametrize("isolated", [True, False])
def test_a_reshape_merges_groups_only_if_they_are_not_isolated(
    store: Store, host: Host, reshaping: Reshaping, isolated: bool
) -> None:
    uuid = ids.fresh()
    store.claim(uuid, host.amounts, isolated=host.groups if isolated else {})

    assert is_kept_apart(reshaping, host) is isolated
    assert store.held(uuid) == (host.amounts if isolated else {host.node: {"VCPU": 1}, host.gpus[1]: {"VGPU": 2}})


def test_groups_moved_by_a_reshape_stay_isolated_in_the_next_one(
    store: Store, host: Host, reshaping: Reshaping
) -> None:
    uuid = ids.fresh()
    store.claim(uuid, host.amounts, isolated=host.groups)
    reshaping.move((host.gpus[0], {"VGPU": 4}, "part"), providers=(child("part", host.gpus[0]),))

    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        reshaping.move(("part", {"VGPU": 4}, host.gpus[1]))
    # The first provider holds nothing of the first group any more.
    reshaping.move((host.gpus[1], {"VGPU": 4}, host.gpus[0]))
    assert host.gpus[1] not in store.held(uuid)
    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        reshaping.move(("part", {"VGPU": 4}, host.gpus[0]))


def test_a_distribution_given_by_the_caller_must_keep_groups_isolated(
    store: Store, host: Host, reshaping: Reshaping
) -> None:
    uuid = ids.fresh()
    store.claim(uuid, host.amounts, isolated=host.groups)
    merging = dealt(uuid, host.gpus[0], host.gpus[1], VGPU=1)
    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        reshaping.plan((host.gpus[0], {"VGPU": 2}, host.gpus[1]), dealt=(merging,))
    # Without a given distribution, the consumer stays where it is.
    reshaping.move((host.gpus[0], {"VGPU": 2}, host.gpus[1]))
    assert store.held(uuid) == host.amounts


def test_an_attached_group_is_isolated_until_it_is_detached(store: Store, host: Host, reshaping: Reshaping) -> None:
    uuid = ids.fresh()
    alone = {host.node: {"VCPU": 1}, host.gpus[0]: GPU}
    store.claim(uuid, alone, isolated={"_1": (host.gpus[0],)})

    def put(amounts: Amounts, generation: int, **isolated: tuple[str, ...]) -> None:
        wanted = ConsumerAllocations(
            allocations={node: ProviderAmounts(resources=dict(part)) for node, part in amounts.items()},
            project_id="project",
            user_id="user",
            consumer_generation=generation,
            isolated=isolated,
        )
        store.dispatcher.call(PutAllocations(request_id=ids.fresh(), consumer_uuid=uuid, wanted=wanted))

    put(host.amounts, 1, _2=(host.gpus[1],))
    assert is_kept_apart(reshaping, host)

    put(alone, store.consumer(uuid).generation, _2=())
    assert not is_kept_apart(reshaping, host)


def moved(store: Store, moving: Moving, host: Host, other: Host) -> Host:
    moving.begin(other.amounts, new={"isolated": other.groups})
    moving.accept()
    return other


def confirmed(store: Store, moving: Moving, host: Host, other: Host) -> Host:
    moved(store, moving, host, other)
    moving.confirm()
    return other


def moving_away(store: Store, moving: Moving, host: Host, other: Host) -> Host:
    moved(store, moving, host, other)
    return host


def reverted(store: Store, moving: Moving, host: Host, other: Host) -> Host:
    moved(store, moving, host, other)
    moving.revert(guest_gone=True)
    return host


@pytest.mark.parametrize("become", [moved, confirmed, moving_away, reverted])
def test_groups_stay_isolated_during_and_after_a_move(
    store: Store, host: Host, other: Host, reshaping: Reshaping, become: Callable[..., Host]
) -> None:
    moving = Moving(store, host.amounts).build(isolated=host.groups)
    assert is_kept_apart(reshaping, become(store, moving, host, other))


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_groups_served_by_a_pool_that_is_reshaped_during_a_move_stay_isolated(
    store: Store, reshaping: Reshaping, outcome: str
) -> None:
    source, destination = (store.provider(name, VCPU=8) for name in ("source", "destination"))
    pool = store.provider("pool")
    gpus = [store.provider(f"gpu{number}", parent=pool, VGPU=4) for number in range(2)]
    of_pool, groups = dict.fromkeys(gpus, GPU), {f"_{number}": (gpu,) for number, gpu in enumerate(gpus, 1)}
    # Until the move ends, the instance holds what the pool serves to both sides.
    moving = Moving(store, {source: {"VCPU": 1}, **of_pool}).build(isolated=groups)
    moving.begin({destination: {"VCPU": 1}, **of_pool}, new={"isolated": groups})
    moving.accept()
    reshaping.move((gpus[0], {"VGPU": 4}, "part"), providers=(child("part", pool),))

    moving.revert(guest_gone=True) if outcome == "revert" else moving.confirm()
    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        reshaping.move(("part", {"VGPU": 4}, gpus[1]))
    reshaping.move((gpus[1], {"VGPU": 4}, gpus[0]))


@pytest.mark.parametrize("served", [(0, 1), (0,)])
def test_a_pool_reshaped_during_a_move_to_a_flavor_without_isolation_keeps_the_groups_of_the_source_apart(
    store: Store, reshaping: Reshaping, served: tuple[int, ...]
) -> None:
    source, destination = (store.provider(name, VCPU=8) for name in ("source", "destination"))
    pool = store.provider("pool")
    gpus = [store.provider(f"gpu{number}", parent=pool, VGPU=4) for number in range(2)]
    groups = {f"_{number}": (gpu,) for number, gpu in enumerate(gpus, 1)}
    moving = Moving(store, {source: {"VCPU": 1}, **dict.fromkeys(gpus, GPU)}).build(isolated=groups)
    # What both sides use is held by the instance, and anything else of the source by the migration.
    moving.begin({destination: {"VCPU": 1}} | {gpus[number]: GPU for number in served})
    moving.accept()

    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        reshaping.move(*((gpu, {"VGPU": 4}, "part") for gpu in gpus), providers=(child("part", pool),))
    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        reshaping.move((gpus[0], {"VGPU": 4}, gpus[1]))
    moving.confirm()
    reshaping.move((gpus[0], {"VGPU": 4}, gpus[1]))


def test_the_groups_of_the_source_do_not_bind_what_only_the_destination_has(
    store: Store, host: Host, reshaping: Reshaping
) -> None:
    moving = Moving(store, host.amounts).build(isolated=host.groups)
    moving.begin(host.amounts)
    moving.accept()
    third = store.provider("third", parent=host.node, VGPU=1)
    given = [dealt(moving.uuid, host.gpus[number], third, VGPU=1) for number in range(2)]
    reshaping.move((host.gpus[0], {"VGPU": 1}, third), (host.gpus[1], {"VGPU": 1}, third), dealt=given)
    assert store.held(moving.uuid)[third] == {"VGPU": 2}


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_reshape_during_a_resize_on_one_host_moves_the_groups_of_only_one_side(
    store: Store, host: Host, reshaping: Reshaping, outcome: str
) -> None:
    moving = Moving(store, host.amounts).build(isolated=host.groups)
    moving.begin(host.amounts, new={"isolated": host.groups})
    moving.accept()
    third = store.provider("third", parent=host.node, VGPU=1)
    moving_one = dealt(moving.uuid, host.gpus[0], third, VGPU=1)
    reshaping.move((host.gpus[0], {"VGPU": 1}, third), dealt=(moving_one,))

    moving.revert(guest_gone=True) if outcome == "revert" else moving.confirm()
    first, other = (host.gpus[0], third) if outcome == "revert" else (third, host.gpus[0])
    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        reshaping.move((first, {"VGPU": store.get(first).inventories["VGPU"].total}, host.gpus[1]))
    reshaping.move((host.gpus[1], {"VGPU": 4}, other))


@pytest.mark.parametrize("isolated", [True, False])
def test_a_swap_keeps_the_isolation_of_groups(
    store: Store, host: Host, other: Host, reshaping: Reshaping, isolated: bool
) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, host.amounts, isolated=host.groups if isolated else {}).claim_id
    message = store.swap_message(uuid, claim_id, host.amounts, other.amounts)
    store.dispatcher.call(structs.replace(message, claimed=other.request))

    assert is_kept_apart(reshaping, other) is isolated


def recorded(uuid: str, claim_id: str, attempt: str, host: Host) -> RecordedHold:
    """Return the record of an instance with all amounts of a host and both groups isolated."""
    return RecordedHold(
        consumer_uuid=uuid,
        consumer_type="INSTANCE",
        claim_id=claim_id,
        root_provider_uuid=host.node,
        accepted_by=attempt,
        accepted_host="host",
        allocations={node: ProviderAmounts(resources=dict(part)) for node, part in host.amounts.items()},
        project_id="project",
        user_id="user",
        isolated=host.groups,
    )


@pytest.mark.parametrize("harm", ["lost", "shortened"])
def test_a_heal_restores_the_recorded_isolation_of_groups(
    store: Store, host: Host, reshaping: Reshaping, harm: str
) -> None:
    uuid, attempt, claim_id = ids.fresh(), ids.fresh(), ids.fresh()
    seen: dict[str, Any] = {}
    if harm == "shortened":
        claim_id = store.claim(uuid, {host.node: {"VCPU": 1}}, isolated=host.groups).claim_id
        store.accept(uuid, claim_id, attempt)
        seen = {"generation": store.consumer(uuid).generation, "claim_id": claim_id}
    hold = recorded(uuid, claim_id, attempt, host)
    store.dispatcher.call(HealConsumers(request_id=ids.fresh(), seen={uuid: SeenConsumer(**seen)}, holds=(hold,)))

    assert store.held(uuid) == host.amounts
    assert is_kept_apart(reshaping, host)


def test_a_heal_keeps_the_isolation_of_groups_that_a_reshape_has_moved_and_the_time_of_the_claim(
    store: Store, host: Host, reshaping: Reshaping
) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, host.amounts, isolated=host.groups).claim_id
    store.accept(uuid, claim_id, attempt)
    store.age("consumers", "claimed_at", 100.0)
    claimed_at = row(store, uuid).claimed_at
    reshaping.move((host.gpus[0], {"VGPU": 4}, "part"), providers=(child("part", host.gpus[0]),))
    seen = SeenConsumer(generation=store.consumer(uuid).generation, claim_id=claim_id)

    hold = recorded(uuid, claim_id, attempt, host)
    store.dispatcher.call(HealConsumers(request_id=ids.fresh(), seen={uuid: seen}, holds=(hold,)))

    assert row(store, uuid).claimed_at == claimed_at
    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        reshaping.move(("part", {"VGPU": 4}, host.gpus[1]))
