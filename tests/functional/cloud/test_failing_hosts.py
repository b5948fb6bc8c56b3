"""Test that a host on which builds fail is avoided until builds on it have succeeded, in a whole cloud."""

from typing import Any

from support.operations.cloud import TroublesomeCloud
from support.operations.instances import built

from harness.cloud import CloudSpec
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import BuildInstances
from moorage.model import Flavor, Instance, RequestSpec

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512))


def build(cloud: TroublesomeCloud, host: str | None = None, *, fails: bool = False) -> Instance:
    """Build a server, on this host if one is named; return it when the build has ended."""
    uuid = ids.fresh()
    spec = RequestSpec(project_id="p", user_id="u", flavor=SPEC.flavor, force_hosts=(host,) if host else ())
    if fails and host:
        cloud.faults.failing.add((uuid, host))
    message = BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,))
    cloud.client("conductor").call(message)
    return built(cloud, uuid)


def failed(cloud: TroublesomeCloud) -> dict[str, float]:
    return {host.service_host: host.failed_builds for host in cloud.hosts()}


def test_a_host_that_fails_a_build_is_avoided_until_builds_on_it_have_succeeded() -> None:
    settings: dict[str, dict[str, Any]] = {
        "scheduler": {"enabled_weighers": ["build_failure"], "view_max_age": 0.0},
        "conductor": {"report_interval": 0.1, "failed_build_half_life": 1e6},
    }
    with TroublesomeCloud(CloudSpec(hosts=3, settings=settings)) as cloud:
        broken, *others = sorted(failed(cloud))
        assert build(cloud, broken, fails=True).state == "error"
        wait_until(lambda: failed(cloud) == {broken: 1.0, others[0]: 0.0, others[1]: 0.0}, "the failure to be reported")
        built = [build(cloud) for _ in range(6)]
        assert all(instance.host in others and len(instance.attempts) == 1 for instance in built)

        for _ in range(2):
            assert build(cloud, broken).state == "active"
        wait_until(lambda: failed(cloud)[broken] == 0.0, "the host to be as good as the others")
        for host in others:
            build(cloud, host, fails=True)
        wait_until(lambda: failed(cloud) == {broken: 0.0, others[0]: 1.0, others[1]: 1.0}, "the others to have failed")
        assert build(cloud).host == broken
        assert sum(host.instances for host in cloud.hosts()) == 9
        assert {host.service_host: host.instances for host in cloud.hosts()}[broken] == 3
