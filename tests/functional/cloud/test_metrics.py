"""Test the metrics of a cloud in one process after builds, refusals, alternates and deletions."""

from collections.abc import Iterator, Set
from pathlib import Path

import pytest
from support.moorage.counts import Counts
from support.operations.instances import SPEC, build, built, order

from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import errors, ids, metrics
from moorage.db.database import Database
from moorage.messages import DeleteInstance, SelectDestinations
from moorage.metrics import GaugeSample
from moorage.model import Flavor, RequestSpec
from moorage.service.readiness import Observed, Readiness

TOO_LARGE = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=2000, memory_mb=1))


def selecting(spec: RequestSpec) -> SelectDestinations:
    uuids = (ids.fresh(),)
    return SelectDestinations(request_id=ids.fresh(), request_spec=spec, instance_uuids=uuids, num_alternates=0)


def sampled(service: object) -> list[GaugeSample]:
    assert isinstance(service, Observed)
    return [sample for read in service.samplers().values() for sample in read()]


@pytest.fixture(scope="module")
def cloud() -> Iterator[RunningCloud]:
    with RunningCloud(CloudSpec(hosts=3)) as running:
        yield running


def test_builds_are_counted_in_each_service(cloud: RunningCloud) -> None:
    counts = Counts()
    for _ in range(3):
        assert build(cloud).state == "active"
    # An instance is active before the message about it is answered and counted.
    wait_until(lambda: counts.of("moorage_rpc_requests_total", method="build_finished") == 3, "the last message")

    assert counts.by("result", "moorage_decisions_total") == {"ok": 3}
    assert counts.of("moorage_decision_seconds_count") == 3
    assert counts.of("moorage_claims_total") == 3
    assert counts.of("moorage_claim_tries_total") == 3
    assert counts.of("moorage_claim_conflicts_total") == 0
    calls = counts.by("method", "moorage_rpc_requests_total", result="ok")
    builds = ("select_destinations", "build_instance", "accept_claim", "build_finished")
    # The first gate is called twice: by the agent in the cell, and by the cell in the placement role.
    assert {method: calls[method] for method in builds} == {
        "select_destinations": 3,
        "build_instance": 3,
        "accept_claim": 6,
        "build_finished": 3,
    }
    assert counts.of("moorage_rpc_requests_total", topic="conductor.cell", method="build_instances") == 3
    assert counts.of("moorage_rpc_seconds_count", method="select_destinations") == 3
    stages = counts.by("stage", "moorage_decision_stage_seconds_count")
    assert (stages["plan"], stages["claim"]) == (3, 3)
    assert counts.by("outcome", "moorage_operation_steps_total", kind="build", step="select") == {"next": 3}
    assert counts.of("moorage_operation_step_seconds_count", kind="build", step="select") == 3
    assert counts.of("moorage_batch_size_sum", kind="decisions") == 3
    wait_until(lambda: counts.of("moorage_rpc_messages_in_progress", topic="compute") == 0, "the agent to be idle")


def test_a_refusal_is_counted_by_its_code_and_claims_nothing(cloud: RunningCloud) -> None:
    counts = Counts()
    with pytest.raises(errors.NoValidHost):
        cloud.client("scheduler").call(selecting(TOO_LARGE))

    code = errors.NoValidHost.code
    assert counts.by("result", "moorage_decisions_total") == {code: 1}
    assert counts.by("result", "moorage_rpc_requests_total", method="select_destinations") == {code: 1}
    assert counts.of("moorage_claims_total") == 0
    assert counts.of("moorage_decision_stage_seconds_count", stage="catch_up") == 1


def test_plugins_are_timed_by_their_names(cloud: RunningCloud) -> None:
    # No other test sends this request: the evaluation of a repeated request is reused.
    spec = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512))
    counts = Counts()
    cloud.client("scheduler").call(selecting(spec))

    seen = counts.by("plugin", "moorage_plugin_seconds_count", kind="filter")
    assert {"compute", "resources"} <= seen.keys()
    assert "ram" in counts.by("plugin", "moorage_plugin_seconds_count", kind="weigher")


def test_alternates_and_failed_operations_are_counted() -> None:
    with RunningCloud(CloudSpec(hosts=3, settings={"fake_driver": {"fail_rate": 1.0}})) as cloud:
        counts = Counts()
        instance = build(cloud)
        assert instance.state == "error"
        assert len(instance.attempts) == 3
        assert counts.by("result", "moorage_alternates_total") == {"claimed": 2}
        wait_until(
            lambda: counts.of("moorage_operation_steps_total", kind="build", outcome="failed"), "the end of the build"
        )


def test_the_gauges_of_a_scheduler_describe_its_view(cloud: RunningCloud) -> None:
    cloud.client("scheduler").call(selecting(SPEC))  # the view follows the store at each decision
    found = {(sample.gauge, sample.labels): sample.value for sample in sampled(cloud.services["scheduler1"])}
    assert found[metrics.VIEW_HOSTS, ("up",)] == 3
    assert found[metrics.VIEW_HOSTS, ("down",)] == 0
    assert 0 <= found[metrics.VIEW_AGE, ()] < 60
    assert found[metrics.DECISIONS_IN_PROGRESS, ()] == 0


def test_the_gauges_of_a_conductor_describe_the_operations_under_way() -> None:
    with RunningCloud(CloudSpec(hosts=1, settings={"fake_driver": {"spawn_seconds": 3.0}})) as cloud:
        cell = cloud.services["conductor-cell1"]
        [uuid] = order(cloud)
        wait_until(lambda: sampled(cell), "an operation of the cell")
        found = {sample.gauge: (sample.labels, sample.value) for sample in sampled(cell)}
        assert found[metrics.OPERATIONS][0][0] == "build"
        assert found[metrics.OPERATIONS][1] == 1
        assert found[metrics.OPERATIONS_FAILING][1] == 0
        assert 0 <= found[metrics.OPERATION_AGE][1] < 60
        built(cloud, uuid)
        wait_until(lambda: not sampled(cell), "the end of the operation")


def test_all_services_are_ready_until_the_placement_role_stops_and_then_the_conductors_are_not() -> None:
    spec = CloudSpec(hosts=1, placement_apart=True, settings={"service": {"report_interval": 0.2}})
    with RunningCloud(spec) as cloud:
        readiness = {name: Readiness(kept=0.0) for name in cloud.services}
        for name, service in cloud.services.items():
            readiness[name].begin(service)

        def comes_to_lack(name: str, what: Set[str]) -> None:
            """Wait until this is all that a service lacks."""
            each = readiness[name]
            wait_until(lambda: each.reasons().keys() == what, lambda: f"{name}: {each.reasons()}")

        for name in readiness:
            comes_to_lack(name, set())
        cloud.stop_service("placement")
        for conductor in ("conductor", "conductor-cell1"):
            comes_to_lack(conductor, {"placement"})
        assert readiness["scheduler1"].reasons() == {}


def test_retries_and_failures_of_a_transaction_are_counted(tmp_path: Path) -> None:
    counts = Counts()
    database = Database(f"sqlite:///{tmp_path}/nowhere/at/all.sqlite", "nowhere of a test")
    with pytest.raises(errors.StoreUnavailable):
        database.read(lambda connection: connection)
    database.close()
    assert counts.by("why", "moorage_database_retries_total", schema="nowhere") == {"connection lost": 2}
    assert counts.of("moorage_database_failures_total", schema="nowhere") == 1
    assert counts.of("moorage_database_connections_in_use", schema="nowhere") == 0
    assert counts.of("moorage_database_pool_size", schema="nowhere") == 0


def test_a_deletion_is_counted_as_done(cloud: RunningCloud) -> None:
    instance = build(cloud)
    counts = Counts()
    cloud.client("conductor").call(DeleteInstance(request_id=ids.fresh(), instance_uuid=instance.uuid))
    wait_until(
        lambda: counts.of("moorage_operation_steps_total", kind="delete", outcome="done") == 2,
        lambda: counts.by("step", "moorage_operation_steps_total", kind="delete"),
    )
