"""Test resource providers and their inventories."""

from collections.abc import Callable

import pytest
from support.placement_store.builders import Store
from support.placement_store.move_builders import SMALL

from moorage import errors, ids
from moorage.messages import (
    CreateResourceProvider,
    DeleteInventories,
    DeleteInventory,
    DeleteResourceProvider,
    ListResourceProviders,
    SetInventories,
    SetInventory,
)
from moorage.model import Inventory, ResourceProvider

# --- Providers and inventories ----------------------------------------------------------------------------------------


def test_a_new_provider_is_its_own_root_at_generation_zero(store: Store) -> None:
    uuid = store.provider("a")

    found = store.get(uuid)

    assert (found.generation, found.root_provider_uuid, found.parent_provider_uuid) == (0, uuid, None)
    assert found.inventories == {}


def test_an_existing_name_or_uuid_is_refused_and_named(store: Store) -> None:
    uuid = store.provider("a")
    for new in (
        CreateResourceProvider(request_id="r1", uuid=ids.fresh(), name="a"),
        CreateResourceProvider(request_id="r2", uuid=uuid, name="b"),
    ):
        with pytest.raises(errors.AlreadyExists) as caught:
            store.dispatcher.call(new)
        assert caught.value.name in ("a", uuid)


def test_providers_are_listed_by_name(store: Store) -> None:
    for name in ("b", "A", "a"):
        store.provider(name)

    everything = store.dispatcher.call(ListResourceProviders())

    assert [provider.name for provider in everything] == ["A", "a", "b"]
    [one] = store.dispatcher.call(ListResourceProviders(name="A"))
    assert one.name == "A"


def test_a_provider_in_use_cannot_be_deleted(store: Store, host: str) -> None:
    store.put(ids.derived("c"), {host: SMALL})
    with pytest.raises(errors.ProviderInUse):
        store.dispatcher.call(DeleteResourceProvider(request_id="r1", uuid=host))

    store.delete(ids.derived("c"))
    store.dispatcher.call(DeleteResourceProvider(request_id="r2", uuid=host))

    with pytest.raises(errors.ProviderNotFound):
        store.get(host)


def test_inventories_are_replaced_as_a_whole_and_always_bump_the_generation(store: Store) -> None:
    uuid = store.provider(VCPU=8, DISK_GB=100)
    assert store.generation(uuid) == 1

    found = store.set_inventories(uuid, 1, VCPU=Inventory(total=4, reserved=1, allocation_ratio=16.0), CUSTOM_FPGA=2)

    assert found.generation == 2
    assert found.inventories == {
        "VCPU": Inventory(total=4, reserved=1, allocation_ratio=16.0),
        "CUSTOM_FPGA": Inventory(total=2),
    }
    assert found.used == {"VCPU": 0, "CUSTOM_FPGA": 0}
    assert store.set_inventories(uuid, 2, **found.inventories).generation == 3


def test_an_unknown_class_is_refused_and_nothing_is_written(store: Store, host: str) -> None:
    inventories = {"VCPU": Inventory(total=1), "CUSTOM_TYPO": Inventory(total=1)}
    with pytest.raises(errors.ResourceClassNotFound) as caught:
        store.dispatcher.call(SetInventories(request_id="r1", uuid=host, generation=1, inventories=inventories))
    assert caught.value.name == "CUSTOM_TYPO"
    assert (store.generation(host), store.get(host).inventories["VCPU"].total) == (1, 8)


def test_inventories_are_not_replaced_with_a_stale_generation(store: Store, host: str) -> None:
    with pytest.raises(errors.ProviderGenerationConflict) as caught:
        store.set_inventories(host, 0, VCPU=1)
    assert (caught.value.named, caught.value.found) == (0, 1)
    assert store.get(host).inventories["VCPU"].total == 8


def test_an_inventory_in_use_cannot_be_removed_but_may_shrink_below_the_used_amount(store: Store, host: str) -> None:
    store.put(ids.derived("c"), {host: SMALL})

    with pytest.raises(errors.InventoryInUse) as caught:
        store.set_inventories(host, 2, VCPU=8)
    assert caught.value.resource_class == "MEMORY_MB"
    found = store.set_inventories(host, 2, VCPU=1, MEMORY_MB=8192)

    assert found.used["VCPU"] == 2
    assert [finding.resource_class for finding in store.audit().overcommitted] == ["VCPU"]


@pytest.mark.parametrize("bad", [Inventory(total=1, reserved=2), Inventory(total=1, allocation_ratio=3.40283e38)])
def test_an_invalid_inventory_is_refused_by_provider_and_class(store: Store, bad: Inventory) -> None:
    uuid = store.provider()
    with pytest.raises(errors.InvalidInventory) as caught:
        store.set_inventories(uuid, 0, VCPU=8, DISK_GB=bad)
    assert (caught.value.provider_uuid, caught.value.resource_class) == (uuid, "DISK_GB")
    assert store.get(uuid).inventories == {}


# --- One class ------------------------------------------------------------------------------------------------------


def set_one(store: Store, uuid: str, name: str, inventory: Inventory, **more: object) -> ResourceProvider:
    message = {"request_id": ids.fresh(), "uuid": uuid, "resource_class": name, "inventory": inventory}
    return store.dispatcher.call(SetInventory(**{**message, **more}))  # type: ignore[arg-type]


def delete_one(store: Store, uuid: str, name: str, generation: int | None = None) -> ResourceProvider:
    return store.dispatcher.call(
        DeleteInventory(request_id=ids.fresh(), uuid=uuid, resource_class=name, generation=generation)
    )


def delete_all(store: Store, uuid: str, generation: int | None = None) -> ResourceProvider:
    return store.dispatcher.call(DeleteInventories(request_id=ids.fresh(), uuid=uuid, generation=generation))


def test_the_inventory_of_one_class_is_created_replaced_and_deleted_beside_the_others(store: Store, host: str) -> None:
    store.put(ids.derived("c"), {host: SMALL})

    created = set_one(store, host, "DISK_GB", Inventory(total=100), expected="absent")
    replaced = set_one(store, host, "DISK_GB", Inventory(total=200), expected="present", generation=created.generation)
    deleted = delete_one(store, host, "DISK_GB", replaced.generation)

    assert created.inventories == {
        "VCPU": Inventory(total=8),
        "MEMORY_MB": Inventory(total=8192),
        "DISK_GB": Inventory(total=100),
    }
    assert replaced.inventories["DISK_GB"].total == 200
    assert deleted.used == SMALL
    assert [one.generation for one in (created, replaced, deleted)] == [3, 4, 5]


def test_writing_the_same_inventory_bumps_the_generation_as_in_placement(store: Store, host: str) -> None:
    assert set_one(store, host, "VCPU", Inventory(total=8)).generation == 2


def test_an_unexpected_or_missing_inventory_is_refused_and_bumps_no_generation(store: Store, host: str) -> None:
    with pytest.raises(errors.InventoryNotFound) as absent:
        set_one(store, host, "DISK_GB", Inventory(total=1), expected="present")
    assert (absent.value.provider_uuid, absent.value.name) == (host, "DISK_GB")
    with pytest.raises(errors.AlreadyExists) as present:
        set_one(store, host, "VCPU", Inventory(total=1), expected="absent")
    assert present.value.kind == "inventory"
    with pytest.raises(errors.InventoryNotFound):
        delete_one(store, host, "DISK_GB")
    with pytest.raises(errors.ResourceClassNotFound):
        set_one(store, host, "CUSTOM_TYPO", Inventory(total=1))
    with pytest.raises(errors.ResourceClassNotFound):
        delete_one(store, host, "CUSTOM_TYPO")
    with pytest.raises(errors.InvalidInventory):
        set_one(store, host, "VCPU", Inventory(total=1, reserved=2))
    with pytest.raises(errors.ProviderNotFound):
        set_one(store, ids.fresh(), "VCPU", Inventory(total=1))
    assert store.generation(host) == 1


def test_one_class_is_not_written_with_a_stale_generation(store: Store, host: str) -> None:
    writes: list[Callable[[], object]] = [
        lambda: set_one(store, host, "VCPU", Inventory(total=1), generation=0),
        lambda: delete_one(store, host, "VCPU", 0),
        lambda: delete_all(store, host, 0),
    ]
    for write in writes:
        with pytest.raises(errors.ProviderGenerationConflict) as caught:
            write()
        assert (caught.value.provider_uuid, caught.value.named, caught.value.found) == (host, 0, 1)


def test_an_inventory_in_use_is_not_deleted(store: Store, host: str) -> None:
    store.put(ids.derived("c"), {host: {"VCPU": 2}})

    deletes: list[Callable[[], object]] = [lambda: delete_one(store, host, "VCPU"), lambda: delete_all(store, host)]
    for take_away in deletes:
        with pytest.raises(errors.InventoryInUse) as caught:
            take_away()
        assert (caught.value.provider_uuid, caught.value.resource_class) == (host, "VCPU")
    assert store.get(host).inventories.keys() == {"VCPU", "MEMORY_MB"}

    assert delete_one(store, host, "MEMORY_MB").inventories.keys() == {"VCPU"}
    store.delete(ids.derived("c"))
    assert delete_all(store, host).inventories == {}


def test_an_inventory_of_one_class_may_shrink_below_the_used_amount(store: Store, host: str) -> None:
    store.put(ids.derived("c"), {host: SMALL})
    shrunk = set_one(store, host, "VCPU", Inventory(total=1))
    assert (shrunk.inventories["VCPU"].total, shrunk.used["VCPU"]) == (1, 2)
