"""Test the misbehaviour of the fake driver: options choose it, and it is the same in every run."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compute.builders import guest_spec, settings, tree_of
from support.compute.driver_rigs import destroy, order

from compute.driver import GuestSpec
from compute.fake.behaviour import Behaviour, chance
from compute.fake.driver import FakeDriver
from compute.fake.guest_file import GuestFile
from moorage import errors, ids
from moorage.messages import MovingGuest
from moorage.model import Image, MoveKind


@contextmanager
def started(folder: Path, kind: type[FakeDriver] = FakeDriver, **options: Any) -> Iterator[FakeDriver]:
    driver = kind(settings(folder, fake_driver=options), "agent1", "cell1")
    driver.start()
    try:
        yield driver
    finally:
        driver.close()


@given(seed=st.integers(), instance=st.uuids(), host=st.text(max_size=30))
def test_the_draw_is_within_bounds_and_the_same_every_time(seed: int, instance: object, host: str) -> None:
    drawn = chance(seed, str(instance), host)

    assert 0.0 <= drawn < 1.0
    assert drawn == chance(seed, str(instance), host)


def test_the_draw_is_the_same_on_every_machine() -> None:
    assert chance(7, "instance", "host-0001") == pytest.approx(0.16172208750672823)


def test_the_share_of_failing_spawns_is_the_configured_one() -> None:
    draws = [chance(3, ids.derived("share", n), "host-0001") for n in range(4000)]

    assert sum(drawn < 0.2 for drawn in draws) / len(draws) == pytest.approx(0.2, abs=0.03)


def test_a_failed_spawn_leaves_a_guest_that_holds_room_until_it_is_destroyed(tmp_path: Path) -> None:
    with started(tmp_path, failing_hosts=["host-0002"]) as driver:
        failed, other = guest_spec(vcpus=16), guest_spec(vcpus=16)

        with pytest.raises(errors.BuildFailed, match="every spawn fails here"):
            driver.spawn("host-0002", failed)
        assert [guest.attempt_id for guest in driver.guests("host-0002")] == [failed.attempt_id]
        with pytest.raises(errors.BuildFailed, match="16 VCPU asked, 0 free"):
            driver.spawn("host-0002", other)
        destroy(driver, "host-0002", failed)
        assert driver.guests("host-0002") == []
        with pytest.raises(errors.BuildFailed, match="every spawn fails here"):
            driver.spawn("host-0002", other)
        driver.spawn("host-0001", failed)


def test_a_refusing_host_admits_no_guest(tmp_path: Path) -> None:
    with started(tmp_path, refusing_hosts=["host-0003"]) as driver:
        with pytest.raises(errors.BuildFailed, match="takes no guests"):
            driver.admit("host-0003", guest_spec())
        driver.admit("host-0001", guest_spec())


def test_an_allocation_ratio_lets_a_host_carry_more_guests_but_none_larger_than_itself(tmp_path: Path) -> None:
    with started(tmp_path, vcpus=4, vcpu_allocation_ratio=2.0, disk_gb=0) as driver:
        inventories = next(iter(tree_of(driver))).inventories

    assert inventories["VCPU"].capacity == 8.0
    assert inventories["VCPU"].max_unit == 4
    assert "DISK_GB" not in inventories


def test_a_spawn_whose_guest_was_destroyed_meanwhile_does_not_bring_it_back(tmp_path: Path) -> None:
    class DestroyedMeanwhile(FakeDriver):
        def behaviour(self, host: str, guest: Any) -> Behaviour:
            self.destroy(host, guest.instance_uuid, guest.attempt_id, guest.claim_id)
            return super().behaviour(host, guest)

    with started(tmp_path, DestroyedMeanwhile) as driver:
        with pytest.raises(errors.BuildFailed):
            driver.spawn("host-0001", guest_spec())
        assert driver.guests("host-0001") == []


def test_a_half_made_guest_is_finished_by_the_same_attempt_after_a_crash(tmp_path: Path) -> None:
    class Crash(BaseException):
        pass

    class Crashing(FakeDriver):
        def behaviour(self, host: str, guest: Any) -> Behaviour:
            raise Crash

    asked = guest_spec()
    with started(tmp_path, Crashing) as driver, pytest.raises(Crash):
        driver.spawn("host-0001", asked)

    with started(tmp_path) as driver:
        assert len(driver.guests("host-0001")) == 1
        driver.spawn("host-0001", asked)
        assert len(driver.guests("host-0001")) == 1


def test_each_option_chooses_a_misbehaviour_for_its_hosts_only(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {
        "hanging_hosts": ["host-0001"],
        "late_hosts": ["host-0002"],
        "late_seconds": 7.0,
        "dying_hosts": ["host-0003"],
        "dead_seconds": 9.0,
        "spawn_seconds": 2.0,
    }
    with started(tmp_path, **chosen) as driver:
        first, second, third = (driver.behaviour(host, guest_spec()) for host in driver.alive())

    assert first == Behaviour(seconds=math.inf)
    assert second == Behaviour(seconds=7.0, stubborn=True)
    assert third == Behaviour(seconds=2.0, dead_seconds=9.0)


def test_moved_guests_have_misbehaviour_of_their_own(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {
        "refusing_moves_hosts": ["host-0001"],
        "failing_moves_hosts": ["host-0002"],
        "live_migration_seconds": 5.0,
        "spawn_seconds": 2.0,
    }

    def moved(kind: MoveKind) -> GuestSpec:
        names = {name: ids.fresh() for name in ("migration_uuid", "source_attempt_id")}
        return guest_spec(moving=MovingGuest(kind=kind, source_host="host-0003", **names))

    with started(tmp_path, **chosen) as driver:
        new = [driver.behaviour(host, guest_spec()) for host in driver.alive()]
        live = [driver.behaviour(host, moved("live-migration")) for host in driver.alive()]
        cold = driver.behaviour("host-0003", moved("cold-migration"))

    assert new == [Behaviour(seconds=2.0)] * 3
    assert [behaviour.refusal is not None for behaviour in live] == [True, False, False]
    assert [behaviour.fault is not None for behaviour in live] == [False, True, False]
    assert [behaviour.seconds for behaviour in live] == [5.0] * 3
    assert cold == Behaviour(seconds=2.0)


def test_a_rebuild_misbehaves_like_a_spawn_and_stuck_hosts_carry_out_no_order(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {
        "hanging_hosts": ["host-0001"],
        "late_hosts": ["host-0002"],
        "stuck_hosts": ["host-0002"],
        "late_seconds": 7.0,
        "dying_hosts": ["host-0003"],
        "failing_hosts": ["host-0003"],
        "dead_seconds": 9.0,
        "spawn_seconds": 2.0,
    }
    given = order(guest_spec())
    with started(tmp_path, **chosen) as driver:
        stops = [driver.order_behaviour(host, given, "stop") for host in driver.alive()]
        first, second, third = (driver.order_behaviour(host, given, "rebuild") for host in driver.alive())

    assert stops == [Behaviour(), Behaviour(fault=stops[1].fault), Behaviour()]
    assert stops[1].fault is not None
    assert first == Behaviour(seconds=math.inf)
    assert second == Behaviour(seconds=7.0, stubborn=True, fault=stops[1].fault)
    assert third == Behaviour(seconds=2.0, dead_seconds=9.0, fault="every spawn fails here")


def test_a_rebuild_does_not_survive_the_death_of_its_host_and_leaves_a_stopped_guest(tmp_path: Path) -> None:
    asked = guest_spec()
    with started(tmp_path) as driver:
        driver.spawn("host-0001", asked)
    with started(tmp_path, dying_hosts=["host-0001"], dead_seconds=0.3) as driver:
        with pytest.raises(errors.GuestActionFailed, match="died"):
            driver.rebuild_guest("host-0001", order(asked), Image())

        assert list(driver.stopped("host-0001")) == [asked.attempt_id]
        assert list(driver.unfinished("host-0001")) == []


def test_a_dead_host_does_not_answer_and_keeps_its_guests(tmp_path: Path) -> None:
    with started(tmp_path) as driver:
        asked = guest_spec()
        driver.spawn("host-0001", asked)

        driver.die("host-0001", 3600.0)

        assert list(driver.alive()) == ["host-0002", "host-0003"]
        with pytest.raises(errors.NoReply):
            driver.spawn("host-0001", guest_spec())
        with pytest.raises(errors.NoReply):
            destroy(driver, "host-0001", asked)
        with pytest.raises(errors.NoReply):
            driver.stop_guest("host-0001", order(asked))
        driver.die("host-0001", 0.0)
        assert driver.is_alive("host-0001")
        assert [guest.attempt_id for guest in driver.guests("host-0001")] == [asked.attempt_id]


def test_a_spawn_does_not_survive_the_death_of_its_host(tmp_path: Path) -> None:
    with started(tmp_path, dying_hosts=["host-0001"], dead_seconds=0.3) as driver:
        asked = guest_spec()

        with pytest.raises(errors.BuildFailed, match="died"):
            driver.spawn("host-0001", asked)

        assert driver.is_alive("host-0001")
        assert list(driver.unfinished("host-0001")) == [asked.attempt_id]


def test_unknown_guests_are_the_same_after_a_restart_and_destroyed_ones_do_not_return(tmp_path: Path) -> None:
    def guests(driver: FakeDriver) -> list[Any]:
        return [guest for host in driver.alive() for guest in driver.guests(host)]

    with started(tmp_path, stranger_guests=4) as driver:
        first, *others = guests(driver)
        assert [guest.host for guest in (first, *others)] == ["host-0001", "host-0001", "host-0002", "host-0003"]
        assert list(driver.unfinished("host-0001")) == []
        driver.destroy(first.host, first.instance_uuid, first.attempt_id, first.claim_id)

    with started(tmp_path, stranger_guests=4) as driver:
        assert guests(driver) == others


def test_another_reader_of_the_file_sees_the_guests_of_all_hosts(tmp_path: Path) -> None:
    reader = GuestFile(tmp_path / "guests.sqlite")
    reader.open()
    try:
        with started(tmp_path) as driver:
            asked = [guest_spec(), guest_spec()]
            for host, guest in zip(("host-0001", "host-0002"), asked, strict=True):
                driver.spawn(host, guest)

            assert [guest.attempt_id for guest in reader.guests()] == [guest.attempt_id for guest in asked]
            assert [guest.resources for guest in reader.guests("host-0002")] == [asked[1].resources]
    finally:
        reader.close()


def test_a_file_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    driver = FakeDriver(settings(tmp_path, fake_driver={"state_file": str(tmp_path)}), "agent1", "cell1")

    with pytest.raises(errors.ConfigurationError):
        driver.start()


def test_reading_the_guests_of_a_driver_that_is_not_started_is_an_error(tmp_path: Path) -> None:
    driver = FakeDriver(settings(tmp_path), "agent1", "cell1")

    with pytest.raises(errors.InvalidState):
        driver.guests("host-0001")


def test_the_default_file_is_named_after_cell_and_agent_with_special_characters_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    driver = FakeDriver(settings(tmp_path, fake_driver={"state_file": None}), "rack/1", "cell1")

    driver.start()
    driver.close()

    assert (tmp_path / "moorage-fake-cell1-rack%2F1.sqlite").is_file()


DEEP = '{"a": ' * 101 + "1" + "}" * 101


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"vcpus": 2**31}, "vcpus"),
        ({"memory_mb": 2**31}, "memory_mb"),
        ({"disk_gb": 2**31}, "disk_gb"),
        ({"pcpus": 2**31}, "pcpus"),
        ({"gpus": 1, "vgpus_per_gpu": 2**31}, "vgpus_per_gpu"),
        ({"nics": 1, "vfs_per_nic": 2**31}, "vfs_per_nic"),
        ({"nics": 1, "nic_bandwidth": 2**31}, "nic_bandwidth"),
        ({"numa_nodes": 1000}, "numa_nodes"),
        ({"gpus": 1000}, "gpus"),
        ({"nics": 1000}, "nics"),
        ({"hosts": 10**11}, "hosts"),
        ({"gpus": 500, "nics": 500}, "$.providers"),
        ({"gpus": 2, "vgpus_per_gpu": 2**31 - 1, "layout": "flat"}, "$.providers[0].inventories[...]"),
        ({"traits": [f"CUSTOM_{n}" for n in range(1025)]}, "$.providers[0].traits"),
        ({"nics": 1, "physnets": ["x" * 300]}, "$.providers[1].traits[0]"),
        ({"host_prefix": "x" * 252}, "$.hosts[0].service_host"),
        ({"gpus": 1, "host_prefix": "x" * 250}, "$.providers[1].name"),
        ({"attributes": [f"host-0002: {DEEP}"]}, "its values are nested more than 100 levels deep"),
    ],
)
def test_hosts_that_no_cell_would_take_are_refused_at_the_start(
    tmp_path: Path, options: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(errors.ConfigurationError, match=re.escape(wrong)):
        FakeDriver(settings(tmp_path, fake_driver=options), "agent1", "cell1")
