"""A cloud on quorum queues of three brokers builds while one of them is down; only with DRILLS=long."""

import os
import time
from collections.abc import Iterator

import pytest
from support.processes.building_client import call_until_answered

from harness.cloud import CloudSpec, RunningCloud
from harness.drills.cloud import unlogged
from harness.rabbitmq_cluster import RabbitMQCluster
from moorage import ids
from moorage.messages import BuildInstances, ShowInstance
from moorage.model import Flavor, RequestSpec

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("DRILLS") != "long", reason="DRILLS=long starts a RabbitMQ cluster"),
]

PATIENCE = 90.0


@pytest.fixture
def cloud(rabbitmq_cluster: RabbitMQCluster) -> Iterator[RunningCloud]:
    spec = CloudSpec(hosts=4, transport_url=rabbitmq_cluster.add_vhost("quorum"))
    with unlogged(), RunningCloud(spec) as begun:
        yield begun


def test_every_durable_queue_is_replicated_and_builds_continue_when_a_broker_is_killed(
    cloud: RunningCloud, rabbitmq_cluster: RabbitMQCluster
) -> None:
    assert build(cloud) == "active"
    durable = '[amqqueue:get_type(Q) || Q <- rabbit_amqqueue:list(<<"quorum">>), amqqueue:is_durable(Q)]'
    rabbitmq_cluster.nodes[0].evaluate(f"[rabbit_quorum_queue] = lists:usort({durable})")

    for number in range(2):  # the services are connected to different nodes
        rabbitmq_cluster.kill(number)
        assert build(cloud) == "active"
        rabbitmq_cluster.start_node(number)
    assert build(cloud) == "active"


def build(cloud: RunningCloud) -> str:
    """Build an instance, repeating the order until it is answered; return the final state."""
    conductor, uuid = cloud.client("conductor", timeout=5.0), ids.fresh()
    spec = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512))
    end = time.monotonic() + PATIENCE
    order = BuildInstances(request_spec=spec, instance_uuids=(uuid,), request_id=ids.fresh())
    call_until_answered(conductor, order, PATIENCE)
    state = "building"
    while state == "building" and time.monotonic() < end:
        time.sleep(0.1)
        state = call_until_answered(conductor, ShowInstance(instance_uuid=uuid), PATIENCE).state
    return state
