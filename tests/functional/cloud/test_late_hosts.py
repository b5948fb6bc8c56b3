"""Test hosts that hang, finish late, die and return, in a whole cloud of one process: one guest remains, or none."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.operations.cloud import NEVER, TroublesomeCloud
from support.operations.instances import becomes, build, guests, hold, order, restart_agent, show, used
from support.operations.lost_patience import run_out

from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import DeleteInstance, ListStrangersInCell
from moorage.model import Guest, Instance

HOSTS = tuple(f"cell1-host-{number:04d}" for number in (1, 2, 3))
LATE, FINE = HOSTS[:2], HOSTS[2]


def plan(hosts: int = 3, build_timeout: float = 600.0, **fake_driver: Any) -> CloudSpec:
    """Return a small cloud with short time-outs."""
    settings: Mapping[str, Mapping[str, Any]] = {
        "rpc": {"call_timeout": 3.0},
        "scheduler": {"host_down_after": 4.0},
        "conductor": {
            # It ends early only where a host is late (:func:`until_active`), and not because the machine is busy.
            "build_timeout": build_timeout,
            "delete_patience": 0.5,
            "report_interval": 0.2,
            "retry_backoff": 0.1,
        },
        "compute": {"report_interval": 0.2, "stop_timeout": 0.1},
        "fake_driver": fake_driver,
    }
    return CloudSpec(hosts=hosts, settings=settings)


def make_unattractive(cloud: RunningCloud, name: str) -> None:
    """Let another consumer hold memory of a host, so that the scheduler prefers the other hosts."""
    [node] = [host.compute_node_uuid for host in cloud.hosts() if host.service_host == name]
    hold(cloud, node, MEMORY_MB=16384)


def unknown_guests(cloud: RunningCloud) -> list[Guest]:
    """Return the guests without a record in the cell."""
    [cell] = {host.cell_uuid for host in cloud.hosts()}
    return [found.guest for found in cloud.client(f"conductor.{cell}").call(ListStrangersInCell())]


def until_one_is_left(cloud: RunningCloud, instance: Instance) -> None:
    """Wait until only this instance holds something, and its guest is the only one."""
    expected = {host: 2 if host == instance.host else 0 for host in used(cloud)}
    wait_until(lambda: [guest.host for guest in guests(cloud)] == [instance.host], "one guest to remain", 60)
    wait_until(lambda: used(cloud) == expected, "what the others held to be released")
    (guest,) = guests(cloud)
    assert (guest.instance_uuid, guest.claim_id) == (instance.uuid, instance.claim_id)


def until_active(cloud: RunningCloud, uuid: str) -> Instance:
    """Let attempts on late hosts with a guest time out until the instance is active; return the instance."""

    def is_active() -> bool:
        late = {guest.host for guest in guests(cloud) if guest.instance_uuid == uuid} & set(LATE)
        run_out(cloud.database, uuid, late)
        return show(cloud, uuid).state == "active"

    wait_until(is_active, "the instance to be active", interval=0.1)
    return show(cloud, uuid)


def come_to_end(cloud: TroublesomeCloud) -> None:
    for host in LATE:
        cloud.drivers["cell1"].come_to_end(host)


def return_from_death(cloud: TroublesomeCloud) -> None:
    """Let the dead hosts return after they count as down."""
    dead = {host for host in LATE if host not in cloud.drivers["cell1"].alive()}
    wait_until(
        lambda: not dead & {host.service_host for host in cloud.hosts() if host.up}, "the dead hosts to be down", 60
    )
    for host in dead:
        cloud.drivers["cell1"].die(host, 0.0)


def do_nothing(cloud: TroublesomeCloud) -> None:
    """Do nothing: hanging spawns can be aborted."""


@pytest.mark.parametrize(
    ("misbehaviour", "end"),
    [
        pytest.param({"late_hosts": ",".join(LATE), "late_seconds": NEVER}, come_to_end, id="late"),
        pytest.param({"hanging_hosts": ",".join(LATE)}, do_nothing, id="hanging"),
        pytest.param(
            # A host that dies before the order arrives has no guest; then only the time-out ends the attempt.
            {"dying_hosts": ",".join(LATE), "dead_seconds": NEVER, "build_timeout": 4.0},
            return_from_death,
            id="dying",
        ),
    ],
)
def test_nothing_is_left_on_a_host_that_does_not_report_in_time(
    misbehaviour: Mapping[str, Any], end: Callable[[TroublesomeCloud], None]
) -> None:
    with TroublesomeCloud(plan(**misbehaviour)) as cloud:
        make_unattractive(cloud, FINE)
        uuids = [*order(cloud), *order(cloud)]
        instances = [until_active(cloud, uuid) for uuid in uuids]
        late = {attempt.host for instance in instances for attempt in instance.attempts} - {FINE}

        assert {instance.host for instance in instances} == {FINE}
        assert late
        end(cloud)
        expected = {host: 4 if host == FINE else 0 for host in HOSTS}
        wait_until(lambda: {guest.host for guest in guests(cloud)} == {FINE}, "the late guests to be gone", 60)
        wait_until(lambda: used(cloud) == expected, "what the late hosts held to be released")
        assert {guest.instance_uuid for guest in guests(cloud)} == {instance.uuid for instance in instances}
        assert len(guests(cloud)) == 2


def test_a_late_host_holds_a_residue_until_its_spawn_has_ended() -> None:
    with TroublesomeCloud(plan(late_hosts=",".join(LATE), late_seconds=NEVER)) as cloud:
        make_unattractive(cloud, FINE)
        instance = until_active(cloud, *order(cloud))
        late = [attempt.host for attempt in instance.attempts if attempt.host != FINE]

        held = used(cloud)
        assert all(held[guest.host] == 2 for guest in guests(cloud))
        assert late
        assert {guest.host for guest in guests(cloud)} == {FINE, *late}
        come_to_end(cloud)
        until_one_is_left(cloud, instance)


def test_an_unknown_guest_is_left_running_and_listed_and_its_host_returns() -> None:
    with RunningCloud(plan(hosts=2)) as cloud:
        restart_agent(cloud, 2, stranger_guests=3)
        wait_until(lambda: len(unknown_guests(cloud)) == 3, "the unknown guests to be listed", 60)
        cloud.wait_for_hosts()
        found = guests(cloud)
        assert unknown_guests(cloud) == found

        restart_agent(cloud, 2)
        assert build(cloud).state == "active"
        assert unknown_guests(cloud) == found
        assert [guest for guest in guests(cloud) if guest in found] == found


def test_a_guest_whose_instance_was_deleted_while_its_host_was_away_is_destroyed_when_it_returns() -> None:
    with RunningCloud(plan(hosts=1)) as cloud:
        instance = build(cloud)
        cloud.stop_service("compute-cell1")

        cloud.client("conductor").call(DeleteInstance(instance_uuid=instance.uuid, request_id=ids.fresh()))
        becomes(cloud, instance.uuid, "deleted")
        assert used(cloud) == {instance.host: 2}
        assert len(guests(cloud)) == 1

        cloud.add("compute-cell1", cloud.compute("cell1", 1))
        wait_until(lambda: guests(cloud) == [], "the guest to be destroyed")
        wait_until(lambda: used(cloud) == {instance.host: 0}, "its amounts to be released")


def test_a_build_that_a_restart_of_the_agent_interrupts_ends_on_one_host() -> None:
    with RunningCloud(plan(hosts=2)) as cloud:
        restart_agent(cloud, 2, hanging_hosts=",".join(HOSTS))
        cloud.wait_for_hosts()
        [uuid] = order(cloud)
        wait_until(lambda: bool(guests(cloud)), "a spawn to be under way", 60)

        restart_agent(cloud, 2)
        until_one_is_left(cloud, becomes(cloud, uuid, "active"))
