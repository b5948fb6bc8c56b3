"""A cloud on the quorum queues of three brokers builds before and after one of them dies; with DRILLS=long only."""

import gc
import logging
import os
import time
from collections.abc import Iterator

import pytest

from harness.cloud import CloudSpec, RunningCloud
from harness.rabbitmq_cluster import RabbitMQCluster
from moorage import errors, ids
from moorage.messages import BuildInstances, ShowInstance
from moorage.messages.wire import Message, R
from moorage.model import Flavor, RequestSpec

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("DRILLS") != "long", reason="DRILLS=long starts a RabbitMQ cluster"),
]

PATIENCE = 90.0


@pytest.fixture
def cloud(rabbitmq_cluster: RabbitMQCluster) -> Iterator[RunningCloud]:
    logging.disable()  # records of what has failed would keep dead sockets, to be found in a later test
    try:
        with RunningCloud(CloudSpec(hosts=4, transport_url=rabbitmq_cluster.add_vhost("quorum"))) as begun:
            yield begun
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()


def test_every_lasting_queue_is_on_a_majority_and_builds_go_on_when_a_broker_dies(
    cloud: RunningCloud, rabbitmq_cluster: RabbitMQCluster
) -> None:
    assert build(cloud) == "active"
    lasting = '[amqqueue:get_type(Q) || Q <- rabbit_amqqueue:list(<<"quorum">>), amqqueue:is_durable(Q)]'
    rabbitmq_cluster.nodes[0].evaluate(f"[rabbit_quorum_queue] = lists:usort({lasting})")

    for number in range(2):  # the services' connections are spread over the nodes
        rabbitmq_cluster.kill(number)
        assert build(cloud) == "active"
        rabbitmq_cluster.start_node(number)
    assert build(cloud) == "active"


def build(cloud: RunningCloud) -> str:
    """Have an instance built, however often the order must be repeated; return its last state."""
    uuid, request_id = ids.fresh(), ids.fresh()
    spec = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512))
    end = time.monotonic() + PATIENCE
    repeated(cloud, BuildInstances(request_spec=spec, instance_uuids=(uuid,), request_id=request_id), end)
    state = "building"
    while state == "building" and time.monotonic() < end:
        time.sleep(0.1)
        state = repeated(cloud, ShowInstance(instance_uuid=uuid), end).state
    return state


def repeated(cloud: RunningCloud, message: Message[R], end: float) -> R:
    while True:
        try:
            return cloud.client("conductor", timeout=5.0).call(message)
        except (errors.Unavailable, errors.TryAgain):
            if time.monotonic() > end:
                raise
