"""Hosts that hang, finish late, die and return, in a whole cloud of one process: one guest remains, or none."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.operations.cloud import NEVER, TroublesomeCloud
from support.operations.lost_patience import run_out

from compute.fake.guest_file import GuestFile
from compute.service import ComputeService
from harness.cloud import CloudSpec, RunningCloud, wait_until
from moorage import ids
from moorage.messages import (
    BuildInstances,
    DeleteInstance,
    GetResourceProvider,
    ListHosts,
    ListStrangersInCell,
    PutAllocations,
    ShowInstance,
)
from moorage.model import ConsumerAllocations, Flavor, Guest, Instance, ProviderAmounts, RequestSpec

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=2, memory_mb=4096, root_gb=20))
HOSTS = tuple(f"cell1-host-{number:04d}" for number in (1, 2, 3))
LATE, FINE = HOSTS[:2], HOSTS[2]


def plan(hosts: int = 3, build_timeout: float = 600.0, **fake_driver: Any) -> CloudSpec:
    """A small cloud in which nobody is waited for for long."""
    settings: Mapping[str, Mapping[str, Any]] = {
        "rpc": {"call_timeout": 3.0},
        "scheduler": {"host_down_after": 4.0},
        "conductor": {
            # Ended where a host is late (:func:`until_active`): a busy machine makes nobody impatient.
            "build_timeout": build_timeout,
            "delete_patience": 0.5,
            "report_interval": 0.2,
            "retry_backoff": 0.1,
        },
        "compute": {"report_interval": 0.2, "stop_timeout": 0.1},
        "fake_driver": fake_driver,
    }
    return CloudSpec(hosts=hosts, settings=settings)


def order(cloud: RunningCloud) -> str:
    uuid = ids.fresh()
    cloud.client("conductor").call(BuildInstances(request_spec=SPEC, instance_uuids=(uuid,), request_id=ids.fresh()))
    return uuid


def show(cloud: RunningCloud, uuid: str) -> Instance:
    return cloud.client("conductor").call(ShowInstance(instance_uuid=uuid))


def wait_for(cloud: RunningCloud, uuid: str, state: str) -> Instance:
    wait_until(lambda: show(cloud, uuid).state == state, f"the instance to be {state}")
    return show(cloud, uuid)


def guests(cloud: RunningCloud) -> list[Guest]:
    """Return the guests of all hosts, read directly from the agent's file."""
    file = GuestFile(cloud.folder / "agent-cell1.sqlite")
    file.open()
    try:
        return file.guests()
    finally:
        file.close()


def used(cloud: RunningCloud) -> dict[str, int]:
    """The VCPU that the store has in use on each host."""
    placement = cloud.client("placement")
    return {
        host.service_host: placement.call(GetResourceProvider(uuid=host.compute_node_uuid)).used["VCPU"]
        for host in cloud.client("scheduler").call(ListHosts())
    }


def burden(cloud: RunningCloud, name: str) -> None:
    """Let somebody else hold memory of a host, so that the scheduler prefers the others."""
    [node] = [host.compute_node_uuid for host in cloud.hosts() if host.service_host == name]
    wanted = ConsumerAllocations(
        allocations={node: ProviderAmounts(resources={"MEMORY_MB": 16384})},
        project_id="p",
        user_id="u",
        consumer_type="OTHER",
        consumer_generation=None,
    )
    cloud.client("placement").call(PutAllocations(request_id=ids.fresh(), consumer_uuid=ids.fresh(), wanted=wanted))


def strangers(cloud: RunningCloud) -> list[Guest]:
    """The guests that the cell has no record of."""
    [cell] = {host.cell_uuid for host in cloud.hosts()}
    return [found.guest for found in cloud.client(f"conductor.{cell}").call(ListStrangersInCell())]


def restart_agent(cloud: RunningCloud, hosts: int, **fake_driver: Any) -> None:
    """Let the agent begin another life, with hosts that behave as is said here."""
    cloud.stop_service("compute-cell1")
    conf = cloud.configuration(
        compute={"agent": "agent-cell1"},
        fake_driver={
            "hosts": hosts,
            "host_prefix": "cell1-host",
            "state_file": str(cloud.folder / "agent-cell1.sqlite"),
            **fake_driver,
        },
    )
    cloud.add("compute-cell1", ComputeService(conf, "cell1"))


def until_one_is_left(cloud: RunningCloud, instance: Instance) -> None:
    """Wait until the instance alone holds something, and its guest is the only one."""
    expected = {host: 2 if host == instance.host else 0 for host in used(cloud)}
    wait_until(lambda: [guest.host for guest in guests(cloud)] == [instance.host], "one guest to remain", 60)
    wait_until(lambda: used(cloud) == expected, "what the others held to be released")
    (guest,) = guests(cloud)
    assert (guest.instance_uuid, guest.claim_id) == (instance.uuid, instance.claim_id)


def until_active(cloud: RunningCloud, uuid: str) -> Instance:
    """Let the time be over of each late host on which a guest has been begun, until the instance is active."""

    def is_active() -> bool:
        begun = {guest.host for guest in guests(cloud) if guest.instance_uuid == uuid} & set(LATE)
        run_out(cloud.database, uuid, begun)
        return show(cloud, uuid).state == "active"

    wait_until(is_active, "the instance to be active", interval=0.1)
    return show(cloud, uuid)


def come_to_end(cloud: TroublesomeCloud) -> None:
    for host in LATE:
        cloud.drivers["cell1"].come_to_end(host)


def return_from_death(cloud: TroublesomeCloud) -> None:
    """Let the hosts that have died return, after they have been missed."""
    dead = {host for host in LATE if host not in cloud.drivers["cell1"].alive()}
    wait_until(lambda: not dead & {host.service_host for host in cloud.hosts() if host.up}, "the dead to be missed", 60)
    for host in dead:
        cloud.drivers["cell1"].die(host, 0.0)


def do_nothing(cloud: TroublesomeCloud) -> None:
    """Leave all as it is: what hangs can be cut short."""


@pytest.mark.parametrize(
    ("misbehaviour", "end"),
    [
        pytest.param({"late_hosts": ",".join(LATE), "late_seconds": NEVER}, come_to_end, id="late"),
        pytest.param({"hanging_hosts": ",".join(LATE)}, do_nothing, id="hanging"),
        pytest.param(
            # One that is dead before the next order comes has begun nothing; only its time tells that it is given up.
            {"dying_hosts": ",".join(LATE), "dead_seconds": NEVER, "build_timeout": 4.0},
            return_from_death,
            id="dying",
        ),
    ],
)
def test_of_a_host_that_does_not_report_in_time_nothing_remains(
    misbehaviour: Mapping[str, Any], end: Callable[[TroublesomeCloud], None]
) -> None:
    with TroublesomeCloud(plan(**misbehaviour)) as cloud:
        burden(cloud, FINE)
        ordered = [order(cloud) for _ in range(2)]
        instances = [until_active(cloud, uuid) for uuid in ordered]
        late = {attempt.host for instance in instances for attempt in instance.attempts} - {FINE}

        assert {instance.host for instance in instances} == {FINE}
        assert late
        end(cloud)
        expected = {host: 4 if host == FINE else 0 for host in HOSTS}
        wait_until(lambda: {guest.host for guest in guests(cloud)} == {FINE}, "the late guests to be gone", 60)
        wait_until(lambda: used(cloud) == expected, "what the late hosts held to be released")
        assert {guest.instance_uuid for guest in guests(cloud)} == {instance.uuid for instance in instances}
        assert len(guests(cloud)) == 2


def test_what_a_late_host_may_still_have_is_held_there_until_it_has_come_to_its_end() -> None:
    with TroublesomeCloud(plan(late_hosts=",".join(LATE), late_seconds=NEVER)) as cloud:
        burden(cloud, FINE)
        instance = until_active(cloud, order(cloud))
        late = [attempt.host for attempt in instance.attempts if attempt.host != FINE]

        held = used(cloud)
        assert all(held[guest.host] == 2 for guest in guests(cloud))
        assert late
        assert {guest.host for guest in guests(cloud)} == {FINE, *late}
        come_to_end(cloud)
        until_one_is_left(cloud, instance)


def test_a_stranger_guest_is_left_running_and_listed_and_its_host_returns() -> None:
    with RunningCloud(plan(hosts=2)) as cloud:
        restart_agent(cloud, 2, stranger_guests=3)
        wait_until(lambda: len(strangers(cloud)) == 3, "the strangers to be listed", 60)
        cloud.wait_for_hosts()
        found = guests(cloud)
        assert strangers(cloud) == found

        restart_agent(cloud, 2)
        wait_for(cloud, order(cloud), "active")
        assert strangers(cloud) == found
        assert [guest for guest in guests(cloud) if guest in found] == found


def test_a_guest_whose_instance_was_deleted_while_its_host_was_away_is_destroyed_when_it_returns() -> None:
    with RunningCloud(plan(hosts=1)) as cloud:
        instance = wait_for(cloud, order(cloud), "active")
        cloud.stop_service("compute-cell1")

        cloud.client("conductor").call(DeleteInstance(instance_uuid=instance.uuid, request_id=ids.fresh()))
        wait_for(cloud, instance.uuid, "deleted")
        assert used(cloud) == {instance.host: 2}
        assert len(guests(cloud)) == 1

        cloud.add("compute-cell1", cloud.compute("cell1", 1))
        wait_until(lambda: guests(cloud) == [], "the guest to be destroyed")
        wait_until(lambda: used(cloud) == {instance.host: 0}, "its amounts to be released")


def test_a_build_in_the_middle_of_which_the_agent_went_away_goes_on_when_it_is_back() -> None:
    with RunningCloud(plan(hosts=2)) as cloud:
        restart_agent(cloud, 2, hanging_hosts=",".join(HOSTS))
        cloud.wait_for_hosts()
        uuid = order(cloud)
        wait_until(lambda: bool(guests(cloud)), "a spawn to be under way", 60)

        restart_agent(cloud, 2)
        until_one_is_left(cloud, wait_for(cloud, uuid, "active"))
