"""A cloud of fake computes with the plug-ins of two packages, run in the environment in which they are installed.

It prints one JSON document with the answer to each request.
"""

import json
import sys
from typing import Any

from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.messages import AddAggregateHost, CreateHostAggregate, SelectDestinations, ShowPolicy, wire
from moorage.model import Flavor, RequestSpec
from scheduler.service import SchedulerService

_FILTERS = ["compute", "leaky_filter", "rack", "resources"]
_WEIGHERS = ["leaky_weigher", "rack_power"]


def request(hints: dict[str, str], extra_specs: dict[str, str]) -> SelectDestinations:
    flavor = Flavor(vcpus=1, memory_mb=64, extra_specs=extra_specs)
    return SelectDestinations(
        request_id=ids.fresh(),
        request_spec=RequestSpec(project_id="p", user_id="u", flavor=flavor, scheduler_hints=hints),
        instance_uuids=(ids.fresh(),),
        num_alternates=0,
        explain=True,
    )


def answered(cloud: RunningCloud, hints: dict[str, str] | None = None, **extra_specs: str) -> dict[str, Any]:
    specs = {key.replace("__", ":"): value for key, value in extra_specs.items()}
    try:
        [[claimed]] = cloud.client("scheduler", timeout=60.0).call(request(hints or {}, specs))
    except errors.MoorageError as fault:
        return {"error": type(fault).__name__, "text": str(fault), "plugin": getattr(fault, "name", None)}
    assert claimed.explanation is not None
    weighers = [score.weigher for score in claimed.explanation.top_hosts[0].scores]
    skipped = claimed.explanation.skipped_plugins
    return {"host": claimed.service_host, "weighers": weighers, "skipped": skipped}


def main() -> None:
    scheduler = {
        "enabled_filters": _FILTERS,
        "enabled_weighers": _WEIGHERS,
        "enabled_request_filters": ["extra_specs", "rack_tier"],
        "view_max_age": 0.0,
    }
    with RunningCloud(CloudSpec(hosts=3, settings={"scheduler": scheduler})) as cloud:
        powerful = sorted(host.service_host for host in cloud.hosts())[1]
        client = cloud.client("scheduler", timeout=60.0)
        client.call(CreateHostAggregate(request_id=ids.fresh(), name="r1", metadata={"rack_power_budget": "9000"}))
        client.call(AddAggregateHost(request_id=ids.fresh(), aggregate="r1", service_host=powerful))
        wait_until(lambda: answered(cloud).get("host") == powerful, "the host with power to be preferred")
        answers = {
            "powerful": powerful,
            "plain": answered(cloud),
            "rack": answered(cloud, {"rack": "r1"}),
            "no rack": answered(cloud, {"rack": ","}),
            "tin": answered(cloud, rack__tier="tin"),
            "leak": answered(cloud, {"leak": "yes"}),
            "drip": answered(cloud, {"drip": "yes"}),
            "afterwards": answered(cloud),
        }
        cloud.stop_service("scheduler1")
        skipping = cloud.configuration(scheduler={"broken_plugin": "skip"})
        cloud.add("scheduler2", SchedulerService(skipping, "scheduler2"))
        answers["skip"] = {
            "leak": answered(cloud, {"leak": "yes"}),
            "drip": answered(cloud, {"drip": "yes"}),
            "both and another rack": answered(cloud, {"leak": "yes", "drip": "yes", "rack": "r1"}),
            "plain": answered(cloud),
            "policy": wire.encode(client.call(ShowPolicy())),
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
