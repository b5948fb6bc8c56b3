"""Real processes send the spans of a request to a collector, which may be unreachable or silent."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from support.processes.building_client import build
from support.processes.collector import Collector
from support.processes.forked_cloud import ForkedCloud
from support.processes.stopwatch import Stopwatch

from harness.waiting import wait_until
from moorage import ids
from moorage.messages import BuildInstances, ShowInstance
from moorage.model import Flavor, RequestSpec


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """The endpoint of a collector that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"


def test_a_collector_gets_one_trace_of_a_build_from_all_services(
    migrated_url: str, rabbitmq_url: str, collector: Collector
) -> None:
    settings = {"tracing": {"otlp_endpoint": collector.endpoint}}
    with ForkedCloud(rabbitmq_url, migrated_url, settings) as cloud:
        cloud.start_services(hosts=2)
        client, request_id, uuid = cloud.client("conductor"), ids.fresh(), ids.fresh()
        spec = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512))
        client.call(BuildInstances(request_id=request_id, request_spec=spec, instance_uuids=(uuid,)))
        wait_until(lambda: client.call(ShowInstance(instance_uuid=uuid)).state == "active", "the build")
        # When a service stops, it sends the spans that it has not sent yet.
        assert {cloud.stop(name) for name in list(cloud.processes)} == {0}
    spans = collector.spans[UUID(request_id).bytes]
    assert {service for service, *_ in spans} == {"moorage-scheduler", "moorage-conductor", "moorage-compute"}
    assert {("moorage-scheduler", "claim"), ("moorage-compute", "spawn")} <= {
        (service, name) for service, name, *_ in spans
    }
    known = {span_id for _, _, span_id, _ in spans}
    [first] = [name for _, name, _, parent in spans if parent not in known]
    assert first == "conductor build_instances"
    assert list(collector.spans) == [UUID(request_id).bytes]


@pytest.mark.parametrize("fault", ["unreachable", "silent"])
def test_a_collector_that_does_not_answer_delays_neither_a_build_nor_a_stop(
    migrated_url: str, rabbitmq_url: str, silent: str, fault: str
) -> None:
    endpoint = silent if fault == "silent" else "http://127.0.0.1:9/v1/traces"
    settings = {"tracing": {"otlp_endpoint": endpoint}}
    with ForkedCloud(rabbitmq_url, migrated_url, settings) as cloud:
        cloud.start_services(hosts=2)
        for _ in range(3):
            build(cloud.client("conductor"))
        for name in list(cloud.processes):
            watch = Stopwatch()
            assert cloud.stop(name) == 0, cloud.log(name)[-2000:]
            assert watch.seconds < 12
        lost = [line for line in cloud.log("conductor").splitlines() if "ERROR opentelemetry" in line]
        assert lost


#: If ``sys.modules`` has null for a module, Python treats the module as not installed.
_WITHOUT_SDK = """
import sys
sys.modules["opentelemetry.sdk"] = None
from moorage.cli.shell import main
sys.exit(main(sys.argv[1:]))
"""


def test_if_the_library_is_missing_the_start_fails_with_the_name_of_the_extra(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(
        "[DEFAULT]\ntransport_url = inproc://x\n[database]\nconnection = sqlite:///x\n"
        "[tracing]\notlp_endpoint = http://collector:4318/v1/traces\n"
    )
    run = [sys.executable, "-c", _WITHOUT_SDK, "--config-file", str(file), "scheduler"]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "pip install 'moorage[tracing]'" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
