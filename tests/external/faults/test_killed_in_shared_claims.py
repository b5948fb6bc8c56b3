"""A scheduler is killed in a transaction that several requests share: each request is answered, and claims once."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select
from support.databases.migrated import OnMariaDB
from support.processes.building_client import call_until_answered
from support.processes.forked_cloud import ForkedCloud
from support.scheduler.builders import select as select_message
from support.scheduler.rig import Rig

from harness.waiting import wait_until
from moorage.model import Selection
from placement_store.schema import MAIN, allocations, consumers, requests, resource_providers

CALLERS = 24
EACH = 8
HOSTS = 6


@pytest.fixture
def rig(migrated_mariadb: OnMariaDB) -> Iterator[Rig]:
    """The store with hosts that have little more room than all requests need."""
    made = Rig(migrated_mariadb.url(MAIN), is_migrated=True)
    made.add_hosts(range(HOSTS), vcpus=2 * CALLERS * EACH // HOSTS + 2, memory_mb=10**6)
    yield made
    made.close()


@pytest.fixture
def cloud(rabbitmq_url: str, rig: Rig) -> Iterator[ForkedCloud]:
    with ForkedCloud(rabbitmq_url, rig.url, {"scheduler": {"host_down_after": 86400}, "rpc": {"threads": 16}}) as cloud:
        yield cloud


@pytest.mark.parametrize("point", ["commit", "committed", "reply"])
def test_each_request_is_answered_and_claims_once_if_the_scheduler_is_killed_in_a_shared_transaction(
    cloud: ForkedCloud, rig: Rig, point: str
) -> None:
    armed = f"serve.scheduler.select_destinations.{point}=kill@12"
    cloud.start("scheduler", "scheduler", "--name", "s", armed=armed)
    begin = threading.Barrier(CALLERS)

    def client(number: int) -> list[tuple[str, Selection]]:
        begin.wait(60)
        found = []
        for count in range(EACH):
            message = select_message(f"r{number}-{count}", root_gb=1)
            [[claimed, *_alternates]] = call_until_answered(cloud.client("scheduler", timeout=3.0), message)
            found.append((message.instance_uuids[0], claimed))
        return found

    with ThreadPoolExecutor(CALLERS) as pool:
        clients = [pool.submit(client, number) for number in range(CALLERS)]
        wait_until(lambda: cloud.processes["scheduler"].poll() is not None, "the scheduler to be killed", 60)
        cloud.start("scheduler", "scheduler", "--name", "s")
        claims = dict(each for one in clients for each in one.result(180))

    assert len(claims) == CALLERS * EACH
    with rig.database.engine.connect() as connection:
        held = {row.uuid: (row.claim_id, row.node) for row in connection.execute(_HELD)}
        shared = connection.scalars(_SHARED).all()
    assert held == {uuid: (claimed.claim_id, claimed.compute_node_uuid) for uuid, claimed in claims.items()}
    found = rig.audit()
    assert not found.overcommitted
    assert not found.drifted
    # Check that requests did share transactions.
    assert max(shared) > 1


_HELD = (
    select(consumers.c.uuid, consumers.c.claim_id, resource_providers.c.uuid.label("node"))
    .select_from(consumers.join(allocations, allocations.c.consumer_id == consumers.c.id))
    .join(resource_providers, resource_providers.c.id == allocations.c.resource_provider_id)
    .distinct()
)

#: Rows of requests that were written in one transaction have the same time.
_SHARED = (
    select(func.count())
    .select_from(requests)
    .where(requests.c.method == "select_destinations")
    .group_by(requests.c.created_at)
)
