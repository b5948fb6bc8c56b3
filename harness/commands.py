"""The command `moorage demo`: instances built one by one on fake hosts, some with failures, and an audit at the end."""

import argparse
import contextlib
import logging
import sys
import time
from collections.abc import Iterator

from cliff.lister import Lister

from harness.arguments import MOST_THREADS, OnServers, count_option, number_between
from harness.audit import judge
from harness.cloud import CloudSpec, RunningCloud
from moorage import ids
from moorage.bus.bus import Client
from moorage.cli import lists
from moorage.cli.arguments import argument
from moorage.cli.command import Table, shown
from moorage.cli.progress import bars
from moorage.messages import BuildInstances, ListInstances, ShowInstance
from moorage.model import Flavor, Instance, RequestSpec

#: Divides a fake host of the default size (16 VCPU, 32 GiB, 500 GB) into eight.
FLAVOR = Flavor(name="demo", vcpus=2, memory_mb=4096, root_gb=20)
#: Seconds within which each build must end.
_LONGEST_BUILD = 120.0


@contextlib.contextmanager
def _failures_in_the_table_alone() -> Iterator[None]:
    """Keep intended spawn failures out of the log: the table shows them."""
    agents = logging.getLogger("compute.agent")
    before = agents.level
    agents.setLevel(logging.ERROR)
    try:
        yield
    finally:
        agents.setLevel(before)


class Demo(OnServers, Lister):
    """Run a demo: start a cloud of fake hosts, build instances with some failures, and audit the store.

    The same seed gives the same placements. The exit status is 1 if the audit finds anything.
    """

    arguments = (
        count_option("--hosts", 20, "Number of hosts"),
        count_option("--cells", 2, "Number of cells", most=MOST_THREADS),
        count_option("--instances", 40, "Number of instances"),
        argument(
            "--fail-rate",
            type=number_between(0, 1),
            default=0.2,
            help="Fraction of spawns that fail, from 0 to 1 (default: %(default)s)",
        ),
        argument("--seed", type=int, default=0, help="Random seed (default: %(default)s)"),
    )

    def take_action(self, arguments: argparse.Namespace) -> Table:
        """Build, audit, and return a row for each instance."""
        with self.servers(arguments) as servers:
            plan = CloudSpec(
                hosts=arguments.hosts,
                cells=arguments.cells,
                seed=arguments.seed,
                transport_url=servers.transport_url,
                database_connection=servers.database_url,
                settings={
                    # A decision uses the present state, and no weigher uses periodic reports, so that placements depend
                    # only on the seed.
                    "scheduler": {"view_max_age": 0.0, "enabled_weighers": ["ram", "cpu", "disk"]},
                    "fake_driver": {"seed": arguments.seed, "fail_rate": arguments.fail_rate},
                },
            )
            with (
                _failures_in_the_table_alone() if arguments.fail_rate else contextlib.nullcontext(),
                RunningCloud(plan) as cloud,
                bars() as progress,
            ):
                building = progress.add_task("building", total=arguments.instances)
                rows = []
                for instance in build_all(cloud, arguments.instances):
                    attempts = [attempt.host for attempt in instance.attempts if attempt.state != "skipped"]
                    rows.append(
                        (instance.uuid, instance.state, instance.cell, instance.host, attempts, instance.reason)
                    )
                    progress.advance(building)
                instances = lists.instances(cloud.client("conductor"), ListInstances())
                verdict = judge(cloud.database, [one.uuid for one in instances if one.state == "active"])
        self.failed = not verdict.clean
        sys.stderr.write(f"{verdict}\n")
        return ("instance", "state", "cell", "host", "attempts", "reason"), [shown(row) for row in rows]


def build_all(cloud: RunningCloud, instances: int) -> Iterator[Instance]:
    """Build instances one at a time, so that the same seed gives the same placements; yield each when it has ended.

    :raises TimeoutError: an instance is still being built after two minutes.
    """
    spec = RequestSpec(project_id="demo", user_id="demo", flavor=FLAVOR)
    conductor = cloud.client("conductor")
    for number in range(instances):
        request_id = ids.derived("demo", cloud.plan.seed, "build", number)
        uuid = ids.derived("demo", cloud.plan.seed, "instance", number)
        order = BuildInstances(request_spec=spec, instance_uuids=(uuid,), request_id=request_id)
        try:
            instance = _built(conductor, order)
        except (KeyboardInterrupt, SystemExit):  # SIGTERM and SIGHUP exit
            # The agents stop before their conductors. A conductor that has sent an order to build meanwhile would wait
            # for the answer for half a minute before it stops. A repeated order builds nothing more.
            _built(conductor, order)
            raise
        yield instance


def _built(conductor: Client, order: BuildInstances) -> Instance:
    """Order an instance, wait until it is not being built any more, and return it.

    :raises TimeoutError: it is still being built after two minutes.
    """
    [uuid] = order.instance_uuids
    conductor.call(order)
    end = time.monotonic() + _LONGEST_BUILD
    while (instance := conductor.call(ShowInstance(instance_uuid=uuid))).state == "building":
        if time.monotonic() > end:
            raise TimeoutError(f"instance {uuid} is still being built after {_LONGEST_BUILD:g} s")
        time.sleep(0.005)
    return instance
