"""Test move instructions: how inventories are divided, and how the allocations of consumers are distributed."""

from typing import Any

import pytest
from sqlalchemy import select
from support.placement_store.builders import Store
from support.placement_store.reshape_builders import Move, Reshaping, child, dealt, everything

from moorage import errors, ids
from moorage.model import Inventory
from placement_store.db import change_feed
from placement_store.db.names import TraitNames
from placement_store.providers import aggregates, traits
from placement_store.schema import resource_providers

EGR, IGR = "NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"
FUNCTION = {"SRIOV_NET_VF": 1, EGR: 500, IGR: 500}


@pytest.fixture
def node(store: Store) -> str:
    """A flat compute node with all inventories."""
    bandwidth: dict[str, Any] = {EGR: 1000, IGR: 1000}
    return store.provider("node", VCPU=16, VGPU=8, SRIOV_NET_VF=2, **bandwidth)


def inventory(store: Store, name: str, resource_class: str) -> Inventory:
    return store.get(store.uuid_of(name)).inventories[resource_class]


# --- The example ------------------------------------------------------------------------------------------------------

MOVES = [
    ("node", {"VGPU": 4}, "node_gpu0"),
    ("node", {"VGPU": 4}, "node_gpu1"),
    ("node", {"SRIOV_NET_VF": 2, EGR: 1000, IGR: 1000}, "node_gpu1"),
]
CHILDREN = (child("node_gpu0", "node"), child("node_gpu1", "node"))


def test_inventories_and_their_allocations_move_to_new_children_in_one_request(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    with_gpus = {ids.fresh(): amount for amount in (3, 3, 1, 1)}
    with_functions, with_neither = [ids.fresh(), ids.fresh()], ids.fresh()
    claims = {uuid: store.claim(uuid, {node: {"VCPU": 1, "VGPU": n}}).claim_id for uuid, n in with_gpus.items()}
    claims |= {uuid: store.claim(uuid, {node: {"VCPU": 1, **FUNCTION}}).claim_id for uuid in with_functions}
    claims[with_neither] = store.claim(with_neither, {node: {"VCPU": 2}}).claim_id
    attempt = ids.fresh()
    store.accept(with_functions[0], claims[with_functions[0]], attempt)
    rows, before, generation = store.rows(), store.get(node), store.generation(node)

    done = reshaping.move(*MOVES, providers=CHILDREN)

    gpus = [store.uuid_of(name) for name in ("node_gpu0", "node_gpu1")]
    assert done.created == {gpus[0]: "node_gpu0", gpus[1]: "node_gpu1"}
    assert done.inventories[node] == {}
    assert store.get(node).inventories == {"VCPU": before.inventories["VCPU"]}
    for uuid in gpus:
        found = store.get(uuid)
        assert (found.root_provider_uuid, found.parent_provider_uuid, found.generation) == (node, node, 1)
        assert found.inventories == done.inventories[uuid]
        assert found.inventories["VGPU"] == Inventory(total=4, max_unit=4)
        assert found.used["VGPU"] == 4
    assert store.used(gpus[1]) == {"VGPU": 4, "SRIOV_NET_VF": 2, EGR: 1000, IGR: 1000}
    for uuid, amount in with_gpus.items():
        assert {**store.held(uuid), node: None} in [{node: None, gpu: {"VGPU": amount}} for gpu in gpus]
    for uuid in with_functions:
        assert store.held(uuid) == {node: {"VCPU": 1}, gpus[1]: FUNCTION}
    for uuid, claim_id in claims.items():
        consumer = store.consumer(uuid)
        assert (consumer.claim_id, consumer.root_provider_uuid) == (claim_id, node)
        assert consumer.accepted_by == (attempt if uuid == with_functions[0] else None)
        assert consumer.generation == (1 if uuid == with_neither else 2)
    vcpus = {row_id: row for row_id, row in rows.items() if row[2] == store.names.id_of("VCPU")}
    assert vcpus.items() <= store.rows().items()
    assert store.generation(node) == generation + 1
    assert store.is_sound()


def test_children_are_created_at_any_depth_with_their_traits_and_aggregates(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    uuid, aggregate = ids.fresh(), ids.fresh()
    TraitNames(store.database).ensure(["CUSTOM_FAST"])
    below = child("deep", "middle", traits=("CUSTOM_FAST", "HW_CPU_X86_AVX2"), aggregates=(aggregate,))

    reshaping.move((node, {"VGPU": 8}, "deep"), providers=(below, child("middle", node, uuid=uuid)))

    found = store.get(store.uuid_of("deep"))
    assert (found.parent_provider_uuid, found.root_provider_uuid) == (uuid, node)
    number = store.scalar(select(resource_providers.c.id).where(resource_providers.c.name == "deep"))
    with store.database.engine.connect() as connection:
        assert traits.of(connection, [number]) == {number: {"CUSTOM_FAST", "HW_CPU_X86_AVX2"}}
        assert aggregates.of(connection, [number]) == {number: {aggregate}}


def test_moved_inventories_move_back_with_their_allocations(store: Store, reshaping: Reshaping, node: str) -> None:
    uuid, before = ids.fresh(), store.get(node).inventories
    store.claim(uuid, {node: {"VCPU": 1, "VGPU": 2}})
    reshaping.move(*MOVES, providers=CHILDREN)

    done = reshaping.move(*((target, resources, source) for source, resources, target in MOVES))

    assert done.created == {}
    assert store.held(uuid) == {node: {"VCPU": 1, "VGPU": 2}}
    after = store.get(node).inventories
    assert {name: one.total for name, one in after.items()} == {name: one.total for name, one in before.items()}
    assert after["VGPU"].max_unit == 8
    assert store.is_sound()
    for name in ("node_gpu0", "node_gpu1"):
        assert store.get(store.uuid_of(name)).inventories == {}


def test_only_changed_providers_are_written_and_recorded_in_the_change_feed(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    pool, other = store.provider("pool", DISK_GB=100), store.provider("other", VCPU=4)
    reshaping.move(*MOVES, providers=CHILDREN)
    uuid = ids.fresh()
    gpu0, gpu1 = (store.uuid_of(name) for name in ("node_gpu0", "node_gpu1"))
    store.claim(uuid, {node: {"VCPU": 1}, gpu0: {"VGPU": 1}, pool: {"DISK_GB": 5}})
    before = {one: (store.generation(one), store.seq(one)) for one in (node, gpu0, gpu1, pool, other)}
    rows, changes = store.rows(), store.changes()

    reshaping.move((gpu0, {"VGPU": 4}, gpu1))

    after = {one: (store.generation(one), store.seq(one)) for one in (node, gpu0, gpu1, pool, other)}
    assert {one for one in before if after[one][0] == before[one][0] + 1} == {gpu0, gpu1}
    assert {one for one in before if after[one][1] > before[one][1]} == {gpu0, gpu1}
    assert {one for one in before if after[one] == before[one]} == {node, pool, other}
    assert store.changes() == changes + 2
    assert len(rows.items() & store.rows().items()) == 2
    assert store.held(uuid) == {node: {"VCPU": 1}, gpu1: {"VGPU": 1}, pool: {"DISK_GB": 5}}


def test_a_new_child_without_inventories_is_recorded_in_the_change_feed(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    last = store.database.read(change_feed.newest)

    reshaping.move((node, {"VGPU": 8}, "gpu"), providers=(child("numa", node), child("gpu", "numa")))

    recorded = store.database.read(lambda connection: change_feed.changes_since(connection, last)).provider_seqs
    query = select(resource_providers.c.id)
    assert recorded.keys() == set(store.database.read(lambda connection: connection.scalars(query).all()))


def test_a_repeated_reshape_is_carried_out_once_and_gets_its_stored_answer(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    message = {"request_id": ids.fresh(), "providers": CHILDREN}
    done = reshaping.move(*MOVES, **message)
    after = everything(store)
    assert reshaping.move(*MOVES, **message) == done
    assert everything(store) == after


def test_a_plan_shows_the_result_and_changes_nothing(store: Store, reshaping: Reshaping, node: str) -> None:
    uuid, named = ids.fresh(), child("node_gpu1", "node", uuid=ids.fresh())
    store.claim(uuid, {node: {"VGPU": 3}})
    before = everything(store)

    plan = reshaping.plan(*MOVES, providers=(CHILDREN[0], named))

    assert everything(store) == before
    done = reshaping.move(*MOVES, providers=(CHILDREN[0], named))
    assert sorted(plan.created.values()) == sorted(done.created.values())
    assert plan.inventories[named.uuid or ""] == done.inventories[named.uuid or ""]
    [planned], [real] = plan.dealt, done.dealt
    assert plan.created[planned.to_resource_provider] == done.created[real.to_resource_provider]
    assert planned.resources == real.resources == {"VGPU": 3}


# --- Distribution -----------------------------------------------------------------------------------------------------


def test_an_impossible_distribution_names_a_consumer_and_changes_nothing(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    consumers = [ids.fresh() for _ in range(2)]
    store.claim(consumers[0], {node: {"VGPU": 5}})
    store.claim(consumers[1], {node: {"VGPU": 3}})
    before, changes = everything(store), store.changes()

    for attempt in (reshaping.move, reshaping.plan):
        with pytest.raises(errors.ImpossibleDeal) as caught:
            attempt(*MOVES, providers=CHILDREN)
        assert (caught.value.consumer_uuid, caught.value.provider_uuid) == (consumers[0], node)
        assert caught.value.reason == "node_gpu0 has 4 of 5 VGPU free; node_gpu1 has 4 of 5 VGPU free"

    assert everything(store) == before
    assert store.changes() == changes


def test_a_search_that_reaches_its_bound_is_refused_and_changes_nothing(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    for amount in (3, 2, 2, 1):
        store.claim(ids.fresh(), {node: {"VGPU": amount}})
    before = everything(store)
    with pytest.raises(errors.SearchBoundReached) as caught:
        reshaping.move(*MOVES, providers=CHILDREN, search_steps=3)
    assert (caught.value.what, caught.value.steps) == ("a deal of what is held of node", 3)
    assert everything(store) == before


def test_allocations_of_an_over_committed_inventory_are_not_moved_into_too_little_room(
    store: Store, reshaping: Reshaping
) -> None:
    node = store.provider("node", VGPU=8)
    for _ in range(8):
        store.claim(ids.fresh(), {node: {"VGPU": 1}})
    store.set_inventories(node, store.generation(node), VGPU=6)
    before = everything(store)
    with pytest.raises(errors.ImpossibleDeal):
        reshaping.move((node, {"VGPU": 3}, "gpu"), providers=(child("gpu", node),))
    assert everything(store) == before


def test_amounts_used_at_the_target_are_counted(store: Store, reshaping: Reshaping, node: str) -> None:
    reshaping.move((node, {"VGPU": 4}, "gpu"), providers=(child("gpu", node),))
    gpu = store.uuid_of("gpu")
    store.claim(ids.fresh(), {gpu: {"VGPU": 3}}, root=node)
    uuids = [ids.fresh() for _ in range(2)]
    for uuid in uuids:
        store.claim(uuid, {node: {"VGPU": 2}})

    # The source keeps 3, but two consumers hold 2 each: one must move, and 2 of 5 are free at the target.
    reshaping.move((node, {"VGPU": 1}, gpu))

    assert {provider for uuid in uuids for provider in store.held(uuid)} == {node, gpu}
    assert (store.used(node)["VGPU"], store.used(gpu)["VGPU"]) == (2, 5)
    assert store.is_sound()


def test_a_distribution_given_by_the_caller_takes_precedence(store: Store, reshaping: Reshaping, node: str) -> None:
    uuids = [ids.fresh() for _ in range(4)]
    for uuid in uuids:
        store.claim(uuid, {node: {"VGPU": 2}})
    distribution = (dealt(uuids[0], "node", "node_gpu1", VGPU=2), dealt(uuids[1], node, "node_gpu1", VGPU=1))

    done = reshaping.move(*MOVES, providers=CHILDREN, dealt=distribution)

    gpu1 = store.uuid_of("node_gpu1")
    assert store.held(uuids[0]) == {gpu1: {"VGPU": 2}}
    # The caller moves one of the two units of this consumer; the other has only one possible place left.
    assert store.held(uuids[1]) == {gpu1: {"VGPU": 2}}
    assert sum(one.resources["VGPU"] for one in done.dealt) == 8
    assert store.is_sound()


@pytest.mark.parametrize(
    ("distribution", "path"),
    [
        (lambda uuid: dealt(uuid, "node", "node_gpu0", VGPU=3), "$.dealt[0].resources['VGPU']"),
        (lambda uuid: dealt(ids.fresh(), "node", "node_gpu0", VGPU=1), "$.dealt[0].resources['VGPU']"),
        (lambda uuid: dealt(uuid, "node", "node_gpu0", VCPU=1), "$.dealt[0].to_resource_provider"),
        (lambda uuid: dealt(uuid, "node", "node", VGPU=1), "$.dealt[0].to_resource_provider"),
        (lambda uuid: dealt(uuid, "node_gpu0", "node", VGPU=1), "$.dealt[0].to_resource_provider"),
    ],
)
def test_an_invalid_distribution_given_by_the_caller_is_refused(
    store: Store, reshaping: Reshaping, node: str, distribution: object, path: str
) -> None:
    uuid = ids.fresh()
    store.claim(uuid, {node: {"VCPU": 1, "VGPU": 2}})
    before = everything(store)
    with pytest.raises(errors.InvalidRequest) as caught:
        reshaping.move(*MOVES, providers=CHILDREN, dealt=(distribution(uuid),))  # type: ignore[operator]
    assert caught.value.path == path
    assert everything(store) == before


def test_a_distribution_given_by_the_caller_that_does_not_fit_is_refused(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    uuids = [ids.fresh() for _ in range(3)]
    for uuid in uuids:
        store.claim(uuid, {node: {"VGPU": 2}})
    distribution = tuple(dealt(uuid, "node", "node_gpu0", VGPU=2) for uuid in uuids)
    with pytest.raises(errors.ImpossibleDeal) as caught:
        reshaping.move(*MOVES, providers=CHILDREN, dealt=distribution)
    assert caught.value.consumer_uuid in uuids


def test_residues_move_as_well(store: Store, reshaping: Reshaping, node: str) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {node: {"VCPU": 1, "VGPU": 2}}).claim_id
    store.accept(uuid, claim_id, attempt)
    store.delete(uuid, for_good=True, leave_residue=True)

    reshaping.move(*MOVES, providers=CHILDREN)

    [held] = [amounts for provider, amounts in store.held(attempt).items() if provider != node]
    assert (held, store.consumer(attempt).consumer_type) == ({"VGPU": 2}, "RESIDUE")
    store.delete(attempt, for_good=True)
    assert store.rows() == {}


# --- Fields of inventories --------------------------------------------------------------------------------------------


def test_a_moved_part_keeps_the_unit_rules_as_far_as_its_total_permits(store: Store, reshaping: Reshaping) -> None:
    whole = Inventory(total=10, min_unit=3, max_unit=8, step_size=3, allocation_ratio=2.0, reserved=1)
    node = store.provider("node", VGPU=whole)

    reshaping.move(
        (node, {"VGPU": 5}, "large"),
        (node, {"VGPU": 2}, "small"),
        providers=(child("large", node), child("small", node)),
    )

    assert inventory(store, "node", "VGPU") == Inventory(
        total=3, min_unit=3, max_unit=8, step_size=3, allocation_ratio=2.0, reserved=1
    )
    assert inventory(store, "large", "VGPU") == Inventory(
        total=5, min_unit=3, max_unit=5, step_size=3, allocation_ratio=2.0
    )
    assert inventory(store, "small", "VGPU") == Inventory(
        total=2, min_unit=2, max_unit=2, step_size=2, allocation_ratio=2.0
    )


def test_described_fields_take_precedence_and_max_unit_is_at_most_the_total(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    fields = {"VGPU": {"reserved": 1, "max_unit": 99, "step_size": 2, "allocation_ratio": 1.5}}
    reshaping.move((node, {"VGPU": 4}, "gpu"), providers=(child("gpu", node, fields),))
    assert inventory(store, "gpu", "VGPU") == Inventory(
        total=4, reserved=1, max_unit=4, step_size=2, allocation_ratio=1.5
    )

    reshaping.move((node, {"VGPU": 2}, "gpu"))

    # The inventory grows; its max_unit was the whole total, and is so again.
    assert inventory(store, "gpu", "VGPU") == Inventory(
        total=6, reserved=1, max_unit=6, step_size=2, allocation_ratio=1.5
    )


def test_the_reserved_amount_stays_on_the_source_while_it_has_inventory(store: Store, reshaping: Reshaping) -> None:
    node = store.provider("node", VGPU=Inventory(total=8, reserved=3))
    reshaping.move((node, {"VGPU": 5}, "gpu"), providers=(child("gpu", node),))
    assert (inventory(store, "node", "VGPU").reserved, inventory(store, "gpu", "VGPU").reserved) == (3, 0)


@pytest.mark.parametrize(("moved", "reserved"), [(7, 1), (8, 2)])
def test_a_move_that_would_lose_a_reserved_amount_is_refused(
    store: Store, reshaping: Reshaping, moved: int, reserved: int
) -> None:
    node = store.provider("node", VGPU=Inventory(total=8, reserved=2))
    before = everything(store)
    for too_little in range(reserved):
        fields = {"VGPU": {"reserved": too_little}}
        with pytest.raises(errors.InvalidInventory, match="set `reserved` for a target"):
            reshaping.move((node, {"VGPU": moved}, "gpu"), providers=(child("gpu", node, fields),))
        assert everything(store) == before

    fields = {"VGPU": {"reserved": reserved}}
    reshaping.move((node, {"VGPU": moved}, "gpu"), providers=(child("gpu", node, fields),))
    assert inventory(store, "gpu", "VGPU").reserved == reserved


def test_a_reserved_amount_that_cannot_stay_goes_to_existing_providers(store: Store, reshaping: Reshaping) -> None:
    node = store.provider("node", VCPU=8)
    for name, total, reserved in (("gpu0", 4, 3), ("gpu1", 2, 1)):
        store.provider(name, parent=node, VGPU=Inventory(total=total, reserved=reserved))
    store.provider("gpu2", parent=node, VGPU=Inventory(total=4, reserved=3))
    holding = ids.fresh()
    store.put(holding, {store.uuid_of("gpu0"): {"VGPU": 1}})

    # The first target has room for one more; the root has no such inventory yet.
    reshaping.move(("gpu1", {"VGPU": 2}, "gpu2"), ("gpu0", {"VGPU": 2}, "gpu2"), ("gpu0", {"VGPU": 2}, node))

    assert (inventory(store, "gpu2", "VGPU").total, inventory(store, "gpu2", "VGPU").reserved) == (8, 7)
    assert (inventory(store, "node", "VGPU").total, inventory(store, "node", "VGPU").reserved) == (2, 0)
    assert store.is_sound()


def test_a_reserved_amount_goes_on_from_a_provider_that_loses_more_than_it_gets(
    store: Store, reshaping: Reshaping
) -> None:
    node = store.provider("node", VCPU=8)
    store.provider("gpu0", parent=node, VGPU=Inventory(total=8, reserved=6))
    for name in ("gpu1", "gpu2"):
        store.provider(name, parent=node, VGPU=4)

    reshaping.move(("gpu0", {"VGPU": 7}, "gpu1"), ("gpu2", {"VGPU": 1}, "gpu0"))

    shown = [inventory(store, name, "VGPU") for name in ("gpu0", "gpu1", "gpu2")]
    assert [(one.total, one.reserved) for one in shown] == [(2, 2), (11, 4), (3, 0)]


def test_the_reserved_amounts_of_children_go_to_the_root_that_gets_their_inventories(
    store: Store, reshaping: Reshaping
) -> None:
    node = store.provider("node", VCPU=8)
    for name in ("gpu0", "gpu1"):
        store.provider(name, parent=node, VGPU=Inventory(total=4, reserved=1))

    reshaping.move(("gpu0", {"VGPU": 4}, node), ("gpu1", {"VGPU": 4}, node))

    assert inventory(store, "node", "VGPU").reserved == 2


def test_a_reserved_amount_goes_to_no_existing_provider_for_which_the_request_sets_it(
    store: Store, reshaping: Reshaping
) -> None:
    node = store.provider("node", VGPU=Inventory(total=4, reserved=3))
    store.provider("gpu", parent=node)
    for reserved in (0, 2):
        described = child("gpu", node, {"VGPU": {"reserved": reserved}})
        with pytest.raises(errors.InvalidInventory, match=f"{3 - reserved} of it are reserved"):
            reshaping.move((node, {"VGPU": 4}, "gpu"), providers=(described,))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"reserved": 5}, "more is reserved than there is"),
        ({"min_unit": 5}, "no amount keeps"),
        ({"step_size": 3, "max_unit": 2}, "no amount keeps"),
        ({"allocation_ratio": 1e308}, "allocation_ratio is too large"),
    ],
)
def test_an_invalid_inventory_is_refused_by_provider_and_class(
    store: Store, reshaping: Reshaping, node: str, fields: dict[str, float], reason: str
) -> None:
    uuid = ids.fresh()
    with pytest.raises(errors.InvalidInventory, match=reason) as caught:
        reshaping.move((node, {"VGPU": 4}, "gpu"), providers=(child("gpu", node, {"VGPU": fields}, uuid=uuid),))
    assert (caught.value.provider_uuid, caught.value.resource_class) == (uuid, "VGPU")


# --- Invalid requests -------------------------------------------------------------------------------------------------


def test_more_than_the_total_cannot_be_moved(store: Store, reshaping: Reshaping, node: str) -> None:
    for moves in ([(node, {"VGPU": 9}, "gpu")], [(node, {"VGPU": 5}, "gpu"), (node, {"VGPU": 4}, "gpu")]):
        with pytest.raises(errors.InvalidInventory, match="9 are to be moved and there are 8") as caught:
            reshaping.move(*moves, providers=(child("gpu", node),))
        assert (caught.value.provider_uuid, caught.value.resource_class) == (node, "VGPU")
    with pytest.raises(errors.InvalidInventory, match="there are 0"):
        reshaping.move((node, {"PCI_DEVICE": 1}, "gpu"), providers=(child("gpu", node),))
    with pytest.raises(errors.InvalidInventory, match="there are 0"):
        reshaping.move(("gpu", {"VGPU": 1}, node), providers=(child("gpu", node),))


def test_a_missing_provider_class_or_trait_is_not_found(store: Store, reshaping: Reshaping, node: str) -> None:
    before = everything(store)
    cases: list[tuple[list[Move], dict[str, Any], str, type[errors.NotFound]]] = [
        ([("nowhere", {"VGPU": 1}, "neither")], {}, "nowhere", errors.ProviderNotFound),
        ([("node", {"VGPU": 1}, "neither")], {}, "neither", errors.ProviderNotFound),
        ([("node", {"VGPU": 1}, "gpu")], {"providers": (child("gpu", "none"),)}, "none", errors.ProviderNotFound),
        ([("node", {"CUSTOM_NO": 1}, "gpu")], {"providers": (child("gpu", "node"),)}, "CUSTOM_NO", errors.NotFound),
        (
            [("node", {"VGPU": 1}, "gpu")],
            {"providers": (child("gpu", "node", traits=("CUSTOM_NO",)),)},
            "CUSTOM_NO",
            errors.TraitNotFound,
        ),
    ]
    for moves, more, missing, error in cases:
        for attempt in (reshaping.move, reshaping.plan):
            with pytest.raises(error) as caught:
                attempt(*moves, **more)
            assert caught.value.name == missing
    assert everything(store) == before


def test_all_providers_of_a_request_must_be_in_one_tree(store: Store, reshaping: Reshaping, node: str) -> None:
    store.provider("other", VGPU=8)
    gpu = (child("gpu", node),)
    cases: list[tuple[list[Move], dict[str, Any], str]] = [
        ([(node, {"VGPU": 1}, "other")], {}, "$.instructions[0].to_resource_provider"),
        (
            [(node, {"VGPU": 1}, "gpu"), ("other", {"VGPU": 1}, "gpu")],
            {"providers": gpu},
            "$.instructions[1].from_resource_provider",
        ),
        ([(node, {"VGPU": 1}, "gpu")], {"providers": (child("gpu", "other"),)}, "$.providers[0].parent"),
        ([(node, {"VGPU": 1}, "gpu")], {"providers": (*gpu, child("other", node))}, "$.providers[1].name"),
    ]
    for moves, more, path in cases:
        with pytest.raises(errors.InvalidRequest, match="in different trees") as caught:
            reshaping.move(*moves, **more)
        assert caught.value.path == path


def test_an_existing_child_must_match_its_description(store: Store, reshaping: Reshaping, node: str) -> None:
    uuid = ids.fresh()
    reshaping.move((node, {"VGPU": 1}, "gpu"), providers=(child("gpu", node, uuid=uuid), child("nic", node)))
    before = everything(store)
    for providers, path, reason in [
        ((child("gpu", "nic"),), "$.providers[0].parent", "under another parent"),
        ((child("gpu", node, uuid=ids.fresh()),), "$.providers[0].name", f"the name of provider {uuid}"),
        ((child("gpu2", node, uuid=uuid),), "$.providers[0].uuid", "this is the provider gpu"),
        ((child("gpu", node), child("gpu", node)), "$.providers[1].name", "described twice"),
        ((child("a", "b"), child("b", "a")), "$.providers[0].parent", "its own ancestor"),
        ((child("gpu", node, {"VCPU": {}}),), "$.providers", "none of it moves there"),
    ]:
        with pytest.raises(errors.InvalidRequest, match=reason) as caught:
            reshaping.move((node, {"VGPU": 1}, "gpu"), providers=providers)
        assert caught.value.path == path
    assert everything(store) == before

    reshaping.move((node, {"VGPU": 1}, "gpu"), providers=(child("gpu", node, uuid=uuid),))
    assert inventory(store, "gpu", "VGPU").total == 2


def test_a_move_to_the_same_provider_is_refused(store: Store, reshaping: Reshaping, node: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        reshaping.move((node, {"VGPU": 1}, "node"))
    assert caught.value.path == "$.instructions[0].to_resource_provider"
