"""Test raw writes of allocations: consumer generations, capacity and unit rules, and the rows that a write changes."""

from functools import partial
from typing import Any

import pytest
from support.placement_store.builders import Store, node_report, refusals
from support.placement_store.move_builders import FREE, SMALL

from moorage import errors, ids
from moorage.model import Inventory
from placement_store.db import change_feed
from placement_store.providers import rows as providers
from placement_store.schema import resource_providers

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")


# --- Consumers and their generations ----------------------------------------------------------------------------------


def test_the_first_write_of_a_consumer_sets_its_generation_to_one(store: Store, host: str) -> None:
    uuid = ids.fresh()

    assert store.put(uuid, {host: SMALL}, consumer_type="MIGRATION") == 1

    found = store.consumer(uuid)
    assert (found.generation, found.consumer_type, found.project_id, found.user_id) == (
        1,
        "MIGRATION",
        "project",
        "user",
    )
    assert found.claim_id is None
    assert store.held(uuid) == {host: SMALL}
    assert store.used(host) == SMALL


@pytest.mark.parametrize(("present", "named"), [(False, 0), (False, 3), (True, None), (True, 2), (True, 0)])
def test_a_wrong_consumer_generation_is_a_conflict_that_names_the_current_one(
    store: Store, host: str, present: bool, named: int | None
) -> None:
    uuid = ids.fresh()
    if present:
        store.put(uuid, {host: SMALL})
    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        store.put(uuid, {host: {"VCPU": 1}}, named)
    assert (caught.value.named, caught.value.found) == (named, 1 if present else None)
    assert store.used(host)["VCPU"] == (2 if present else 0)


def test_every_write_bumps_the_consumers_generation_and_sets_its_owner_and_type(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})

    assert store.put(uuid, {host: SMALL}, 1, project_id="other", user_id="one", consumer_type="X") == 2

    found = store.consumer(uuid)
    assert (found.generation, found.project_id, found.user_id, found.consumer_type) == (2, "other", "one", "X")


def test_a_put_of_no_allocations_releases_everything_and_keeps_the_consumer(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})

    assert store.put(uuid, {}, 1) == 2

    assert store.consumer(uuid).allocations == {}
    assert store.used(host) == FREE
    assert store.put(uuid, {host: SMALL}, 2) == 3


def test_a_missing_consumer_provider_or_resource_class_is_not_found(store: Store, host: str) -> None:
    with pytest.raises(errors.ConsumerNotFound):
        store.consumer(ids.fresh())
    with pytest.raises(errors.ConsumerNotFound):
        store.delete(ids.fresh())
    with pytest.raises(errors.ProviderNotFound):
        store.put(ids.fresh(), {host: SMALL, ids.fresh(): SMALL})
    with pytest.raises(errors.ResourceClassNotFound):
        store.put(ids.fresh(), {host: {"CUSTOM_NONE": 1}})
    assert store.rows() == {}


def test_a_write_of_several_consumers_is_atomic(store: Store, host: str) -> None:
    small, large = ids.fresh(), ids.fresh()
    with pytest.raises(errors.CapacityExceeded):
        store.post({small: store.wanted({host: SMALL}), large: store.wanted({host: {"VCPU": 7}})})
    assert store.used(host) == FREE

    assert store.post({small: store.wanted({host: SMALL}), large: store.wanted({host: {"VCPU": 6}})}) == {
        small: 1,
        large: 1,
    }
    assert store.used(host)["VCPU"] == 8


def test_consumers_exchange_amounts_on_a_full_provider(store: Store) -> None:
    host = store.provider(VCPU=8)
    first, second = ids.fresh(), ids.fresh()
    store.post({first: store.wanted({host: {"VCPU": 6}}), second: store.wanted({host: {"VCPU": 2}})})

    store.post({first: store.wanted({host: {"VCPU": 2}}, 1), second: store.wanted({host: {"VCPU": 6}}, 1)})

    assert (store.held(first), store.held(second)) == ({host: {"VCPU": 2}}, {host: {"VCPU": 6}})
    assert store.is_sound()


# --- Capacity and unit rules ------------------------------------------------------------------------------------------


def test_a_put_that_does_not_fit_is_refused_with_each_full_inventory_and_its_free_amount(
    store: Store, host: str
) -> None:
    roomy = store.provider(VCPU=100)
    store.put(ids.fresh(), {host: {"VCPU": 5, "MEMORY_MB": 8000}})
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.put(ids.fresh(), {host: {"VCPU": 4, "MEMORY_MB": 200}, roomy: {"VCPU": 1}})
    assert sorted(refusals(caught)) == [(host, "MEMORY_MB", 200, 192.0), (host, "VCPU", 4, 3.0)]
    assert {r["reason"] for r in caught.value.refusals} == {"not enough room"}
    assert (caught.value.count, caught.value.provider_uuid) == (2, host)


def test_a_refusal_does_not_name_an_inventory_with_just_enough_room(store: Store) -> None:
    # After the guarded update, this inventory is full: a second check of the same amount would find no room.
    filled, full = store.provider(VCPU=4), store.provider(VCPU=4)
    store.put(ids.fresh(), {filled: {"VCPU": 2}, full: {"VCPU": 3}})
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.put(ids.fresh(), {filled: {"VCPU": 2}, full: {"VCPU": 2}})
    assert refusals(caught) == [(full, "VCPU", 2, 1.0)]


def test_capacity_is_the_total_less_the_reserved_amount_times_the_ratio(store: Store) -> None:
    host = store.provider(
        VCPU=Inventory(total=5, reserved=1, allocation_ratio=1.5), DISK_GB=Inventory(total=9, reserved=9)
    )
    store.put(ids.fresh(), {host: {"VCPU": 6}})
    with pytest.raises(errors.CapacityExceeded):
        store.put(ids.fresh(), {host: {"VCPU": 1}})
    with pytest.raises(errors.CapacityExceeded):
        store.put(ids.fresh(), {host: {"DISK_GB": 1}})


def test_a_fractional_capacity_is_not_rounded(store: Store) -> None:
    host = store.provider(VCPU=Inventory(total=3, allocation_ratio=1.1))
    store.put(ids.fresh(), {host: {"VCPU": 3}})
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.put(ids.fresh(), {host: {"VCPU": 1}})
    assert caught.value.refusals[0]["free"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        (1, "not between min_unit 2 and max_unit 6"),
        (8, "not between min_unit 2 and max_unit 6"),
        (3, "not a multiple of step_size 2"),
    ],
)
def test_an_amount_that_breaks_the_unit_rules_is_refused(store: Store, amount: int, reason: str) -> None:
    host = store.provider(VCPU=Inventory(total=100, min_unit=2, max_unit=6, step_size=2))
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.post({ids.fresh(): store.wanted({host: {"VCPU": n}}) for n in (amount, 4)})
    assert caught.value.refusals == [
        {"provider_uuid": host, "resource_class": "VCPU", "asked": max(amount, 4), "free": 100.0, "reason": reason}
    ]


def test_unit_rules_apply_to_each_amount_and_not_to_the_sum(store: Store) -> None:
    host = store.provider(VCPU=Inventory(total=100, min_unit=2, max_unit=6, step_size=2))
    store.post({ids.fresh(): store.wanted({host: {"VCPU": amount}}) for amount in (2, 4, 6)})
    assert store.used(host) == {"VCPU": 12}


def test_a_provider_without_inventory_of_a_class_has_no_room(store: Store, host: str) -> None:
    with pytest.raises(errors.CapacityExceeded) as caught:
        store.put(ids.fresh(), {host: {"VCPU": 1, "DISK_GB": 1}})
    assert refusals(caught) == [(host, "DISK_GB", 1, 0.0)]
    assert caught.value.refusals[0]["reason"] == "no inventory"


def test_an_over_committed_inventory_blocks_only_growth(store: Store) -> None:
    host = store.provider(VCPU=8)
    first, second = ids.fresh(), ids.fresh()
    store.put(first, {host: {"VCPU": 4}})
    store.put(second, {host: {"VCPU": 4}})
    store.set_inventories(host, 3, VCPU=Inventory(total=8, reserved=3), MEMORY_MB=512)

    with pytest.raises(errors.CapacityExceeded):
        store.put(first, {host: {"VCPU": 5}}, 1)
    with pytest.raises(errors.CapacityExceeded) as refused:
        store.put(ids.fresh(), {host: {"VCPU": 1}})
    assert refused.value.refusals[0]["free"] == -3.0
    assert store.put(first, {host: {"VCPU": 4, "MEMORY_MB": 512}}, 1) == 2
    assert store.put(first, {host: {"VCPU": 3}}, 2) == 3
    with pytest.raises(errors.CapacityExceeded):
        store.put(first, {host: {"VCPU": 4}}, 3)
    store.post({first: store.wanted({host: {"VCPU": 4}}, 3), second: store.wanted({host: {"VCPU": 3}}, 1)})
    store.delete(first)

    assert store.used(host) == {"VCPU": 3, "MEMORY_MB": 0}


def test_newer_unit_rules_do_not_apply_to_an_unchanged_amount(store: Store) -> None:
    host, other = store.provider(VCPU=8), store.provider(VCPU=8)
    uuid = ids.fresh()
    store.put(uuid, {host: {"VCPU": 4}})
    store.set_inventories(host, 2, VCPU=Inventory(total=8, max_unit=2))

    store.put(uuid, {host: {"VCPU": 4}, other: {"VCPU": 1}}, 1)

    assert store.held(uuid) == {host: {"VCPU": 4}, other: {"VCPU": 1}}


def test_every_inventory_of_a_large_write_is_checked(store: Store) -> None:
    store.report(*(node_report(number, VCPU=2) for number in range(150)))
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


def test_different_amounts_are_checked_and_added_each_for_its_own_inventory(store: Store) -> None:
    store.report(*(node_report(number, VCPU=number + 1, MEMORY_MB=1024) for number in range(6)))
    nodes = [ids.derived("node", number) for number in range(6)]
    amounts = {
        ids.fresh(): store.wanted({node: {"VCPU": 1 + number, "MEMORY_MB": 512 if number < 4 else 1024}})
        for number, node in enumerate(nodes)
    }
    too_much = {**amounts, ids.fresh(): store.wanted({nodes[2]: {"VCPU": 1}, nodes[4]: {"MEMORY_MB": 1}})}

    with pytest.raises(errors.CapacityExceeded) as caught:
        store.post(too_much)
    assert sorted(refusals(caught)) == sorted([(nodes[2], "VCPU", 4, 3.0), (nodes[4], "MEMORY_MB", 1025, 1024.0)])
    store.post(amounts)

    for number, node in enumerate(nodes):
        assert store.used(node) == {"VCPU": 1 + number, "MEMORY_MB": 512 if number < 4 else 1024}
    assert store.is_sound()


# --- Rows that a write changes ----------------------------------------------------------------------------------------


@pytest.mark.backends("sqlite", "mariadb")
def test_a_move_changes_only_rows_that_differ_and_nothing_if_a_provider_generation_is_stale(store: Store) -> None:
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


@pytest.mark.backends("sqlite", "mariadb")
def test_a_resize_changes_amounts_in_place(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})
    before = store.rows()

    store.put(uuid, {host: {"VCPU": 4, "MEMORY_MB": 2048}}, 1)

    after = store.rows()
    assert after.keys() == before.keys()
    assert sorted(row[3] for row in after.values()) == [4, 2048]
    assert store.used(host) == {"VCPU": 4, "MEMORY_MB": 2048}


@pytest.mark.backends("sqlite", "mariadb")
def test_a_write_bumps_generations_and_seq_of_its_providers_and_a_delete_only_seq(
    store: Store,
) -> None:
    first, second, other = (store.provider(VCPU=8) for _ in range(3))
    uuid = ids.fresh()

    def bumps(write: Any) -> list[tuple[int, int]]:
        before = [(store.generation(p), store.seq(p)) for p in (first, second, other)]
        write()
        after = [(store.generation(p), store.seq(p)) for p in (first, second, other)]
        return [(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before, strict=True)]

    assert bumps(lambda: store.put(uuid, {first: {"VCPU": 1}})) == [(1, 1), (0, 0), (0, 0)]
    assert bumps(lambda: store.put(uuid, {first: {"VCPU": 1}, second: {"VCPU": 1}}, 1)) == [(1, 1), (1, 1), (0, 0)]
    assert bumps(lambda: store.put(uuid, {second: {"VCPU": 1}}, 2)) == [(1, 1), (1, 1), (0, 0)]
    assert bumps(lambda: store.put(uuid, {}, 3)) == [(0, 0), (1, 1), (0, 0)]
    store.put(uuid, {first: {"VCPU": 1}}, 4)
    assert bumps(lambda: store.delete(uuid)) == [(0, 1), (0, 0), (0, 0)]


@pytest.mark.backends("sqlite", "mariadb")
def test_every_write_records_the_changed_providers_in_the_change_feed(store: Store) -> None:
    first, second = store.provider(VCPU=8), store.provider(VCPU=8)
    uuid = ids.fresh()
    start = store.database.read(change_feed.newest)

    def changed_by(write: Any) -> set[str]:
        since = store.database.read(change_feed.newest)
        write()
        _, found, hosts, *_ = store.database.read(lambda connection: change_feed.changes_since(connection, since))
        assert not hosts
        uuids = store.database.read(lambda connection: providers.uuids_of(connection, found))
        return set(uuids.values())

    assert changed_by(lambda: store.put(uuid, {first: {"VCPU": 1}})) == {first}
    assert changed_by(lambda: store.put(uuid, {second: {"VCPU": 1}}, 1)) == {first, second}
    assert changed_by(lambda: store.delete(uuid)) == {second}
    assert changed_by(lambda: store.set_inventories(first, 3, VCPU=9)) == {first}
    assert store.database.write(lambda connection: change_feed.prune(connection, 3600)) == 0
    assert store.database.write(lambda connection: change_feed.prune(connection, -1)) >= 4
    last = store.database.read(change_feed.newest)
    assert last > start
    assert store.database.read(lambda connection: change_feed.changes_since(connection, last)) == (
        last,
        {},
        set(),
        {},
        False,
        False,
    )


def record_without_the_second(store: Store, seconds_ago: int = 0) -> int:
    """Record three changes, of which the second is not visible yet; return the number of the last one."""
    store.database.write(lambda connection: change_feed.record(connection, provider_ids=[1, 2, 3]))
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("DELETE FROM changes WHERE resource_provider_id = 2")
        connection.exec_driver_sql(f"UPDATE changes SET created_at = created_at - ({seconds_ago})")
    return store.database.read(change_feed.newest)


@pytest.mark.backends("sqlite", "mariadb")
def test_the_change_feed_waits_for_a_missing_number_until_it_is_old(store: Store) -> None:
    last = record_without_the_second(store)

    # When the feed is read, then it returns the third change, and will return it again
    go_on_from, found, *_ = store.database.read(lambda connection: change_feed.changes_since(connection, last - 3))
    assert (go_on_from, set(found)) == (last - 2, {1, 3})

    # Until the missing number is so old that its transaction must have been rolled back
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE changes SET created_at = created_at - 10")
    go_on_from, found, *_ = store.database.read(lambda connection: change_feed.changes_since(connection, go_on_from))
    assert (go_on_from, set(found)) == (last, {3})


@pytest.mark.backends("sqlite", "mariadb")
def test_a_reader_waits_for_a_missing_number_from_when_it_has_first_read_a_later_one(store: Store) -> None:
    last = record_without_the_second(store, seconds_ago=2)

    gaps: dict[int, float] = {}
    positions = []
    for seconds in (100.0, 100.2, 100.3):
        clock = partial(float, seconds)
        found = store.database.read(partial(change_feed.changes_since, last_id=last - 3, gaps=gaps, clock=clock))
        positions.append(found.go_on_from - last)
        gaps = found.gaps

    assert positions == [-2, -2, 0]


@pytest.mark.backends("sqlite", "mariadb")
def test_the_change_feed_does_not_wait_for_a_number_missing_since_before_the_clock_was_set_back(store: Store) -> None:
    last = record_without_the_second(store, seconds_ago=-3600)

    go_on_from, found, *_ = store.database.read(lambda connection: change_feed.changes_since(connection, last - 3))

    assert (go_on_from, set(found)) == (last, {1, 3})


@pytest.mark.backends("sqlite", "mariadb")
def test_provider_rows_and_seq_by_id_contain_the_data_that_the_host_view_compares(store: Store, host: str) -> None:
    store.put(ids.fresh(), {host: SMALL})

    [row] = store.database.read(lambda connection: providers.rows(connection, None))

    assert store.database.read(lambda connection: change_feed.seq_by_id(connection, resource_providers)) == {
        row.id: row.seq
    }
    assert (row.uuid, row.root_id, row.seq) == (host, row.id, store.seq(host))
    assert (row.inventories[0].total, row.inventories[0].used, row.inventories[0].capacity) == (8, 2, 8.0)
    assert store.database.read(lambda connection: providers.rows(connection, [row.id, row.id + 1])) == [row]
