"""Concurrent builds and evacuations of members of anti-affinity groups, by two schedulers: no rule is ever broken.

Each service is a separate process, on a real RabbitMQ and a real MariaDB. `make test` builds 40 members and evacuates
10; with DRILLS=long in the environment the numbers are 200 and 50.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import func, select
from support.processes.building_client import SPEC, call_until_answered
from support.processes.forked_cloud import ForkedCloud

from harness.audit import judge
from harness.waiting import wait_until
from moorage import ids
from moorage.bus.bus import Client
from moorage.db.database import Database
from moorage.messages import BuildInstances, EvacuateInstance, ListInstances, ListMigrations, SetHost
from moorage.messages.wire import Message, R
from moorage.model import Instance, ServerGroup
from placement_store.schema import consumer_groups, consumers

pytestmark = pytest.mark.timeout(1800)

LONG = os.environ.get("DRILLS") == "long"
#: The numbers of hosts, groups, members of a group, and evacuated members. The hosts that stay up suffice for a group.
HOSTS, GROUPS, MEMBERS, EVACUATED = (32, 10, 20, 50) if LONG else (16, 4, 10, 10)
SECONDS = 900.0 if LONG else 240.0
CLIENTS = 8


@dataclass
class Watch:
    """Checks all the time that no host has more members of a group than its rule allows; a check is one statement."""

    database: Database
    checks: int = 0
    broken: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> list[str]:
        # An instance and its migration on one host are one member; a residue is not a member.
        member = func.count(func.distinct(func.coalesce(consumers.c.migration_of, consumers.c.uuid)))
        statement = (
            select(consumer_groups.c.uuid, consumers.c.root_provider_id, member)
            .join(consumer_groups, consumer_groups.c.id == consumers.c.consumer_group_id)
            .where(consumers.c.root_provider_id.is_not(None))
            .group_by(consumer_groups.c.uuid, consumers.c.root_provider_id, consumer_groups.c.max_per_root)
            .having(member > consumer_groups.c.max_per_root)
        )
        with self.database.engine.connect() as connection:
            return [str(tuple(row)) for row in connection.execute(statement)]

    def _run(self) -> None:
        while not self._ended.is_set():
            self.broken += self.check()
            self.checks += 1
            time.sleep(0.005)


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    database = Database(migrated_url, "main")
    yield database
    database.close()


def groups() -> list[ServerGroup]:
    """Every third group may have two members on a host."""
    return [
        ServerGroup(uuid=ids.fresh(), policy="anti-affinity", max_server_per_host=2 if number % 3 == 2 else 1)
        for number in range(GROUPS)
    ]


def ask(client: Client, message: Message[R]) -> R:
    return call_until_answered(client, message, SECONDS)


def all_at_once(client: Client, messages: Sequence[Message[R]]) -> None:
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(lambda message: ask(client, message), messages))


def instances(client: Client) -> dict[str, Instance]:
    return {instance.uuid: instance for instance in ask(client, ListInstances())}


def wait(true: Callable[[], bool], what: str) -> None:
    wait_until(true, what, SECONDS, interval=0.5)


def begin(cloud: ForkedCloud) -> None:
    cloud.run("cell", "create", "cell1")
    cloud.start("conductor-cell1", "conductor", "--cell", "cell1")
    cloud.start("conductor", "conductor")
    for number in (1, 2):
        cloud.start(f"scheduler{number}", "scheduler", "--name", f"scheduler{number}")
    cloud.start("compute", "compute", "--cell", "cell1", "--agent", "agent", "--fake-hosts", str(HOSTS))
    cloud.wait_for_hosts(HOSTS, SECONDS)


def assert_apart(members: dict[str, list[str]], found: dict[str, Instance], wanted: Sequence[ServerGroup]) -> None:
    """Compare the hosts of instances with the rules of their groups."""
    for group in wanted:
        per_host = Counter(found[uuid].host for uuid in members[group.uuid])
        assert max(per_host.values()) <= group.max_server_per_host, per_host


def test_no_rule_is_broken_while_members_are_built_and_evacuated_all_at_once(
    migrated_url: str, rabbitmq_url: str, database: Database, record_property: Callable[[str, object], None]
) -> None:
    settings: dict[str, dict[str, Any]] = {
        "conductor": {"max_contention_retries": 100, "workers": 16, "retry_backoff": 0.2},
        "scheduler": {"host_subset_size": 3},
        "fake_driver": {"vcpus": 64, "memory_mb": 262144, "disk_gb": 2000},
    }
    with ForkedCloud(rabbitmq_url, migrated_url, settings) as cloud:
        begin(cloud)
        conductor = cloud.client("conductor", timeout=60)
        wanted = groups()
        members = {group.uuid: [ids.fresh() for _ in range(MEMBERS)] for group in wanted}
        with Watch(database) as watch:
            builds = [
                BuildInstances(
                    request_id=ids.fresh(),
                    request_spec=structs.replace(SPEC, server_group=group),
                    instance_uuids=(members[group.uuid][number],),
                )
                # One member of each group in turn: so members of several groups are placed at the same time.
                for number in range(MEMBERS)
                for group in wanted
            ]
            began = time.monotonic()
            all_at_once(conductor, builds)
            wait(lambda: all(one.state != "building" for one in instances(conductor).values()), "all to be built")
            built = time.monotonic() - began
            found = instances(conductor)
            assert Counter(one.state for one in found.values()) == {"active": GROUPS * MEMBERS}, reasons(found)
            assert_apart(members, found, wanted)

            leaving = members_to_evacuate(found)
            for host in {str(found[uuid].host) for uuid in leaving}:
                message = SetHost(request_id=ids.fresh(), service_host=host, forced_down=True)
                ask(cloud.client("scheduler"), message)
            began = time.monotonic()
            all_at_once(conductor, [EvacuateInstance(request_id=ids.fresh(), instance_uuid=uuid) for uuid in leaving])
            wait(lambda: not ask(conductor, ListMigrations()), "all to be evacuated")
            evacuated = time.monotonic() - began
        after = instances(conductor)
        migrations = ask(conductor, ListMigrations(ended=True))
        assert Counter(one.state for one in migrations) == {"confirmed": EVACUATED}, migrations
        assert all(after[uuid].state == "active" and after[uuid].host != found[uuid].host for uuid in leaving)
        assert_apart(members, after, wanted)
        assert watch.broken == []
        assert watch.checks > 10
        wait(lambda: judge(database, list(after)).clean, "the residues to be released")
        record_property(
            "measured",
            f"{GROUPS * MEMBERS} members of {GROUPS} groups built in {built:.1f} s, {EVACUATED} evacuated in "
            f"{evacuated:.1f} s, on {HOSTS} hosts by two schedulers; {watch.checks} checks have found no rule broken",
        )


def members_to_evacuate(found: dict[str, Instance]) -> list[str]:
    """Return the members to evacuate: those of the fullest hosts, so that few hosts are forced down."""
    hosts = Counter(str(one.host) for one in found.values())
    ranks = {host: rank for rank, (host, _count) in enumerate(hosts.most_common())}
    ordered = sorted(found.values(), key=lambda one: (ranks[str(one.host)], one.uuid))
    return [one.uuid for one in ordered[:EVACUATED]]


def reasons(found: dict[str, Instance]) -> Counter[str]:
    return Counter(f"{one.state}: {one.reason}" for one in found.values() if one.state != "active")
