"""A scheduler that is killed in the transaction that many requests share: each is answered, and claims once."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select
from support.processes.forked_cloud import ForkedCloud
from support.scheduler.builders import select as asked
from support.scheduler.rig import Rig

from harness.cloud import wait_until
from moorage import errors
from moorage.messages import SelectDestinations
from moorage.model import Selection
from placement_store.schema import allocations, consumers, requests, resource_providers

CALLERS = 24
EACH = 8
HOSTS = 6


@pytest.fixture
def rig(mariadb_url: str) -> Iterator[Rig]:
    """The store with hosts that have room for all requests and hardly more."""
    made = Rig(mariadb_url)
    made.add_hosts(range(HOSTS), vcpus=2 * CALLERS * EACH // HOSTS + 2, memory_mb=10**6)
    yield made
    made.close()


@pytest.fixture
def cloud(rabbitmq_url: str, rig: Rig) -> Iterator[ForkedCloud]:
    with ForkedCloud(rabbitmq_url, rig.url, {"scheduler": {"host_down_after": 86400}, "rpc": {"threads": 16}}) as cloud:
        yield cloud


def answered(cloud: ForkedCloud, message: SelectDestinations) -> list[list[Selection]]:
    """Send a request again and again until it is answered."""
    scheduler = cloud.client("scheduler", timeout=3.0)
    end = time.monotonic() + 120
    while True:
        try:
            return scheduler.call(message)
        except (errors.Unavailable, errors.RequestInProgress, errors.ClaimContention):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.mark.parametrize("point", ["commit", "committed", "reply"])
def test_each_request_is_answered_and_claims_once_where_a_scheduler_dies_in_the_transaction_of_many(
    cloud: ForkedCloud, rig: Rig, point: str
) -> None:
    armed = f"serve.scheduler.select_destinations.{point}=kill@12"
    cloud.start("scheduler", "scheduler", "--name", "s", armed=armed)
    begin = threading.Barrier(CALLERS)

    def client(number: int) -> list[tuple[str, Selection]]:
        begin.wait(60)
        found = []
        for count in range(EACH):
            message = asked(f"r{number}-{count}", root_gb=1)
            [[claimed, *_alternates]] = answered(cloud, message)
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
    # It is this that is tried: most transactions had the claims of several requests.
    assert max(shared) > 1


_HELD = (
    select(consumers.c.uuid, consumers.c.claim_id, resource_providers.c.uuid.label("node"))
    .select_from(consumers.join(allocations, allocations.c.consumer_id == consumers.c.id))
    .join(resource_providers, resource_providers.c.id == allocations.c.resource_provider_id)
    .distinct()
)

#: The rows of requests that are written together have one time.
_SHARED = (
    select(func.count())
    .select_from(requests)
    .where(requests.c.method == "select_destinations")
    .group_by(requests.c.created_at)
)
