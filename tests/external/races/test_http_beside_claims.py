"""Eight clients write allocations over HTTP while two scheduler processes claim on the same hosts over RabbitMQ.

In `make test` this takes some seconds; with DRILLS=long in the environment it takes a minute.
"""

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.databases.migrated import OnMariaDB
from support.http.api import Api, served
from support.processes.forked_cloud import ForkedCloud
from support.scheduler.builders import select
from support.scheduler.rig import Rig, node_uuid

from moorage import errors, ids
from moorage.messages import DeleteAllocations
from placement_store.schema import MAIN

SECONDS = 60 if os.environ.get("DRILLS") == "long" else 6
CLIENTS, CLAIMERS = 8, 4
SCHEDULERS = ("scheduler 1", "scheduler 2")
#: Hosts with room for all clients, and a host with room for a few; the schedulers see that host too.
ROOMY, TIGHT = [1, 2], 3
#: The maximum VCPU that a client writes, and the VCPU that are claimed for an instance.
MOST, CLAIMED = 4, 2
#: The hosts have no agents, so there are no heartbeats. On a busy machine, an answer may take many seconds.
SETTINGS = {"scheduler": {"host_down_after": 3600.0}, "rpc": {"call_timeout": 60.0}}


@pytest.fixture
def rig(migrated_mariadb: OnMariaDB) -> Iterator[Rig]:
    started = Rig(migrated_mariadb.url(MAIN), is_migrated=True)
    started.add_hosts(ROOMY, vcpus=CLIENTS * MOST + CLAIMERS * CLAIMED)
    started.add_hosts([TIGHT], vcpus=5)
    yield started
    started.close()


@pytest.fixture
def cloud(rig: Rig, rabbitmq_url: str) -> Iterator[ForkedCloud]:
    with ForkedCloud(rabbitmq_url, rig.url, SETTINGS) as started:
        for name in SCHEDULERS:
            started.start(name, "scheduler", "--name", name)
        started.wait_for_hosts(len([*ROOMY, TIGHT]))
        yield started


class Client:
    """Writes allocations of one consumer on the roomy hosts and of another on the tight host, and records them."""

    def __init__(self, url: str, number: int) -> None:
        self._api = Api(url, store=None)  # type: ignore[arg-type]
        self._drawn = random.Random(number)
        self.roomy, self.tight = ids.derived("client", number), ids.derived("client on the tight host", number)
        #: The allocations of each consumer, and its generation; null if the consumer does not exist.
        self.known: dict[str, tuple[dict[str, int], int | None]] = {self.roomy: ({}, None), self.tight: ({}, None)}
        self.seen: Counter[str] = Counter()

    def work(self, until: Callable[[], bool]) -> None:
        while not until():
            host = node_uuid(self._drawn.choice(ROOMY))
            self._put(self.roomy, {host: self._drawn.randint(1, MOST)} if self._drawn.random() < 0.8 else {})
            self._put(
                self.tight, {node_uuid(TIGHT): self._drawn.randint(1, MOST)} if self._drawn.random() < 0.5 else {}
            )

    def _put(self, consumer: str, wanted: dict[str, int]) -> None:
        _, generation = self.known[consumer]
        body: dict[str, Any] = {
            "allocations": {uuid: {"resources": {"VCPU": amount}} for uuid, amount in wanted.items()},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": generation,
            "consumer_type": "INSTANCE",
        }
        reply = self._api.ask("PUT", f"/allocations/{consumer}", body)
        if reply.status_code == 204:
            self.known[consumer] = (wanted, (generation or 0) + 1 if wanted else None)
            self.seen["written"] += 1
            return
        code = reply.json()["errors"][0]["code"] if reply.status_code == 409 else reply.text
        whose = "roomy" if consumer == self.roomy else "tight"
        self.seen[f"{whose}: {reply.status_code} {code}"] += 1


def claim(cloud: ForkedCloud, name: str, until: Callable[[], bool]) -> Counter[str]:
    """Claim for one instance after another, and release each claim; return the number of answers by kind."""
    scheduler, placement = cloud.client("scheduler"), cloud.client("placement")
    seen: Counter[str] = Counter()
    for number in itertools.count():
        if until():
            return seen
        wanted = select(ids.derived(name, number), vcpus=CLAIMED)
        try:
            [[selection]] = scheduler.call(wanted)
        except errors.MoorageError as fault:
            seen[type(fault).__name__] += 1
        else:
            seen["claimed"] += 1
            assert selection.claim_id is not None
            [uuid] = wanted.instance_uuids
            placement.call(DeleteAllocations(request_id=ids.derived(uuid, "delete"), consumer_uuid=uuid))
    raise AssertionError


def test_no_write_is_lost_over_commits_or_is_refused_if_it_fits(
    rig: Rig, cloud: ForkedCloud, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with served(rig.url, tmp_path / "log", "--workers", "2", "--threads", "4") as api:
        clients = [Client(api.url, number) for number in range(CLIENTS)]
        ended = threading.Event()
        with ThreadPoolExecutor(CLIENTS + CLAIMERS) as threads:
            writing = [threads.submit(client.work, ended.is_set) for client in clients]
            claiming = [threads.submit(claim, cloud, f"claimer {n}", ended.is_set) for n in range(CLAIMERS)]
            try:
                audits = audit_repeatedly(rig)
            finally:
                ended.set()
            for one in writing:
                one.result()
            claimed = sum((one.result() for one in claiming), Counter[str]())
        written = sum((client.seen for client in clients), Counter[str]())
        shares = {name: cloud.log(name).count("Claimed for 1 instance(s)") for name in SCHEDULERS}
        record_property(
            "measured",
            f"beside claims, in {SECONDS} s: over HTTP {dict(written)}, over RPC {dict(claimed)} by {shares}, "
            f"{audits} audits",
        )

        # A write that fits succeeds, and no write is refused because of a concurrent one.
        assert set(written) <= {"written", "tight: 409 placement.undefined_code"}
        assert set(claimed) == {"claimed"}
        assert written["written"] > SECONDS
        assert all(shares.values())
        for client in clients:
            for consumer, (held, generation) in client.known.items():
                shown = api.get(f"/allocations/{consumer}")
                assert {u: part["resources"]["VCPU"] for u, part in shown["allocations"].items()} == held
                assert shown.get("consumer_generation") == generation
    report = rig.audit()
    assert not report.overcommitted
    assert not report.drifted


def audit_repeatedly(rig: Rig) -> int:
    """Check for over-committed hosts until the time is over; return the number of checks."""
    deadline = time.monotonic() + SECONDS
    for audits in itertools.count(1):
        assert not rig.audit().overcommitted
        if time.monotonic() > deadline:
            return audits
        time.sleep(0.5)
    raise AssertionError
