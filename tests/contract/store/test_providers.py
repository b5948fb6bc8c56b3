"""Resource providers with their inventories, and the classes of what they have."""

import pytest
from placement_builders import Store
from sqlalchemy import select

from moorage import errors, ids
from moorage.messages import (
    CreateResourceProvider,
    DeleteResourceProvider,
    ListResourceProviders,
    ReportProviders,
)
from moorage.model import Inventory, ProviderReport
from placement_store import providers
from placement_store.names import ResourceClassNames
from placement_store.schema import resource_classes

SMALL = {"VCPU": 2, "MEMORY_MB": 2048}


# --- Resource classes -------------------------------------------------------------------------------------------------


def test_standard_classes_have_their_place_in_the_library_as_their_number(store: Store) -> None:
    store.names.sync()

    again = ResourceClassNames(store.database)

    assert [again.id_of(name) for name in ("VCPU", "MEMORY_MB", "DISK_GB")] == [0, 1, 2]
    assert again.name_of(0) == "VCPU"
    assert store.scalar(select(resource_classes.c.name).where(resource_classes.c.id == 0)) == "VCPU"


def test_custom_classes_are_created_on_demand_and_known_to_every_process(store: Store) -> None:
    store.names.ensure(["CUSTOM_B", "VCPU", "CUSTOM_A"])
    elsewhere = ResourceClassNames(store.database)

    numbers = {name: elsewhere.id_of(name) for name in ("CUSTOM_A", "CUSTOM_B")}

    assert min(numbers.values()) == 10_000
    assert len(set(numbers.values())) == 2
    assert store.names.id_of("CUSTOM_A") == numbers["CUSTOM_A"]
    assert elsewhere.name_of(numbers["CUSTOM_B"]) == "CUSTOM_B"


def test_a_class_that_is_neither_standard_nor_custom_is_not_found(store: Store) -> None:
    with pytest.raises(errors.ResourceClassNotFound) as caught:
        store.names.ensure(["GLUE"])
    assert caught.value.name == "GLUE"
    with pytest.raises(errors.ResourceClassNotFound):
        store.names.id_of("CUSTOM_GLUE")
    with pytest.raises(errors.ResourceClassNotFound):
        store.names.name_of(9_999)


# --- Providers and inventories ----------------------------------------------------------------------------------------


def test_a_new_provider_is_its_own_root_at_generation_zero(store: Store) -> None:
    uuid = store.provider("a")

    found = store.get(uuid)

    assert (found.generation, found.root_provider_uuid, found.parent_provider_uuid) == (0, uuid, None)
    assert found.inventories == {}


def test_a_taken_name_or_uuid_is_refused_by_that_word(store: Store) -> None:
    uuid = store.provider("a")
    for new in (
        CreateResourceProvider(request_id="r1", uuid=ids.fresh(), name="a"),
        CreateResourceProvider(request_id="r2", uuid=uuid, name="b"),
    ):
        with pytest.raises(errors.AlreadyExists) as caught:
            store.endpoint.create_resource_provider(new)
        assert caught.value.name in ("a", uuid)


def test_providers_are_listed_by_name(store: Store) -> None:
    for name in ("b", "A", "a"):
        store.provider(name)

    everything = store.endpoint.list_resource_providers(ListResourceProviders())

    assert [provider.name for provider in everything] == ["A", "a", "b"]
    [one] = store.endpoint.list_resource_providers(ListResourceProviders(name="A"))
    assert one.name == "A"


def test_a_provider_is_deleted_unless_somebody_holds_something_of_it(store: Store, host: str) -> None:
    store.put(ids.derived("c"), {host: SMALL})
    with pytest.raises(errors.ProviderInUse):
        store.endpoint.delete_resource_provider(DeleteResourceProvider(request_id="r1", uuid=host))

    store.delete(ids.derived("c"))
    store.endpoint.delete_resource_provider(DeleteResourceProvider(request_id="r2", uuid=host))

    with pytest.raises(errors.ProviderNotFound):
        store.get(host)


def test_inventories_are_replaced_as_a_whole_and_move_the_generation_even_if_they_are_the_same(store: Store) -> None:
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


def test_inventories_are_not_replaced_on_a_stale_view(store: Store, host: str) -> None:
    with pytest.raises(errors.ProviderGenerationConflict) as caught:
        store.set_inventories(host, 0, VCPU=1)
    assert (caught.value.named, caught.value.found) == (0, 1)
    assert store.get(host).inventories["VCPU"].total == 8


def test_an_inventory_in_use_cannot_be_removed_but_may_shrink_below_what_is_used(store: Store, host: str) -> None:
    store.put(ids.derived("c"), {host: SMALL})

    with pytest.raises(errors.InventoryInUse) as caught:
        store.set_inventories(host, 2, VCPU=8)
    assert caught.value.resource_class == "MEMORY_MB"
    found = store.set_inventories(host, 2, VCPU=1, MEMORY_MB=8192)

    assert found.used["VCPU"] == 2
    assert [finding.resource_class for finding in store.audit().overcommitted] == ["VCPU"]


@pytest.mark.parametrize("bad", [Inventory(total=1, reserved=2), Inventory(total=2**31 - 1, allocation_ratio=1e308)])
def test_an_impossible_inventory_is_refused_by_name(store: Store, bad: Inventory) -> None:
    uuid = store.provider()
    with pytest.raises(errors.InvalidInventory) as caught:
        store.set_inventories(uuid, 0, VCPU=8, DISK_GB=bad)
    assert (caught.value.provider_uuid, caught.value.resource_class) == (uuid, "DISK_GB")
    assert store.get(uuid).inventories == {}


# --- Reports of hosts -------------------------------------------------------------------------------------------------


def report(store: Store, *reports: ProviderReport) -> None:
    store.endpoint.report_providers(ReportProviders(request_id=ids.fresh(), providers=reports))


def described(number: int, **totals: int) -> ProviderReport:
    return ProviderReport(
        uuid=ids.derived("node", number),
        name=f"node{number:04}",
        inventories={name: Inventory(total=total) for name, total in totals.items()},
    )


def test_reported_providers_are_created_with_their_inventories(store: Store) -> None:
    report(store, described(1, VCPU=8, CUSTOM_GPU=1), described(2))

    first, second = store.endpoint.list_resource_providers(ListResourceProviders())

    assert first.inventories == {"VCPU": Inventory(total=8), "CUSTOM_GPU": Inventory(total=1)}
    assert (first.uuid, first.generation, first.root_provider_uuid) == (ids.derived("node", 1), 1, first.uuid)
    assert (second.inventories, second.generation) == ({}, 0)


def test_a_report_without_news_writes_nothing(store: Store) -> None:
    nodes = [described(number, VCPU=8) for number in range(3)]
    report(store, *nodes)
    before = (store.changes(), [store.seq(node.uuid) for node in nodes])

    report(store, *nodes)

    assert (store.changes(), [store.seq(node.uuid) for node in nodes]) == before


def test_only_what_differs_is_written(store: Store) -> None:
    report(store, described(1, VCPU=8), described(2, VCPU=8), described(3, VCPU=8, DISK_GB=5))
    before = [store.seq(ids.derived("node", number)) for number in (1, 2, 3)]

    report(store, described(1, VCPU=8), described(2, VCPU=9, DISK_GB=3), described(3, VCPU=8))

    assert [store.seq(ids.derived("node", n)) - seq for n, seq in zip((1, 2, 3), before, strict=True)] == [0, 1, 1]
    assert store.get(ids.derived("node", 2)).used == {"VCPU": 0, "DISK_GB": 0}
    assert store.get(ids.derived("node", 3)).inventories == {"VCPU": Inventory(total=8)}


def test_a_provider_takes_the_name_that_its_host_reports(store: Store) -> None:
    report(store, described(1, VCPU=8))

    report(store, ProviderReport(uuid=ids.derived("node", 1), name="renamed", inventories={"VCPU": Inventory(total=8)}))

    found = store.get(ids.derived("node", 1))
    assert (found.name, found.generation) == ("renamed", 1)


def test_one_bad_provider_of_a_report_names_itself_and_nothing_is_written(store: Store) -> None:
    store.provider("taken")
    good, uuid = described(1, VCPU=8), ids.fresh()
    bad = ProviderReport(uuid=uuid, name="bad", inventories={"VCPU": Inventory(total=1, reserved=9)})
    with pytest.raises(errors.InvalidInventory) as caught:
        report(store, good, bad)
    assert caught.value.provider_uuid == uuid
    with pytest.raises(errors.AlreadyExists) as taken:
        report(store, good, ProviderReport(uuid=uuid, name="taken"))
    assert taken.value.name == "taken"
    with pytest.raises(errors.InvalidRequest) as doubled:
        report(store, good, good)
    assert doubled.value.path == "$.providers[1].uuid"
    assert [found.name for found in store.endpoint.list_resource_providers(ListResourceProviders())] == ["taken"]


def test_a_class_in_use_cannot_drop_out_of_a_report(store: Store) -> None:
    report(store, described(1, VCPU=8, DISK_GB=5))
    store.put(ids.derived("c"), {ids.derived("node", 1): {"DISK_GB": 1}})
    with pytest.raises(errors.InventoryInUse) as caught:
        report(store, described(1, VCPU=8))
    assert caught.value.resource_class == "DISK_GB"


def test_a_thousand_providers_are_reported_in_one_call(store: Store) -> None:
    report(store, *(described(number, VCPU=8, MEMORY_MB=8192, DISK_GB=100) for number in range(1000)))

    rows = store.database.read(lambda connection: providers.rows(connection, None))

    assert len(rows) == 1000
    assert {row.generation for row in rows} == {1}
    assert all(len(row.inventories) == 3 and row.root_id == row.id for row in rows)
