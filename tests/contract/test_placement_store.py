"""What the placement store promises, on SQLite and on MariaDB alike."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from moorage import errors, ids
from moorage.database import Database
from moorage.messages import (
    CreateResourceProvider,
    DeleteResourceProvider,
    ListCells,
    ListResourceProviders,
    PutAllocations,
    ReportProviders,
)
from moorage.model import Cell, Inventory, ProviderReport
from placement_builders import Store
from placement_store import cells, feed, providers
from placement_store.claims import standing
from placement_store.names import ResourceClassNames
from placement_store.schema import MAIN, resource_classes


@pytest.fixture(scope="module", params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('store')}/main.sqlite"
    else:
        url = request.getfixturevalue("mariadb").create_database("placement_contract")
    database = Database(url, "main")
    MAIN.upgrade(database)
    yield database
    database.close()


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    """An empty store, which must be sound in the end unless the test has shrunk an inventory."""
    store = Store(database)
    store.empty()
    store.names.sync()
    yield store


@pytest.fixture
def host(store: Store) -> str:
    return store.provider("host", VCPU=8, MEMORY_MB=8192)


SMALL = {"VCPU": 2, "MEMORY_MB": 2048}


# --- Resource classes -----------------------------------------------------------------------------------------------


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


# --- Providers and inventories --------------------------------------------------------------------------------------


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


# --- Reports of hosts -----------------------------------------------------------------------------------------------


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


# --- Raw allocations: consumers and their generations -----------------------------------------------------------------


def test_a_new_consumers_first_write_leaves_it_at_generation_one(store: Store, host: str) -> None:
    uuid = ids.fresh()

    assert store.put(uuid, {host: SMALL}, consumer_type="MIGRATION") == 1

    found = store.consumer(uuid)
    assert (found.generation, found.consumer_type, found.project_id, found.user_id) == (1, "MIGRATION", "project", "user")
    assert found.claim_id is None
    assert store.held(uuid) == {host: SMALL}
    assert store.used(host) == SMALL


@pytest.mark.parametrize(("present", "named"), [(False, 0), (False, 3), (True, None), (True, 2), (True, 0)])
def test_a_generation_that_is_not_the_consumers_is_a_conflict_that_says_what_was_found(
    store: Store, host: str, present: bool, named: int | None
) -> None:
    uuid = ids.fresh()
    if present:
        store.put(uuid, {host: SMALL})
    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        store.put(uuid, {host: {"VCPU": 1}}, named)
    assert (caught.value.named, caught.value.found) == (named, 1 if present else None)
    assert store.used(host)["VCPU"] == (2 if present else 0)


def test_every_write_moves_the_consumers_generation_by_one_and_sets_whose_it_is(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})

    assert store.put(uuid, {host: SMALL}, 1, project_id="other", user_id="one", consumer_type="X") == 2

    found = store.consumer(uuid)
    assert (found.generation, found.project_id, found.user_id, found.consumer_type) == (2, "other", "one", "X")


def test_putting_nothing_releases_everything_and_keeps_the_consumer(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})

    assert store.put(uuid, {}, 1) == 2

    assert store.consumer(uuid).allocations == {}
    assert store.used(host) == {"VCPU": 0, "MEMORY_MB": 0}
    assert store.put(uuid, {host: SMALL}, 2) == 3


def test_what_does_not_exist_is_not_found(store: Store, host: str) -> None:
    with pytest.raises(errors.ConsumerNotFound):
        store.consumer(ids.fresh())
    with pytest.raises(errors.ConsumerNotFound):
        store.delete(ids.fresh())
    with pytest.raises(errors.ProviderNotFound):
        store.put(ids.fresh(), {host: SMALL, ids.fresh(): SMALL})
    with pytest.raises(errors.ResourceClassNotFound):
        store.put(ids.fresh(), {host: {"CUSTOM_NONE": 1}})
    assert store.rows() == {}


def test_a_write_of_several_consumers_is_one_or_none(store: Store, host: str) -> None:
    small, large = ids.fresh(), ids.fresh()
    with pytest.raises(errors.CapacityExceeded):
        store.post({small: store.wanted({host: SMALL}), large: store.wanted({host: {"VCPU": 7}})})
    assert store.used(host) == {"VCPU": 0, "MEMORY_MB": 0}

    assert store.post({small: store.wanted({host: SMALL}), large: store.wanted({host: {"VCPU": 6}})}) == {small: 1, large: 1}
    assert store.used(host)["VCPU"] == 8


def test_consumers_exchange_amounts_on_a_full_provider(store: Store) -> None:
    host = store.provider(VCPU=8)
    first, second = ids.fresh(), ids.fresh()
    store.post({first: store.wanted({host: {"VCPU": 6}}), second: store.wanted({host: {"VCPU": 2}})})

    store.post({first: store.wanted({host: {"VCPU": 2}}, 1), second: store.wanted({host: {"VCPU": 6}}, 1)})

    assert (store.held(first), store.held(second)) == ({host: {"VCPU": 2}}, {host: {"VCPU": 6}})
    assert store.is_sound()


# --- Raw allocations: what fits ---------------------------------------------------------------------------------------


def refusals(caught: pytest.ExceptionInfo[errors.CapacityExceeded]) -> list[tuple[str, str, int, float]]:
    return [(r["provider_uuid"], r["resource_class"], r["asked"], r["free"]) for r in caught.value.refusals]


def test_what_does_not_fit_is_refused_with_each_inventory_and_what_is_free(store: Store, host: str) -> None:
    roomy = store.provider(VCPU=100)
    store.put(ids.fresh(), {host: {"VCPU": 5, "MEMORY_MB": 8000}})
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.put(ids.fresh(), {host: {"VCPU": 4, "MEMORY_MB": 200}, roomy: {"VCPU": 1}})
    assert sorted(refusals(caught)) == [(host, "MEMORY_MB", 200, 192.0), (host, "VCPU", 4, 3.0)]
    assert {r["reason"] for r in caught.value.refusals} == {"not enough room"}
    assert (caught.value.count, caught.value.provider_uuid) == (2, host)


def test_a_refusal_does_not_name_what_had_just_enough_room(store: Store) -> None:
    # After the guarded update this inventory is full, and looks as if it had no room for the same once more.
    filled, full = store.provider(VCPU=4), store.provider(VCPU=4)
    store.put(ids.fresh(), {filled: {"VCPU": 2}, full: {"VCPU": 3}})
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.put(ids.fresh(), {filled: {"VCPU": 2}, full: {"VCPU": 2}})
    assert refusals(caught) == [(full, "VCPU", 2, 1.0)]


def test_capacity_is_what_is_not_reserved_times_the_ratio(store: Store) -> None:
    host = store.provider(VCPU=Inventory(total=5, reserved=1, allocation_ratio=1.5), DISK_GB=Inventory(total=9, reserved=9))
    store.put(ids.fresh(), {host: {"VCPU": 6}})
    with pytest.raises(errors.CapacityExceeded):
        store.put(ids.fresh(), {host: {"VCPU": 1}})
    with pytest.raises(errors.CapacityExceeded):
        store.put(ids.fresh(), {host: {"DISK_GB": 1}})


def test_a_fraction_of_a_capacity_is_not_rounded_away_nor_up(store: Store) -> None:
    host = store.provider(VCPU=Inventory(total=3, allocation_ratio=1.1))
    store.put(ids.fresh(), {host: {"VCPU": 3}})
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.put(ids.fresh(), {host: {"VCPU": 1}})
    assert caught.value.refusals[0]["free"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("amount", "reason"),
    [(1, "not between min_unit 2 and max_unit 6"), (8, "not between min_unit 2 and max_unit 6"), (3, "not a multiple of step_size 2")],
)
def test_each_amount_keeps_the_unit_rules(store: Store, amount: int, reason: str) -> None:
    host = store.provider(VCPU=Inventory(total=100, min_unit=2, max_unit=6, step_size=2))
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.post({ids.fresh(): store.wanted({host: {"VCPU": n}}) for n in (amount, 4)})
    assert caught.value.refusals == [
        {"provider_uuid": host, "resource_class": "VCPU", "asked": max(amount, 4), "free": 100.0, "reason": reason}
    ]


def test_unit_rules_hold_for_each_amount_and_not_for_their_sum(store: Store) -> None:
    host = store.provider(VCPU=Inventory(total=100, min_unit=2, max_unit=6, step_size=2))
    store.post({ids.fresh(): store.wanted({host: {"VCPU": amount}}) for amount in (2, 4, 6)})
    assert store.used(host) == {"VCPU": 12}


def test_a_provider_without_such_an_inventory_has_no_room(store: Store, host: str) -> None:
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.put(ids.fresh(), {host: {"VCPU": 1, "DISK_GB": 1}})
    assert refusals(caught) == [(host, "DISK_GB", 1, 0.0)]
    assert caught.value.refusals[0]["reason"] == "no inventory"


def test_an_over_full_inventory_blocks_growth_and_nothing_else(store: Store) -> None:
    host = store.provider(VCPU=8)
    first, second = ids.fresh(), ids.fresh()
    store.put(first, {host: {"VCPU": 4}})
    store.put(second, {host: {"VCPU": 4}})
    store.set_inventories(host, 3, VCPU=5)

    with pytest.raises(errors.CapacityExceeded):
        store.put(first, {host: {"VCPU": 5}}, 1)
    assert store.put(first, {host: {"VCPU": 4}}, 1) == 2
    assert store.put(first, {host: {"VCPU": 3}}, 2) == 3
    store.post({first: store.wanted({host: {"VCPU": 4}}, 3), second: store.wanted({host: {"VCPU": 3}}, 1)})
    store.delete(first)

    assert store.used(host) == {"VCPU": 3}


def test_what_stays_is_not_measured_by_rules_that_came_later(store: Store) -> None:
    host, other = store.provider(VCPU=8), store.provider(VCPU=8)
    uuid = ids.fresh()
    store.put(uuid, {host: {"VCPU": 4}})
    store.set_inventories(host, 2, VCPU=Inventory(total=8, max_unit=2))

    store.put(uuid, {host: {"VCPU": 4}, other: {"VCPU": 1}}, 1)

    assert store.held(uuid) == {host: {"VCPU": 4}, other: {"VCPU": 1}}


def test_many_inventories_in_one_write_are_all_judged(store: Store) -> None:
    report(store, *(described(number, VCPU=2) for number in range(150)))
    nodes = [ids.derived("node", number) for number in range(150)]
    store.put(ids.fresh(), {nodes[70]: {"VCPU": 1}, nodes[140]: {"VCPU": 1}})
    amounts = {ids.fresh(): store.wanted({node: {"VCPU": 2}}) for node in nodes}

    with pytest.raises(errors.CapacityExceeded) as caught:
        store.post(amounts)

    assert sorted(refusals(caught)) == sorted([(nodes[70], "VCPU", 2, 1.0), (nodes[140], "VCPU", 2, 1.0)])
    assert store.is_sound()
    del amounts[list(amounts)[140]], amounts[list(amounts)[70]]
    store.post(amounts)
    assert store.is_sound()


# --- Raw allocations: what a write touches ----------------------------------------------------------------------------


def test_a_move_touches_only_the_rows_that_differ_and_fails_whole_on_a_stale_provider(store: Store) -> None:
    rp_a, rp_b = (store.provider(VCPU=4, MEMORY_MB=4096) for _ in range(2))
    rp_c = store.provider("pool", DISK_GB=1000)
    i1, disk = ids.fresh(), {rp_c: {"DISK_GB": 50}}
    store.put(i1, {rp_a: SMALL, **disk})
    before, generations = store.rows(), {uuid: store.generation(uuid) for uuid in (rp_a, rp_b, rp_c)}

    with pytest.raises(errors.ProviderGenerationConflict) as caught:
        store.put(i1, {rp_b: SMALL, **disk}, 1, relied_on={rp_b: generations[rp_b] + 1})
    assert (caught.value.provider_uuid, caught.value.found) == (rp_b, generations[rp_b])
    assert store.rows() == before
    store.put(i1, {rp_b: SMALL, **disk}, 1, relied_on={rp_b: generations[rp_b], rp_c: generations[rp_c]})

    after = store.rows()
    assert len(before.keys() - after.keys()) == 2
    assert len(after.keys() - before.keys()) == 2
    assert [before[row_id] for row_id in before.keys() & after.keys()] == [
        row for row in before.values() if row[3] == 50
    ]
    assert {uuid: store.generation(uuid) - generations[uuid] for uuid in (rp_a, rp_b)} == {rp_a: 1, rp_b: 1}
    assert store.held(i1) == {rp_b: SMALL, **disk}
    assert store.is_sound()


def test_a_resize_changes_amounts_in_place(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})
    before = store.rows()

    store.put(uuid, {host: {"VCPU": 4, "MEMORY_MB": 2048}}, 1)

    after = store.rows()
    assert after.keys() == before.keys()
    assert sorted(row[3] for row in after.values()) == [4, 2048]
    assert store.used(host) == {"VCPU": 4, "MEMORY_MB": 2048}


def test_generations_move_for_providers_named_or_left_and_not_for_a_delete_whereas_seq_always_does(store: Store) -> None:
    first, second, other = (store.provider(VCPU=8) for _ in range(3))
    uuid = ids.fresh()

    def moved(write: Any) -> list[tuple[int, int]]:
        before = [(store.generation(p), store.seq(p)) for p in (first, second, other)]
        write()
        after = [(store.generation(p), store.seq(p)) for p in (first, second, other)]
        return [(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before, strict=True)]

    assert moved(lambda: store.put(uuid, {first: {"VCPU": 1}})) == [(1, 1), (0, 0), (0, 0)]
    assert moved(lambda: store.put(uuid, {first: {"VCPU": 1}, second: {"VCPU": 1}}, 1)) == [(1, 1), (1, 1), (0, 0)]
    assert moved(lambda: store.put(uuid, {second: {"VCPU": 1}}, 2)) == [(1, 1), (1, 1), (0, 0)]
    assert moved(lambda: store.put(uuid, {}, 3)) == [(0, 0), (1, 1), (0, 0)]
    store.put(uuid, {first: {"VCPU": 1}}, 4)
    assert moved(lambda: store.delete(uuid)) == [(0, 1), (0, 0), (0, 0)]


def test_every_write_tells_the_feed_which_providers_changed(store: Store) -> None:
    first, second = store.provider(VCPU=8), store.provider(VCPU=8)
    uuid = ids.fresh()
    start = store.database.read(feed.newest)

    def told(write: Any) -> set[str]:
        since = store.database.read(feed.newest)
        write()
        _, found, hosts = store.database.read(lambda connection: feed.changes_since(connection, since))
        assert not hosts
        uuids = store.database.read(lambda connection: providers.uuids_of(connection, found))
        return set(uuids.values())

    assert told(lambda: store.put(uuid, {first: {"VCPU": 1}})) == {first}
    assert told(lambda: store.put(uuid, {second: {"VCPU": 1}}, 1)) == {first, second}
    assert told(lambda: store.delete(uuid)) == {second}
    assert told(lambda: store.set_inventories(first, 3, VCPU=9)) == {first}
    assert store.database.write(lambda connection: feed.prune(connection, 3600)) == 0
    assert store.database.write(lambda connection: feed.prune(connection, -1)) >= 5
    assert store.database.read(lambda connection: feed.changes_since(connection, start)) == (start, set(), set())


def test_the_feed_waits_for_a_number_that_may_still_come(store: Store) -> None:
    # Given three changes of which the second is not there yet
    store.database.write(lambda connection: feed.record(connection, provider_ids=[1, 2, 3]))
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("DELETE FROM changes WHERE resource_provider_id = 2")
    last = store.database.read(feed.newest)

    # When the feed is read, Then what came after the gap is told, and will be once more
    go_on_from, found, _ = store.database.read(lambda connection: feed.changes_since(connection, last - 3))
    assert (go_on_from, found) == (last - 2, {1, 3})

    # Until the gap is old enough to stay one
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE changes SET created_at = created_at - 10")
    assert store.database.read(lambda connection: feed.changes_since(connection, go_on_from)) == (last, {3}, set())


def test_pairs_and_rows_tell_what_the_host_view_compares(store: Store, host: str) -> None:
    store.put(ids.fresh(), {host: SMALL})

    [row] = store.database.read(lambda connection: providers.rows(connection, None))

    assert store.database.read(providers.pairs) == {row.id: row.seq}
    assert (row.uuid, row.root_id, row.seq) == (host, row.id, store.seq(host))
    assert (row.inventories[0].total, row.inventories[0].used, row.inventories[0].capacity) == (8, 2, 8.0)
    assert store.database.read(lambda connection: providers.rows(connection, [row.id, row.id + 1])) == [row]


# --- Claims -----------------------------------------------------------------------------------------------------------


def test_a_claim_places_a_new_consumer_on_its_host_unaccepted(store: Store, host: str) -> None:
    uuid = ids.fresh()

    claimed = store.claim(uuid, {host: SMALL})

    found = store.consumer(uuid)
    assert (claimed.consumer_generation, found.generation) == (1, 1)
    assert (found.claim_id, found.root_provider_uuid, found.accepted_by) == (claimed.claim_id, host, None)
    assert (found.owner, found.consumer_type) == ("conductor", "INSTANCE")
    assert store.held(uuid) == {host: SMALL}
    assert store.database.read(lambda c: standing(c, [uuid, ids.fresh()])) == {uuid: (claimed.claim_id, 1)}


def test_fifty_consumers_are_claimed_in_one_transaction_or_not_at_all(store: Store) -> None:
    hosts = [store.provider(VCPU=20) for _ in range(5)]
    uuids = [ids.fresh() for _ in range(50)]
    claims = [store.new_claim(uuid, {hosts[n % 5]: {"VCPU": 2}}) for n, uuid in enumerate(uuids)]

    with pytest.raises(errors.CapacityExceeded) as caught:
        store.claim_all([*claims, store.new_claim(ids.fresh(), {hosts[0]: {"VCPU": 1}})])
    assert refusals(caught) == [(hosts[0], "VCPU", 21, 20.0)]
    assert store.rows() == {}
    claimed = store.claim_all(claims)

    assert len({claim.claim_id for claim in claimed}) == 50
    assert [store.consumer(uuid).claim_id for uuid in uuids] == [claim.claim_id for claim in claimed]
    assert {store.used(host)["VCPU"] for host in hosts} == {20}
    assert store.is_sound()


def test_a_claim_on_a_stale_consumer_is_a_conflict(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: {"VCPU": 1}})
    for named in (None, 2):
        with pytest.raises(errors.ConsumerGenerationConflict) as caught:
            store.claim(uuid, {host: SMALL}, consumer_generation=named)
        assert (caught.value.named, caught.value.found) == (named, 1)

    assert store.claim(uuid, {host: SMALL}, consumer_generation=1).consumer_generation == 2
    assert store.held(uuid) == {host: SMALL}


def test_a_claim_names_what_does_not_exist(store: Store, host: str) -> None:
    with pytest.raises(errors.ProviderNotFound):
        store.claim(ids.fresh(), {ids.fresh(): SMALL})
    with pytest.raises(errors.ResourceClassNotFound):
        store.claim(ids.fresh(), {host: {"CUSTOM_NONE": 1}})
    with pytest.raises(errors.InvalidRequest):
        store.claim_all([store.new_claim(host, {host: SMALL})] * 2)


def test_a_claim_is_accepted_by_one_attempt_alone_as_often_as_it_likes_and_moves_no_generation(
    store: Store, host: str
) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id

    store.accept(uuid, claim_id, attempt)
    store.accept(uuid, claim_id, attempt)

    for other in ({"attempt_id": ids.fresh()}, {"claim_id": ids.fresh()}, {"uuid": ids.fresh()}, {"host": "other"}):
        with pytest.raises(errors.ClaimReleased):
            store.accept(**{"uuid": uuid, "claim_id": claim_id, "attempt_id": attempt} | other)
    found = store.consumer(uuid)
    assert (found.generation, found.accepted_by) == (1, attempt)


def test_a_released_claim_is_not_accepted(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    store.delete(uuid, claim_id=claim_id)
    with pytest.raises(errors.ClaimReleased):
        store.accept(uuid, claim_id, ids.fresh())


def test_an_accepted_claim_is_not_replaced_by_a_new_one(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.accept(uuid, store.claim(uuid, {host: SMALL}).claim_id, ids.fresh())
    with pytest.raises(errors.InvalidState):
        store.claim(uuid, {host: SMALL}, consumer_generation=1)


def test_a_raw_write_keeps_the_claim_and_who_accepted_it_until_nothing_is_left_on_the_host(
    store: Store, host: str
) -> None:
    pool = store.provider("pool", DISK_GB=100)
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL, pool: {"DISK_GB": 5}}).claim_id
    store.accept(uuid, claim_id, attempt)

    store.put(uuid, {host: {"VCPU": 1}, pool: {"DISK_GB": 9}}, 1)
    kept = store.consumer(uuid)
    assert (kept.claim_id, kept.accepted_by, kept.root_provider_uuid) == (claim_id, attempt, host)
    store.put(uuid, {pool: {"DISK_GB": 9}}, 2)

    left = store.consumer(uuid)
    assert (left.claim_id, left.accepted_by, left.root_provider_uuid, left.owner) == (None, None, None, None)
    with pytest.raises(errors.ClaimReleased):
        store.accept(uuid, claim_id, attempt)


# --- Swaps ------------------------------------------------------------------------------------------------------------


def test_a_swap_releases_one_host_and_claims_the_next(store: Store, host: str) -> None:
    after = store.provider(VCPU=8, MEMORY_MB=8192)
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id

    swapped = store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL})

    found = store.consumer(uuid)
    assert swapped.claim_id != claim_id
    assert (found.claim_id, found.root_provider_uuid, found.accepted_by) == (swapped.claim_id, after, None)
    assert (found.generation, swapped.consumer_generation, found.owner) == (2, 2, "conductor")
    assert store.held(uuid) == {after: SMALL}
    assert store.used(host) == {"VCPU": 0, "MEMORY_MB": 0}
    with pytest.raises(errors.ClaimReleased):
        store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL})


def test_a_swap_that_does_not_fit_leaves_the_claim_standing(store: Store, host: str) -> None:
    tiny = store.provider(VCPU=1, MEMORY_MB=8192)
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    with pytest.raises(errors.CapacityExceeded):
        store.swap(uuid, claim_id, {host: SMALL}, {tiny: SMALL})
    assert store.consumer(uuid).claim_id == claim_id
    assert store.held(uuid) == {host: SMALL}
    store.accept(uuid, claim_id, ids.fresh())


def test_what_others_have_put_on_a_provider_that_stays_survives_a_swap_and_on_one_that_is_left_goes(
    store: Store, host: str
) -> None:
    after, pool, device = store.provider(VCPU=8), store.provider(DISK_GB=100), store.provider(CUSTOM_NIC=1)
    uuid, disk = ids.fresh(), {pool: {"DISK_GB": 50}}
    claim_id = store.claim(uuid, {host: {"VCPU": 2}, **disk}).claim_id
    extras = {host: {"VCPU": 2, "MEMORY_MB": 7}, pool: {"DISK_GB": 60}, device: {"CUSTOM_NIC": 1}}
    store.put(uuid, extras, 1)

    store.swap(uuid, claim_id, {host: {"VCPU": 2}, **disk}, {after: {"VCPU": 2}, **disk})

    assert store.held(uuid) == {after: {"VCPU": 2}, pool: {"DISK_GB": 60}, device: {"CUSTOM_NIC": 1}}
    assert store.is_sound()


def test_an_accepted_claim_is_swapped_only_once_its_guest_is_gone(store: Store, host: str) -> None:
    after = store.provider(VCPU=8, MEMORY_MB=8192)
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    store.accept(uuid, claim_id, ids.fresh())
    with pytest.raises(errors.InvalidState):
        store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL})
    assert store.held(uuid) == {host: SMALL}

    store.swap(uuid, claim_id, {host: SMALL}, {after: SMALL}, guest_gone=True)
    assert store.held(uuid) == {after: SMALL}


def test_a_swap_compares_generations_of_providers_where_they_are_named(store: Store, host: str) -> None:
    after = store.provider(VCPU=8, MEMORY_MB=8192)
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    message = store.swap_message(uuid, claim_id, {host: SMALL}, {after: SMALL})
    message.claimed.allocations[after] = type(message.claimed.allocations[after])(resources=SMALL, generation=7)
    with pytest.raises(errors.ProviderGenerationConflict):
        store.endpoint.swap_claim(message)


def test_a_claim_is_swapped_on_the_same_host(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: {"VCPU": 6}}).claim_id
    swapped = store.swap(uuid, claim_id, {host: {"VCPU": 6}}, {host: {"VCPU": 7}})
    assert store.held(uuid) == {host: {"VCPU": 7}}
    assert store.consumer(uuid).claim_id == swapped.claim_id != claim_id


# --- Release and tombstones -------------------------------------------------------------------------------------------


def test_a_release_conditioned_on_a_claim_leaves_any_other_alone(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    for for_good in (False, True):
        with pytest.raises(errors.ClaimReleased):
            store.delete(uuid, claim_id=ids.fresh(), for_good=for_good)
    assert store.held(uuid) == {host: SMALL}

    store.delete(uuid, claim_id=claim_id)

    found = store.consumer(uuid)
    assert (found.allocations, found.claim_id, found.root_provider_uuid, found.generation) == ({}, None, None, 2)
    assert store.used(host) == {"VCPU": 0, "MEMORY_MB": 0}
    store.delete(uuid)
    assert store.consumer(uuid).generation == 2


def test_a_consumer_deleted_for_good_is_gone_and_nothing_is_claimed_for_it_again(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id

    store.delete(uuid, claim_id=claim_id, for_good=True)

    with pytest.raises(errors.ConsumerNotFound):
        store.consumer(uuid)
    assert store.used(host) == {"VCPU": 0, "MEMORY_MB": 0}
    for generation in (None, 1):
        with pytest.raises(errors.ConsumerDeleted):
            store.claim(uuid, {host: SMALL}, consumer_generation=generation)
        with pytest.raises(errors.ConsumerDeleted):
            store.put(uuid, {host: SMALL}, generation)
    with pytest.raises(errors.ClaimReleased):
        store.swap(uuid, claim_id, {host: SMALL}, {host: SMALL})
    store.delete(uuid, for_good=True)
    store.delete(uuid, claim_id=claim_id, for_good=True)
    assert store.rows() == {}


def test_a_consumer_that_never_was_can_be_deleted_for_good(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.delete(uuid, for_good=True)
    with pytest.raises(errors.ConsumerDeleted):
        store.claim(uuid, {host: SMALL})
    with pytest.raises(errors.ConsumerNotFound):
        store.delete(uuid)


def test_one_deleted_consumer_keeps_a_whole_request_from_being_claimed(store: Store, host: str) -> None:
    alive, dead = ids.fresh(), ids.fresh()
    store.delete(dead, for_good=True)
    with pytest.raises(errors.ConsumerDeleted) as caught:
        store.claim_all([store.new_claim(uuid, {host: SMALL}) for uuid in (alive, dead)])
    assert caught.value.consumer_uuid == dead
    assert store.rows() == {}


# --- Stored requests ----------------------------------------------------------------------------------------------------


def test_the_same_request_is_carried_out_once_and_answered_as_before(store: Store, host: str) -> None:
    uuid, after = ids.fresh(), store.provider(VCPU=8, MEMORY_MB=8192)
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    swap = store.swap_message(uuid, claim_id, {host: SMALL}, {after: SMALL})
    put = PutAllocations(request_id="put", consumer_uuid=ids.fresh(), wanted=store.wanted({host: SMALL}))

    assert store.endpoint.swap_claim(swap) == store.endpoint.swap_claim(swap)
    assert store.endpoint.put_allocations(put) == store.endpoint.put_allocations(put)

    assert (store.used(host), store.used(after)) == (SMALL, SMALL)


def test_a_request_id_with_other_content_is_refused(store: Store, host: str) -> None:
    put = PutAllocations(request_id="put", consumer_uuid=ids.fresh(), wanted=store.wanted({host: SMALL}))
    store.endpoint.put_allocations(put)
    other = PutAllocations(request_id="put", consumer_uuid=ids.fresh(), wanted=store.wanted({host: SMALL}))
    with pytest.raises(errors.RequestIdReused):
        store.endpoint.put_allocations(other)


def test_a_refused_request_may_be_repeated_with_its_id(store: Store) -> None:
    host = store.provider(VCPU=1)
    put = PutAllocations(request_id="put", consumer_uuid=ids.fresh(), wanted=store.wanted({host: {"VCPU": 2}}))
    with pytest.raises(errors.CapacityExceeded):
        store.endpoint.put_allocations(put)
    store.set_inventories(host, 1, VCPU=2)
    assert store.endpoint.put_allocations(put).consumer_generation == 1


# --- Cells and audit ------------------------------------------------------------------------------------------------------


def test_cells_are_created_once_and_listed_by_name(store: Store) -> None:
    uuids = [ids.fresh(), ids.fresh()]
    url = "rabbit://user:password@127.0.0.1/cell"
    for _ in range(2):
        cells.create(store.database, name="b", uuid=uuids[0])
    cells.create(store.database, name="a", uuid=uuids[1], transport_url=url, database_connection="sqlite:///x")
    with pytest.raises(errors.AlreadyExists):
        cells.create(store.database, name="a", uuid=ids.fresh())

    assert store.endpoint.list_cells(ListCells()) == [
        Cell(name="a", uuid=uuids[1], transport_url=url, database_connection="sqlite:///x"),
        Cell(name="b", uuid=uuids[0]),
    ]
    assert store.database.read(lambda connection: cells.by_uuid(connection, uuids[0])).name == "b"
    with pytest.raises(errors.CellNotFound):
        store.database.read(lambda connection: cells.by_uuid(connection, ids.fresh()))


def test_an_audit_names_who_holds_what_and_where_sums_disagree(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    assert store.is_sound()
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE inventories SET used = 5 WHERE resource_class_id = 0")
        connection.exec_driver_sql("UPDATE inventories SET total = 1024 WHERE resource_class_id = 1")

    found = store.audit()

    assert [(f.provider_uuid, f.resource_class, f.used, f.allocated) for f in found.drifted] == [(host, "VCPU", 5, 2)]
    assert [(f.resource_class, f.capacity, f.allocated) for f in found.overcommitted] == [("MEMORY_MB", 1024.0, 2048)]
    assert [(h.uuid, h.consumer_type, h.claim_id, h.allocations) for h in found.holders] == [(uuid, "INSTANCE", claim_id, 2)]


def test_an_audit_finds_allocations_whose_consumer_or_inventory_is_gone(store: Store, host: str) -> None:
    store.claim(ids.fresh(), {host: SMALL})
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("DELETE FROM consumers")
        connection.exec_driver_sql("DELETE FROM inventories WHERE resource_class_id = 0")

    found = store.audit()

    assert [(holder.uuid, holder.allocations) for holder in found.holders] == [(None, 2)]
    assert [(f.resource_class, f.capacity, f.allocated) for f in found.overcommitted] == [("VCPU", 0.0, 2)]


def test_a_claim_is_refused_where_more_is_used_than_allocated(store: Store, host: str) -> None:
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE inventories SET used = 8 WHERE resource_class_id = 0")
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.claim(ids.fresh(), {host: SMALL})
    assert [r["reason"] for r in caught.value.refusals if r["resource_class"] == "VCPU"] == [
        "what is used disagrees with the allocations"
    ]


# --- The schema -----------------------------------------------------------------------------------------------------------


def test_a_store_without_tables_is_refused(tmp_path: Path) -> None:
    empty = Database(f"sqlite:///{tmp_path}/empty.sqlite", "main")
    with pytest.raises(errors.SchemaMismatch):
        MAIN.check(empty)
    empty.close()
