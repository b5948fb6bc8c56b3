"""Test the contract between the agent and every driver: one suite over each of them, an operator's own included.

The other half, of guests that are there and are given orders, is in test_driver_orders.py.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest
from support.compute.builders import guest_spec, settings, tree_of, wait_until
from support.compute.driver_rigs import DRIVERS, Make, Rig, attempts, destroy

from compute import driver as drivers
from compute.driver import Driver, GuestSpec
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.model import Inventory


def test_every_entry_point_of_ours_is_under_this_suite() -> None:
    ours = {
        point.name
        for point in metadata.entry_points(group=drivers.ENTRY_POINTS)
        if point.dist is not None and point.dist.name == "moorage"
    }

    assert ours <= set(DRIVERS)


def test_each_host_has_a_name_of_its_own_and_a_provider_that_is_its_node(driver: Driver) -> None:
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


def test_every_provider_is_under_its_hosts_and_no_other_host_has_it(driver: Driver) -> None:
    trees = [list(tree_of(driver, host.service_host)) for host in driver.hosts()]

    for root, *others in trees:
        before = {root.uuid}
        for provider in others:
            assert provider.parent_uuid in before, "parents stand before their children"
            before.add(provider.uuid)
    for named in ("uuid", "name"):
        names = [getattr(provider, named) for tree in trees for provider in tree]
        assert len(set(names)) == len(names)


def test_a_tree_that_is_right_already_is_left_as_it_is(driver: Driver, host: str) -> None:
    first = tree_of(driver, host)
    first.set_generations({provider.uuid: 3 for provider in first})

    assert list(tree_of(driver, host, first)) == list(first)


def test_what_an_operator_has_set_by_hand_stays(driver: Driver, host: str) -> None:
    tree = tree_of(driver, host)
    for provider in list(tree):
        tree.add_traits(provider.uuid, ["CUSTOM_BY_HAND"])
        tree.add_aggregates(provider.uuid, [ids.derived("by hand")])
    root = next(iter(tree))
    tree.set_inventory(root.uuid, "CUSTOM_LICENSE", Inventory(total=7))
    tree.new_child("by-hand", root.uuid)

    assert list(tree_of(driver, host, tree)) == list(tree)


def test_what_the_store_has_wrong_is_put_right(driver: Driver, host: str) -> None:
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


def test_guests_are_on_the_host_they_were_spawned_on(driver: Driver) -> None:
    first, second = (report.service_host for report in driver.hosts()[:2])
    asked = guest_spec()

    driver.spawn(second, asked)

    assert attempts(driver, first) == []
    assert attempts(driver, second) == [asked.attempt_id]


def test_guests_and_destroyed_attempts_outlive_the_driver(make: Make, driver: Driver, host: str) -> None:
    kept, gone = guest_spec(), guest_spec()
    driver.spawn(host, kept)
    driver.spawn(host, gone)
    destroy(driver, host, gone)
    driver.close()

    again = make()
    again.start()
    try:
        again.spawn(host, kept)
        assert attempts(again, host) == [kept.attempt_id]
        with pytest.raises(errors.BuildFailed):
            again.spawn(host, gone)
        assert attempts(again, host) == [kept.attempt_id]
    finally:
        again.close()


def test_destroying_twice_destroys_once(driver: Driver, host: str) -> None:
    asked, other = guest_spec(), guest_spec()
    driver.spawn(host, asked)
    driver.spawn(host, other)

    destroy(driver, host, asked)
    destroy(driver, host, asked)

    assert attempts(driver, host) == [other.attempt_id]


def test_an_attempt_destroyed_before_it_began_never_begins(driver: Driver, host: str) -> None:
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


def test_a_host_carries_what_it_has_and_not_one_guest_more(driver: Driver, host: str) -> None:
    found = [provider.inventories["VCPU"] for provider in tree_of(driver, host) if "VCPU" in provider.inventories]
    capacity = int(sum(inventory.capacity for inventory in found))
    whole = guest_spec(vcpus=capacity)
    driver.spawn(host, whole)

    with pytest.raises(errors.BuildFailed):
        driver.spawn(host, guest_spec(vcpus=capacity))
    destroy(driver, host, whole)
    driver.spawn(host, guest_spec(vcpus=whole.resources["VCPU"]))

    assert len(driver.guests(host)) == 1


def test_a_class_that_the_host_has_none_of_is_refused(driver: Driver, host: str) -> None:
    asked = guest_spec()
    asked.resources["CUSTOM_NOTHING_OF_IT"] = 1

    with pytest.raises(errors.BuildFailed):
        driver.spawn(host, asked)


def test_writers_at_once_never_overfill_a_host(driver: Driver, host: str) -> None:
    refused = []

    def spawn(asked: GuestSpec) -> None:
        try:
            driver.spawn(host, asked)
        except errors.BuildFailed:
            refused.append(asked.attempt_id)

    threads = [threading.Thread(target=spawn, args=(guest_spec(vcpus=3),)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(driver.guests(host)) == 12 - len(refused)
    assert sum(guest.resources["VCPU"] for guest in driver.guests(host)) <= 16


def test_a_spawn_under_way_is_cut_short_and_brings_nothing_back(rig: Rig) -> None:
    driver = rig.hanging()
    driver.start()
    host, asked = driver.hosts()[0].service_host, guest_spec()
    with ThreadPoolExecutor(1) as thread:
        spawning = thread.submit(driver.spawn, host, asked)
        wait_until(lambda: attempts(driver, host))
        assert set(driver.unfinished(host)) == {asked.attempt_id}

        destroy(driver, host, asked)
        assert attempts(driver, host) == []
        with pytest.raises(errors.BuildFailed):
            spawning.result(10)

    assert attempts(driver, host) == []
    driver.close()


def test_a_spawn_under_way_of_another_claim_is_not_disturbed(rig: Rig) -> None:
    driver = rig.hanging()
    driver.start()
    host, asked = driver.hosts()[0].service_host, guest_spec()
    with ThreadPoolExecutor(1) as thread:
        spawning = thread.submit(driver.spawn, host, asked)
        wait_until(lambda: attempts(driver, host))

        with pytest.raises(errors.InvalidState):
            driver.destroy(host, asked.instance_uuid, asked.attempt_id, guest_spec().claim_id)
        assert not spawning.done()
        assert attempts(driver, host) == [asked.attempt_id]
        destroy(driver, host, asked)
        assert isinstance(spawning.exception(10), errors.BuildFailed)
    driver.close()


def test_whoever_destroys_what_cannot_be_cut_short_is_told_to_come_again(rig: Rig) -> None:
    if rig.stubborn is None:
        pytest.skip("every spawn of this driver can be cut short")
    driver = rig.stubborn()
    driver.start()
    host, asked = driver.hosts()[0].service_host, guest_spec()
    with ThreadPoolExecutor(1) as thread:
        spawning = thread.submit(driver.spawn, host, asked)
        wait_until(lambda: attempts(driver, host))

        with pytest.raises(errors.RequestInProgress):
            destroy(driver, host, asked)
        assert attempts(driver, host) == [asked.attempt_id]
        spawning.result(10)

    destroy(driver, host, asked)
    assert attempts(driver, host) == []
    driver.close()


def test_a_driver_that_is_closed_leaves_what_it_was_spawning_unfinished(rig: Rig) -> None:
    driver = rig.hanging()
    driver.start()
    host, asked = driver.hosts()[0].service_host, guest_spec()
    with ThreadPoolExecutor(1) as thread:
        spawning = thread.submit(driver.spawn, host, asked)
        wait_until(lambda: attempts(driver, host))
        driver.close()
        assert isinstance(spawning.exception(10), errors.BuildFailed)

    again = rig.make()
    again.start()
    assert attempts(again, host) == [asked.attempt_id]
    assert set(again.unfinished(host)) == {asked.attempt_id}
    again.spawn(host, asked)
    assert list(again.unfinished(host)) == []
    again.close()


def test_a_guest_that_runs_is_not_unfinished(driver: Driver, host: str) -> None:
    driver.spawn(host, guest_spec())

    assert list(driver.unfinished(host)) == []


def test_the_living_are_those_that_are_said_to_be_alive_one_by_one(driver: Driver) -> None:
    names = [host.service_host for host in driver.hosts()]

    assert {name for name in names if driver.is_alive(name)} == set(driver.alive())
    assert not driver.is_alive("nowhere")


def test_a_host_of_somebody_else_is_not_found(driver: Driver) -> None:
    asked = guest_spec()

    with pytest.raises(errors.HostNotFound):
        driver.spawn("nowhere", asked)
    with pytest.raises(errors.HostNotFound):
        destroy(driver, "nowhere", asked)
    with pytest.raises(errors.HostNotFound):
        driver.guests("nowhere")
    with pytest.raises(errors.HostNotFound):
        driver.unfinished("nowhere")
    with pytest.raises(errors.HostNotFound):
        driver.admit("nowhere", asked)


def test_a_driver_nobody_knows_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    conf = settings(tmp_path, compute={"driver": "imagined"})

    with pytest.raises(errors.UnknownPlugin) as caught:
        drivers.load(conf, "agent1", "cell1")

    assert caught.value.name == "imagined"


def test_the_driver_is_loaded_by_the_name_in_the_configuration(tmp_path: Path) -> None:
    if not metadata.entry_points(group=drivers.ENTRY_POINTS):
        absent = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        absent("moorage is not installed")

    assert isinstance(drivers.load(settings(tmp_path), "agent1", "cell1"), FakeDriver)
