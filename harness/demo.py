"""The run of `moorage demo`: instances built one by one on fake hosts, some with failures, and an audit at the end."""

import time
from collections.abc import Iterator

from harness.audit import Verdict, judge
from harness.cloud import RunningCloud
from moorage import ids
from moorage.cli import lists
from moorage.messages import BuildInstances, ListInstances, ShowInstance
from moorage.model import Flavor, Instance, RequestSpec

#: Divides a fake host of the default size (16 VCPU, 32 GiB, 500 GB) into eight.
FLAVOR = Flavor(name="demo", vcpus=2, memory_mb=4096, root_gb=20)


def build_all(cloud: RunningCloud, instances: int, seconds: float = 120.0) -> Iterator[Instance]:
    """Build instances one at a time, so that the same seed gives the same placements; yield each when it is done.

    :raises TimeoutError: one instance is still being built after ``seconds``.
    """
    spec = RequestSpec(project_id="demo", user_id="demo", flavor=FLAVOR)
    conductor = cloud.client("conductor")
    for number in range(instances):
        request_id = ids.derived("demo", cloud.plan.seed, "build", number)
        uuid = ids.derived("demo", cloud.plan.seed, "instance", number)
        conductor.call(BuildInstances(request_spec=spec, instance_uuids=(uuid,), request_id=request_id))
        end = time.monotonic() + seconds
        while (instance := conductor.call(ShowInstance(instance_uuid=uuid))).state == "building":
            if time.monotonic() > end:
                raise TimeoutError(f"instance {uuid} is still being built after {seconds:g} s")
            time.sleep(0.005)
        yield instance


def audit(cloud: RunningCloud) -> Verdict:
    """Compare the store's allocations with the active instances."""
    instances = lists.instances(cloud.client("conductor"), ListInstances())
    return judge(cloud.database, [instance.uuid for instance in instances if instance.state == "active"])
