"""Agents are restarted with another layout of their hosts while instances are built, on real servers."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from support.operations.instances import restart_agent
from support.processes.building_client import call_until_answered

from harness.cloud import CloudSpec, RunningCloud, guests_in
from harness.servers import MariaDBServer
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import (
    BuildInstances,
    GetAllocations,
    ListProviderTrees,
    ListResourceProviders,
    ShowInstance,
)
from moorage.model import Flavor, Guest, Instance, RequestSpec, ResourceProvider

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512, root_gb=1))
HOSTS = 3
INSTANCES = 30
PARTS = {"numa_nodes": 2, "gpus": 2, "nics": 1}


@pytest.fixture
def cloud(mariadb: MariaDBServer, rabbitmq_url: str) -> Iterator[RunningCloud]:
    plan = CloudSpec(
        hosts=HOSTS,
        transport_url=rabbitmq_url,
        database_connection=mariadb.create_database("reshapes_at_start"),
        settings={
            "rpc": {"call_timeout": 5.0},
            "compute": {"report_interval": 0.1, "stop_timeout": 1.0},
            # The first host to return may get all instances, and place all of them on one of its two NUMA nodes.
            "fake_driver": {"layout": "flat", "spawn_seconds": 0.2, "vcpus": 2 * INSTANCES, **PARTS},
        },
    )
    with RunningCloud(plan) as one:
        yield one


def providers(cloud: RunningCloud) -> list[ResourceProvider]:
    placement = cloud.client("placement")
    uuids = {one.uuid for one in placement.call(ListResourceProviders())}
    return placement.call(ListProviderTrees(uuids=tuple(sorted(uuids))))


def wait_for_layout(cloud: RunningCloud, layout: str) -> None:
    count = HOSTS * (1 + sum(PARTS.values()) if layout == "nested" else 1)
    wait_until(lambda: len(providers(cloud)) == count, f"all hosts to be {layout}")


def order(cloud: RunningCloud, uuids: list[str], ended: threading.Event) -> None:
    """Order one instance after the other; repeat an order that is not answered, with the same id."""
    conductor = cloud.client("conductor")
    for uuid in uuids:
        message = BuildInstances(request_spec=SPEC, instance_uuids=(uuid,), request_id=ids.derived(uuid, "build"))
        call_until_answered(conductor, message)
        ended.wait(0.1)


def instance(cloud: RunningCloud, uuid: str) -> Instance:
    return cloud.client("conductor").call(ShowInstance(instance_uuid=uuid))


def guests(cloud: RunningCloud) -> list[Guest]:
    return guests_in([cloud.folder / "agent-cell1.sqlite"])


def test_hosts_whose_layout_changes_continue_to_build_and_lose_no_instance_and_no_amount(cloud: RunningCloud) -> None:
    uuids = [ids.fresh() for _ in range(INSTANCES)]
    ended = threading.Event()
    orders = threading.Thread(target=order, args=(cloud, uuids, ended))
    orders.start()
    try:
        for layout in ("nested", "flat", "nested"):
            restart_agent(cloud, HOSTS, layout=layout)
            wait_for_layout(cloud, layout)
    finally:
        ended.set()
        orders.join()
    wait_until(lambda: all(instance(cloud, uuid).state != "building" for uuid in uuids), "all instances to be built")
    assert [one for uuid in uuids if (one := instance(cloud, uuid)).state != "active"] == []

    found = {guest.instance_uuid: guest for guest in guests(cloud)}
    assert sorted(found) == sorted(uuids), "each instance has one guest"
    names = {one.uuid: one for one in providers(cloud)}
    held: Counter[tuple[str, str]] = Counter()
    for uuid in uuids:
        consumer = cloud.client("placement").call(GetAllocations(consumer_uuid=uuid))
        assert consumer.claim_id == found[uuid].claim_id
        assert consumer.accepted_by == found[uuid].attempt_id
        parts = {(node, name): n for node, part in consumer.allocations.items() for name, n in part.resources.items()}
        assert Counter({name: n for (_, name), n in parts.items()}) == SPEC.resources
        assert {names[names[node].root_provider_uuid].name for node, _ in parts} == {found[uuid].host}
        held.update(parts)
    used = {(one.uuid, name): n for one in names.values() for name, n in one.used.items() if n}
    assert used == dict(held)
    assert all(n <= names[node].inventories[name].capacity for (node, name), n in used.items())
