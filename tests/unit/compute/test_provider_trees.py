"""Test provider trees: changes by drivers, and the reports and moves that bring the store's tree up to date."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.provider_tree import ProviderTree
from compute.tree_changes import TreeChange, compare, moves
from moorage import errors, ids
from moorage.model import HostReport, Inventory, InventoryFields, MoveInstruction, ResourceProvider

HOST = HostReport(service_host="h", nodename="h", compute_node_uuid=ids.derived("h"), agent="agent1")
ROOT = HOST.compute_node_uuid


def tree(**children: dict[str, int]) -> ProviderTree:
    """A tree whose root has nothing, with children by name and their totals by class; `h` is the root itself."""
    made = ProviderTree()
    made.new_root("h", ROOT)
    for name, totals in children.items():
        provider = made.find(name) or made.new_child(name, "h")
        made.set_inventories(provider.uuid, {kind: Inventory(total=total) for kind, total in totals.items()})
    return made


def stored(made: ProviderTree) -> ProviderTree:
    """Return the tree with generations, as the store answers it."""
    found = made.copy()
    found.set_generations({provider.uuid: 7 for provider in made})
    return found


def moved(before: ProviderTree, after: ProviderTree) -> list[tuple[str, dict[str, int], str]]:
    names = {provider.uuid: provider.name for each in (before, after) for provider in each}
    return [
        (names[one.from_resource_provider], dict(one.moved_resources), names[one.to_resource_provider])
        for one in moves(before, after)
    ]


# --- Trees ----------------------------------------------------------------------------------------------------------


def test_a_tree_is_built_from_the_stores_records() -> None:
    record = ResourceProvider(
        uuid=ROOT,
        name="h",
        generation=3,
        root_provider_uuid=ROOT,
        inventories={"VCPU": Inventory(total=4)},
        used={"VCPU": 1},
        traits=("HW_NUMA_ROOT",),
        aggregates=(ids.derived("a"),),
    )

    (found,) = ProviderTree.of([record])

    assert (found.uuid, found.name, found.parent_uuid, found.generation) == (ROOT, "h", None, 3)
    assert found.inventories == record.inventories
    assert found.traits == {"HW_NUMA_ROOT"}
    assert found.aggregates == {ids.derived("a")}


def test_providers_are_found_by_name_and_uuid_and_their_uuids_are_derived() -> None:
    made = tree(gpu={})

    assert made.get("gpu") == made.get(made.get("gpu").uuid)
    assert made.get("gpu").uuid == tree(gpu={}).get("gpu").uuid
    assert made.find("nic") is None
    with pytest.raises(errors.ProviderNotFound):
        made.get("nic")


def test_names_and_uuids_are_unique() -> None:
    made = tree(gpu={})

    with pytest.raises(errors.AlreadyExists):
        made.new_root("other", ids.fresh())
    with pytest.raises(errors.AlreadyExists):
        made.new_child("gpu", "h")
    with pytest.raises(errors.AlreadyExists):
        made.new_child("gpu2", "h", made.get("gpu").uuid)
    with pytest.raises(errors.ProviderNotFound):
        made.new_child("gpu2", "nowhere")


def test_a_provider_is_removed_with_its_descendants() -> None:
    made = tree(numa={}, gpu={})
    made.new_child("core", "numa")
    made.new_child("thread", "core")

    made.remove("numa")

    assert [provider.name for provider in made] == ["h", "gpu"]


def test_a_change_affects_only_what_it_names() -> None:
    made = tree(gpu={"VGPU": 4})
    made.set_traits("gpu", ["CUSTOM_A", "CUSTOM_B"])
    made.set_aggregates("gpu", [ids.derived("a")])
    before = made.copy()

    made.add_traits("gpu", ["CUSTOM_C"])
    made.remove_traits("gpu", ["CUSTOM_A", "CUSTOM_NEVER"])
    made.add_aggregates("gpu", [ids.derived("b")])
    made.set_inventory("gpu", "CUSTOM_X", Inventory(total=1))
    made.remove_inventory("gpu", "VGPU")
    made.remove_inventory("gpu", "VCPU")

    gpu = made.get("gpu")
    assert gpu.traits == {"CUSTOM_B", "CUSTOM_C"}
    assert gpu.aggregates == {ids.derived("a"), ids.derived("b")}
    assert gpu.inventories == {"CUSTOM_X": Inventory(total=1)}
    assert set(before.get("gpu").inventories) == {"VGPU"}, "a copy is a tree of its own"
    assert made.get("h") == before.get("h")


# --- Reports --------------------------------------------------------------------------------------------------------


def test_an_unchanged_tree_needs_no_report() -> None:
    before = stored(tree(gpu={"VGPU": 4}))
    after = before.copy()
    after.remove("gpu")
    after.new_child("gpu", "h")
    after.set_inventory("gpu", "VGPU", Inventory(total=4))

    assert len(compare(HOST, before, before.copy())) == 0
    assert len(compare(HOST, before, after)) == 0, "removed and added again"


def test_a_report_leaves_out_unchanged_aggregates() -> None:
    before = stored(tree(gpu={"VGPU": 4}, nic={}))
    after = before.copy()
    after.add_traits("gpu", ["CUSTOM_A"])

    (report,) = compare(HOST, before, after).reports

    assert (report.name, report.generation, report.parent_provider_uuid) == ("gpu", 7, ROOT)
    assert (report.traits, report.aggregates) == (("CUSTOM_A",), None)
    assert report.inventories == {"VGPU": Inventory(total=4)}


def test_the_removal_of_the_last_trait_is_reported() -> None:
    before = stored(tree(gpu={}))
    before.set_traits("gpu", ["CUSTOM_A"])
    after = before.copy()
    after.set_traits("gpu", [])

    (report,) = compare(HOST, before, after).reports

    assert report.traits == ()


def test_children_are_deleted_before_their_parents() -> None:
    before = tree(numa={})
    before.new_child("core", "numa")
    names = {provider.uuid: provider.name for provider in before}

    change = compare(HOST, stored(before), stored(tree()))

    assert [names[uuid] for uuid in change.gone] == ["core", "numa"]


# --- Moves ----------------------------------------------------------------------------------------------------------


def test_vgpus_of_a_node_move_to_two_new_children() -> None:
    flat, nested = tree(h={"VGPU": 8, "VCPU": 4}), tree(h={"VCPU": 4}, gpu0={"VGPU": 4}, gpu1={"VGPU": 4})

    assert moved(flat, nested) == [("h", {"VGPU": 4}, "gpu0"), ("h", {"VGPU": 4}, "gpu1")]
    assert moved(nested, flat) == [("gpu0", {"VGPU": 4}, "h"), ("gpu1", {"VGPU": 4}, "h")]


def test_classes_that_move_to_the_same_provider_share_one_instruction() -> None:
    flat = tree(h={"SRIOV_NET_VF": 2, "CUSTOM_BW": 1000})
    nested = tree(nic={"SRIOV_NET_VF": 2, "CUSTOM_BW": 1000})

    assert moved(flat, nested) == [("h", {"SRIOV_NET_VF": 2, "CUSTOM_BW": 1000}, "nic")]


def test_an_inventory_that_grows_shrinks_or_disappears_moves_nothing() -> None:
    before = tree(gpu0={"VGPU": 4}, gpu1={"VGPU": 4})

    assert moved(before, tree(gpu0={"VGPU": 6}, gpu1={"VGPU": 2})) == []
    assert moved(before, tree(gpu0={"VGPU": 4})) == [], "no other provider has more of it"
    assert moved(ProviderTree(), before) == []


def test_a_move_is_limited_by_the_inventory_and_by_the_room() -> None:
    assert moved(tree(h={"VCPU": 12}), tree(a={"VCPU": 8}, b={"VCPU": 8})) == [
        ("h", {"VCPU": 8}, "a"),
        ("h", {"VCPU": 4}, "b"),
    ]
    assert moved(tree(h={"VCPU": 12}), tree(a={"VCPU": 8})) == [("h", {"VCPU": 8}, "a")]


Totals = st.dictionaries(st.sampled_from(["VCPU", "VGPU"]), st.integers(1, 9), max_size=2)
Trees = st.dictionaries(st.sampled_from(["h", "a", "b", "c"]), Totals).map(lambda children: tree(**children))


@given(before=Trees, after=Trees)
def test_moves_never_exceed_the_inventories_before_or_after(before: ProviderTree, after: ProviderTree) -> None:
    def total(of: ProviderTree, provider: str, kind: str) -> int:
        found = of.find(provider)
        return found.inventories[kind].total if found and kind in found.inventories else 0

    found = moves(before, after)
    for kind in ("VCPU", "VGPU"):
        for provider in {provider.uuid for each in (before, after) for provider in each}:
            left = sum(m.moved_resources.get(kind, 0) for m in found if m.from_resource_provider == provider)
            came = sum(m.moved_resources.get(kind, 0) for m in found if m.to_resource_provider == provider)
            assert left == 0 or (left <= total(before, provider, kind) and total(after, provider, kind) == 0)
            assert came == 0 or total(before, provider, kind) + came <= total(after, provider, kind)


def test_a_new_child_is_described_only_with_the_inventory_that_moves_there() -> None:
    before = stored(tree(h={"VGPU": 4}))
    after = before.copy()
    after.remove_inventory("h", "VGPU")
    after.new_child("gpu", "h")
    after.set_inventory("gpu", "VGPU", Inventory(total=4, max_unit=2, reserved=1))
    after.set_inventory("gpu", "CUSTOM_X", Inventory(total=4))
    after.set_traits("gpu", ["CUSTOM_A"])
    change: TreeChange = compare(HOST, before, after, moves(before, after))

    (child,) = change.children

    assert (child.name, child.parent, child.uuid) == ("gpu", ROOT, after.get("gpu").uuid)
    assert child.traits == ("CUSTOM_A",)
    assert child.inventories == {
        "VGPU": InventoryFields(reserved=1, min_unit=1, max_unit=2, step_size=1, allocation_ratio=1.0)
    }
    assert change.instructions == (
        MoveInstruction(
            from_resource_provider=ROOT, moved_resources={"VGPU": 4}, to_resource_provider=after.get("gpu").uuid
        ),
    )
