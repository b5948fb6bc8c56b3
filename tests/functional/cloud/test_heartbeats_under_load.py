"""Test that heartbeats arrive while gates, provider trees and the threads of a scheduler wait."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import func, select
from support.operations.instances import becomes, build, order, restart_agent

from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from conductor.schema import cell_operations
from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import failpoints
from moorage.messages import CompareView
from moorage.model import Flavor, HostReport, Inventory, RequestSpec
from placement_store.service import PlacementService
from scheduler.registry import hosts

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024, root_gb=1))
#: Threads of each server: fewer than builds, so that all threads wait.
THREADS = 2
BUILDS = 8
#: Seconds that a gate waits for the placement role.
CALL_TIMEOUT = 12.0
#: Seconds of heartbeats that are checked: so few that no gate has timed out meanwhile.
A_WHILE = 2.0


def plan() -> CloudSpec:
    return CloudSpec(
        hosts=3,
        placement_apart=True,
        settings={
            "rpc": {"threads": THREADS, "call_timeout": CALL_TIMEOUT},
            "conductor": {"report_interval": 0.2},
            "compute": {"report_interval": 0.2, "stop_timeout": 0.1},
            # A heartbeat is recorded once in a sixth of that time.
            "service": {"silent_after": 4.0},
        },
    )


def heartbeats_go_on(cloud: RunningCloud, seconds: float = CALL_TIMEOUT - A_WHILE) -> None:
    """Check the hosts until all of their heartbeats are from after the call."""
    begun = time.monotonic()

    def all_recent() -> bool:
        elapsed = time.monotonic() - begun
        # Read from the database: the threads of the scheduler may be busy.
        states = cloud.database.read(hosts.states)
        assert all(state.up for state in states)
        return elapsed > A_WHILE and max(state.heartbeat_age for state in states) < elapsed / 2

    wait_until(all_recent, "heartbeats of all hosts", seconds)


def test_hosts_stay_up_while_many_gates_wait_for_the_placement_role() -> None:
    with RunningCloud(plan()) as cloud:
        # The super conductor gets the list of cells from the placement role.
        assert build(cloud, SPEC).state == "active"
        cloud.stop_service("placement")
        uuids = order(cloud, SPEC, BUILDS)
        ordered = select(func.count()).where(cell_operations.c.step == "wait", cell_operations.c.state == "pending")
        wait_until(
            lambda: cloud.database.read(lambda connection: connection.scalar(ordered)) == BUILDS, "the orders", 60
        )

        heartbeats_go_on(cloud)

        cloud.add("placement", PlacementService(cloud.configuration(), "placement"))
        # The calls that wait at a gate must be answered before the services are stopped.
        for uuid in uuids:
            becomes(cloud, uuid, "active")


class GrowingDriver(FakeDriver):
    """Has more disk as soon as a test sets ``grows``."""

    grows = False

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        super().update_provider_tree(host, tree)
        if self.grows:
            tree.set_inventory(host.nodename, "DISK_GB", Inventory(total=5000))


def test_hosts_stay_up_while_their_provider_trees_cannot_be_reported() -> None:
    with RunningCloud(plan()) as cloud:
        driver = restart_agent(cloud, 3, GrowingDriver)
        # The restarted agent first reads its provider trees from the placement role.
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
            calls = [callers.submit(scheduler.call, CompareView()) for _ in range(BUILDS)]
            heartbeats_go_on(cloud)
        finally:
            go_on.set()
        for call in calls:
            call.result()
