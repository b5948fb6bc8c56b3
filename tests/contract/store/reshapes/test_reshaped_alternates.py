"""Test alternates chosen before their host was reshaped: their amounts are translated to the new providers."""

from typing import Any, cast

import pytest
from support.placement_store.builders import Amounts, Store, request
from support.placement_store.reshape_builders import Reshaping, child

from conductor.cell.reshaped_alternates import translated_alternate
from moorage import ids
from moorage.model import AllocationRequest, Flavor, RequestSpec, Selection

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=2, memory_mb=512))
ISOLATED = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=2, memory_mb=512), group_policy="isolate")


@pytest.fixture
def node(store: Store) -> str:
    return store.provider("node", VCPU=8, VGPU=4)


def alternate(node: str, amounts: Amounts, **mappings: tuple[str, ...]) -> Selection:
    named = {suffix.replace("unsuffixed", ""): uuids for suffix, uuids in mappings.items()}
    return Selection(
        service_host="host",
        nodename="node",
        compute_node_uuid=node,
        cell_uuid=ids.fresh(),
        agent="agent",
        availability_zone="nova",
        allocation_request=AllocationRequest(allocations=request(amounts).allocations, mappings=named),
    )


def translated(store: Store, spec: RequestSpec, chosen: Selection) -> AllocationRequest | None:
    return translated_alternate(cast(Any, store.dispatcher), spec, chosen)


def amounts(found: AllocationRequest | None) -> dict[str, dict[str, int]]:
    assert found is not None
    return {uuid: dict(part.resources) for uuid, part in found.allocations.items()}


def test_amounts_moved_to_a_child_are_claimed_there_and_the_rest_at_its_old_place(store: Store, node: str) -> None:
    chosen = alternate(node, {node: {"VCPU": 2, "VGPU": 1}}, unsuffixed=(node,))
    Reshaping(store).move((node, {"VGPU": 4}, "gpu"), providers=(child("gpu", node),))
    gpu = store.uuid_of("gpu")

    found = translated(store, SPEC, chosen)

    assert amounts(found) == {node: {"VCPU": 2}, gpu: {"VGPU": 1}}
    assert found is not None
    assert set(found.mappings[""]) == {node, gpu}
    store.claim(ids.fresh(), {node: {"VCPU": 2}, gpu: {"VGPU": 1}})


def test_an_alternate_is_not_translated_if_its_host_was_not_reshaped(store: Store, node: str) -> None:
    store.claim(ids.fresh(), {node: {"VGPU": 4}})

    assert translated(store, SPEC, alternate(node, {node: {"VGPU": 1}}, unsuffixed=(node,))) is None
    assert translated(store, SPEC, alternate(ids.fresh(), {ids.fresh(): {"VGPU": 1}})) is None


def test_an_alternate_is_not_translated_if_no_child_has_room_for_a_whole_amount(store: Store, node: str) -> None:
    chosen = alternate(node, {node: {"VGPU": 3}}, unsuffixed=(node,))
    Reshaping(store).move(
        (node, {"VGPU": 2}, "gpu0"), (node, {"VGPU": 2}, "gpu1"), providers=(child("gpu0", node), child("gpu1", node))
    )

    assert translated(store, SPEC, chosen) is None


def test_translation_keeps_only_isolated_groups_apart(store: Store) -> None:
    node = store.provider("node", VCPU=8)
    old = [store.provider(f"old{number}", parent=node, VGPU=2) for number in range(2)]
    chosen = alternate(
        node,
        {node: {"VCPU": 2}, old[0]: {"VGPU": 1}, old[1]: {"VGPU": 1}},
        unsuffixed=(node,),
        _a=(old[0],),
        _b=(old[1],),
    )
    Reshaping(store).move((old[0], {"VGPU": 2}, "new"), (old[1], {"VGPU": 2}, "new"), providers=(child("new", node),))
    new = store.uuid_of("new")

    assert amounts(translated(store, SPEC, chosen)) == {node: {"VCPU": 2}, new: {"VGPU": 2}}
    assert translated(store, ISOLATED, chosen) is None

    another = store.provider("another", parent=node, VGPU=1)
    found = translated(store, ISOLATED, chosen)
    assert amounts(found) == {node: {"VCPU": 2}, new: {"VGPU": 1}, another: {"VGPU": 1}}
    assert found is not None
    assert set(found.mappings["_a"]) | set(found.mappings["_b"]) == {new, another}


def test_an_isolated_group_that_has_moved_stays_apart_from_one_that_has_not(store: Store) -> None:
    node = store.provider("node", VCPU=8)
    stays, goes = (store.provider(name, parent=node, VGPU=4) for name in ("stays", "goes"))
    chosen = alternate(node, {stays: {"VGPU": 1}, goes: {"VGPU": 1}}, _a=(stays,), _b=(goes,))
    Reshaping(store).move((goes, {"VGPU": 4}, stays))

    assert amounts(translated(store, SPEC, chosen)) == {stays: {"VGPU": 2}}
    assert translated(store, ISOLATED, chosen) is None
