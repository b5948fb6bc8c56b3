"""Heartbeats arrive whatever gates, provider trees and the schedulers' threads wait for."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import func, select

from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from compute.service import ComputeService
from conductor.schema import cell_operations
from harness.cloud import CloudSpec, RunningCloud, wait_until
from moorage import failpoints, ids
from moorage.messages import BuildInstances, CompareView, ShowInstance
from moorage.model import Flavor, HostReport, Inventory, RequestSpec
from placement_store.service import PlacementService
from scheduler.registry import hosts

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024, root_gb=1))
#: Of every server: fewer than there are builds, so that all of them wait.
THREADS = 2
BUILDS = 8
#: Seconds that a gate waits for the placement role.
CALL_TIMEOUT = 12.0
#: Seconds that heartbeats are looked at: so few that they are not let through by gates that have given up.
A_WHILE = 2.0


def plan() -> CloudSpec:
    return CloudSpec(
        hosts=3,
        placement_apart=True,
        settings={
            "rpc": {"threads": THREADS, "call_timeout": CALL_TIMEOUT},
            "conductor": {"report_interval": 0.2},
            "compute": {"report_interval": 0.2, "stop_timeout": 0.1},
            # One heartbeat in a sixth of that is recorded.
            "service": {"silent_after": 4.0},
        },
    )


def heartbeats_go_on(cloud: RunningCloud, seconds: float = CALL_TIMEOUT - A_WHILE) -> None:
    """Look at the hosts from now on, until what is seen cannot be from before."""
    begun = time.monotonic()

    def all_heard() -> bool:
        elapsed = time.monotonic() - begun
        # From the registry itself: the schedulers' threads may be what is busy.
        states = cloud.database.read(hosts.states)
        assert all(state.up for state in states)
        return elapsed > A_WHILE and max(state.heartbeat_age for state in states) < elapsed / 2

    wait_until(all_heard, "heartbeats of all hosts", seconds)


def test_hosts_stay_up_while_the_placement_role_is_away_and_gates_pile_up() -> None:
    with RunningCloud(plan()) as cloud:
        conductor = cloud.client("conductor")
        first, *uuids = (ids.fresh() for _ in range(1 + BUILDS))
        # The super conductor learns of the cell from the placement role.
        conductor.call(BuildInstances(request_spec=SPEC, instance_uuids=(first,), request_id=ids.fresh()))
        wait_until(lambda: conductor.call(ShowInstance(instance_uuid=first)).state == "active", "the first build", 60)
        cloud.stop_service("placement")
        conductor.call(BuildInstances(request_spec=SPEC, instance_uuids=tuple(uuids), request_id=ids.fresh()))
        ordered = select(func.count()).where(cell_operations.c.step == "wait", cell_operations.c.state == "pending")
        wait_until(
            lambda: cloud.database.read(lambda connection: connection.scalar(ordered)) == BUILDS, "the orders", 60
        )

        heartbeats_go_on(cloud)

        cloud.add("placement", PlacementService(cloud.configuration(), "placement"))
        # Whoever waits at a gate now is answered before the services are stopped.
        wait_until(
            lambda: all(conductor.call(ShowInstance(instance_uuid=uuid)).state == "active" for uuid in uuids),
            "all builds to go on",
            120,
        )


class Growing(FakeDriver):
    """Has more disk from one report to the next, once it is told to."""

    grows = False

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        """As ever, or with more disk."""
        super().update_provider_tree(host, tree)
        if self.grows:
            tree.set_inventory(host.nodename, "DISK_GB", Inventory(total=5000))


def test_hosts_stay_up_while_what_they_have_cannot_be_reported() -> None:
    with RunningCloud(plan()) as cloud:
        cloud.stop_service("compute-cell1")
        conf = cloud.configuration(
            compute={"agent": "agent-cell1"},
            fake_driver={
                "hosts": 3,
                "host_prefix": "cell1-host",
                "state_file": str(cloud.folder / "agent-cell1.sqlite"),
            },
        )
        driver = Growing(conf, "agent-cell1", "cell1")
        cloud.add("compute-cell1", ComputeService(conf, "cell1", driver))
        # Those of the agent's new life: it begins with what the placement role has of them.
        heartbeats_go_on(cloud, 120.0)
        cloud.stop_service("placement")
        driver.grows = True

        heartbeats_go_on(cloud)

        cloud.add("placement", PlacementService(cloud.configuration(), "placement"))


def test_hosts_stay_up_while_every_thread_of_the_scheduler_is_busy() -> None:
    go_on = threading.Event()

    def hang(name: str) -> None:
        if name == "serve.scheduler.compare_view.begin":
            assert go_on.wait(60)

    with RunningCloud(plan()) as cloud, failpoints.observed(hang), ThreadPoolExecutor(BUILDS) as callers:
        scheduler = cloud.client("scheduler")
        try:
            asked = [callers.submit(scheduler.call, CompareView()) for _ in range(BUILDS)]
            heartbeats_go_on(cloud)
        finally:
            go_on.set()
        for each in asked:
            each.result()
