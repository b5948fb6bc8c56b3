"""Test the contract between the agent and each driver, including drivers of operators.

The orders to existing guests are in test_driver_orders.py.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest
from support.compute.builders import guest_spec, settings, tree_of, wait_until
from support.compute.driver_rigs import DRIVERS, Make, Rig, attempts, destroy, started

from compute import driver as drivers
from compute.driver import Driver, GuestSpec
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.model import Inventory


def test_each_entry_point_of_moorage_is_tested_by_this_suite() -> None:
    ours = {
        point.name
        for point in metadata.entry_points(group=drivers.ENTRY_POINTS)
        if point.dist is not None and point.dist.name == "moorage"
    }

    assert ours <= set(DRIVERS)


def test_each_host_has_a_unique_name_and_a_provider_that_is_its_node(driver: Driver) -> None:
    hosts = driver.hosts()

    assert len({host.service_host for host in hosts}) == len(hosts)
    assert all(driver.has_host(host.service_host) for host in hosts)
    assert not driver.has_host("nowhere")
    for host in hosts:
        assert host.agent == "agent1"
        root, *others = tree_of(driver, host.service_host)
        assert (root.uuid, root.name) == (host.compute_node_uuid, host.nodename)
        assert any("VCPU" in provider.inventories for provider in (root, *others))
    assert set(driver.alive()) <= {host.service_host for host in hosts}


def test_descriptions_are_the_same_after_a_restart(make: Make, driver: Driver) -> None:
    again = make()

    assert list(again.hosts()) == list(driver.hosts())
    for host in driver.hosts():
        assert list(tree_of(again, host.service_host)) == list(tree_of(driver, host.service_host))


def test_each_provider_belongs_to_the_tree_of_one_host(driver: Driver) -> None:
    trees = [list(tree_of(driver, host.service_host)) for host in driver.hosts()]

    for root, *others in trees:
        before = {root.uuid}
        for provider in others:
            assert provider.parent_uuid in before, "parents stand before their children"
            before.add(provider.uuid)
    for named in ("uuid", "name"):
        names = [getattr(provider, named) for tree in trees for provider in tree]
        assert len(set(names)) == len(names)


def test_a_correct_tree_is_left_unchanged(driver: Driver, host: str) -> None:
    first = tree_of(driver, host)
    first.set_generations({provider.uuid: 3 for provider in first})

    assert list(tree_of(driver, host, first)) == list(first)


def test_settings_of_an_operator_are_kept(driver: Driver, host: str) -> None:
    tree = tree_of(driver, host)
    for provider in list(tree):
        tree.add_traits(provider.uuid, ["CUSTOM_BY_HAND"])
        tree.add_aggregates(provider.uuid, [ids.derived("by hand")])
    root = next(iter(tree))
    tree.set_inventory(root.uuid, "CUSTOM_LICENSE", Inventory(total=7))
    tree.new_child("by-hand", root.uuid)

    assert list(tree_of(driver, host, tree)) == list(tree)


def test_wrong_inventories_and_traits_in_the_store_are_corrected(driver: Driver, host: str) -> None:
    right = tree_of(driver, host)
    wrong = right.copy()
    for provider in list(wrong):
        for name, inventory in provider.inventories.items():
            wrong.set_inventory(provider.uuid, name, Inventory(total=inventory.total + 1))
        wrong.set_traits(provider.uuid, [])

    assert list(tree_of(driver, host, wrong)) == list(right)


def test_a_guest_keeps_its_attempt_its_claim_and_its_amounts(driver: Driver, host: str) -> None:
    asked = guest_spec()

    driver.admit(host, asked)
    driver.spawn(host, asked)

    (guest,) = driver.guests(host)
    assert (guest.instance_uuid, guest.host) == (asked.instance_uuid, host)
    assert (guest.attempt_id, guest.claim_id) == (asked.attempt_id, asked.claim_id)
    assert guest.resources == asked.resources


def test_the_same_attempt_is_spawned_once(driver: Driver, host: str) -> None:
    asked = guest_spec()

    driver.spawn(host, asked)
    driver.spawn(host, asked)

    assert attempts(driver, host) == [asked.attempt_id]


def test_a_guest_is_listed_only_on_its_own_host(driver: Driver) -> None:
    first, second = (report.service_host for report in driver.hosts()[:2])
    asked = guest_spec()

    driver.spawn(second, asked)

    assert attempts(driver, first) == []
    assert attempts(driver, second) == [asked.attempt_id]


def test_guests_and_destroyed_attempts_survive_a_restart_of_the_driver(make: Make, driver: Driver, host: str) -> None:
    kept, gone = guest_spec(), guest_spec()
    driver.spawn(host, kept)
    driver.spawn(host, gone)
    destroy(driver, host, gone)
    driver.close()

    with started(make) as again:
        again.spawn(host, kept)
        assert attempts(again, host) == [kept.attempt_id]
        with pytest.raises(errors.BuildFailed):
            again.spawn(host, gone)
        assert attempts(again, host) == [kept.attempt_id]


def test_a_repeated_destroy_changes_nothing(driver: Driver, host: str) -> None:
    asked, other = guest_spec(), guest_spec()
    driver.spawn(host, asked)
    driver.spawn(host, other)

    destroy(driver, host, asked)
    destroy(driver, host, asked)

    assert attempts(driver, host) == [other.attempt_id]


def test_an_attempt_that_was_destroyed_before_it_began_never_begins(driver: Driver, host: str) -> None:
    asked = guest_spec()

    destroy(driver, host, asked)

    with pytest.raises(errors.BuildFailed):
        driver.spawn(host, asked)
    assert attempts(driver, host) == []


def test_another_attempt_of_the_same_instance_is_another_guest(driver: Driver, host: str) -> None:
    first = guest_spec()
    second = guest_spec(instance_uuid=first.instance_uuid)
    driver.spawn(host, first)
    driver.spawn(host, second)

    destroy(driver, host, first)

    assert attempts(driver, host) == [second.attempt_id]


def test_a_guest_of_another_claim_is_left_alone(driver: Driver, host: str) -> None:
    asked = guest_spec()
    driver.spawn(host, asked)

    with pytest.raises(errors.InvalidState):
        driver.destroy(host, asked.instance_uuid, asked.attempt_id, guest_spec().claim_id)

    assert attempts(driver, host) == [asked.attempt_id]


def test_a_host_has_guests_up_to_its_capacity_and_no_more(driver: Driver, host: str) -> None:
    found = [provider.inventories["VCPU"] for provider in tree_of(driver, host) if "VCPU" in provider.inventories]
    capacity = int(sum(inventory.capacity for inventory in found))
    whole = guest_spec(vcpus=capacity)
    driver.spawn(host, whole)

    with pytest.raises(errors.BuildFailed):
        driver.spawn(host, guest_spec(vcpus=capacity))
    destroy(driver, host, whole)
    driver.spawn(host, guest_spec(vcpus=whole.resources["VCPU"]))

    assert len(driver.guests(host)) == 1


def test_a_guest_with_a_resource_class_that_the_host_lacks_is_refused(driver: Driver, host: str) -> None:
    asked = guest_spec()
    asked.resources["CUSTOM_NOTHING_OF_IT"] = 1

    with pytest.raises(errors.BuildFailed):
        driver.spawn(host, asked)


def test_concurrent_spawns_never_exceed_the_capacity_of_a_host(driver: Driver, host: str) -> None:
    refused = []

    def spawn(asked: GuestSpec) -> None:
        try:
            driver.spawn(host, asked)
        except errors.BuildFailed:
            refused.append(asked.attempt_id)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(spawn, [guest_spec(vcpus=3) for _ in range(12)]))

    assert len(driver.guests(host)) == 12 - len(refused)
    assert sum(guest.resources["VCPU"] for guest in driver.guests(host)) <= 16


@contextmanager
def spawning(make: Make) -> Iterator[tuple[Driver, str, GuestSpec, "Future[None]"]]:
    """Begin a spawn; yield the driver, the host, the guest and the spawn."""
    asked = guest_spec()
    with ThreadPoolExecutor(1) as thread, started(make) as driver:
        host = driver.hosts()[0].service_host
        spawn = thread.submit(driver.spawn, host, asked)
        wait_until(lambda: attempts(driver, host))
        yield driver, host, asked, spawn


def test_a_destroy_interrupts_a_spawn_under_way_and_the_guest_stays_away(rig: Rig) -> None:
    with spawning(rig.hanging) as (driver, host, asked, spawn):
        assert set(driver.unfinished(host)) == {asked.attempt_id}

        destroy(driver, host, asked)
        assert attempts(driver, host) == []
        with pytest.raises(errors.BuildFailed):
            spawn.result(10)

        assert attempts(driver, host) == []


def test_a_destroy_with_another_claim_does_not_interrupt_a_spawn_under_way(rig: Rig) -> None:
    with spawning(rig.hanging) as (driver, host, asked, spawn):
        with pytest.raises(errors.InvalidState):
            driver.destroy(host, asked.instance_uuid, asked.attempt_id, guest_spec().claim_id)
        assert not spawn.done()
        assert attempts(driver, host) == [asked.attempt_id]
        destroy(driver, host, asked)
        assert isinstance(spawn.exception(10), errors.BuildFailed)


def test_a_destroy_during_a_spawn_that_cannot_be_interrupted_must_be_repeated(rig: Rig) -> None:
    if rig.stubborn is None:
        pytest.skip("each spawn of this driver can be interrupted")
    with spawning(rig.stubborn) as (driver, host, asked, spawn):
        with pytest.raises(errors.RequestInProgress):
            destroy(driver, host, asked)
        assert attempts(driver, host) == [asked.attempt_id]
        spawn.result(10)

        destroy(driver, host, asked)
        assert attempts(driver, host) == []


def test_a_guest_that_was_being_spawned_when_the_driver_closed_is_unfinished(rig: Rig) -> None:
    with spawning(rig.hanging) as (driver, host, asked, spawn):
        driver.close()
        assert isinstance(spawn.exception(10), errors.BuildFailed)

    with started(rig.make) as again:
        assert attempts(again, host) == [asked.attempt_id]
        assert set(again.unfinished(host)) == {asked.attempt_id}
        again.spawn(host, asked)
        assert list(again.unfinished(host)) == []


def test_a_running_guest_is_not_unfinished(driver: Driver, host: str) -> None:
    driver.spawn(host, guest_spec())

    assert list(driver.unfinished(host)) == []


def test_the_list_of_alive_hosts_agrees_with_the_answer_for_each_host(driver: Driver) -> None:
    names = [host.service_host for host in driver.hosts()]

    assert {name for name in names if driver.is_alive(name)} == set(driver.alive())
    assert not driver.is_alive("nowhere")


def test_an_unknown_host_is_not_found(driver: Driver) -> None:
    asked = guest_spec()

    calls: list[Callable[[], object]] = [
        lambda: driver.admit("nowhere", asked),
        lambda: driver.spawn("nowhere", asked),
        lambda: destroy(driver, "nowhere", asked),
        lambda: driver.guests("nowhere"),
        lambda: driver.unfinished("nowhere"),
    ]
    for call in calls:
        with pytest.raises(errors.HostNotFound):
            call()


def test_an_unknown_driver_is_refused_by_its_name(tmp_path: Path) -> None:
    conf = settings(tmp_path, compute={"driver": "imagined"})

    with pytest.raises(errors.UnknownPlugin) as caught:
        drivers.load(conf, "agent1", "cell1")

    assert caught.value.name == "imagined"


def test_the_driver_is_loaded_by_the_name_in_the_configuration(tmp_path: Path) -> None:
    if not metadata.entry_points(group=drivers.ENTRY_POINTS):
        absent = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        absent("moorage is not installed")

    assert isinstance(drivers.load(settings(tmp_path), "agent1", "cell1"), FakeDriver)
