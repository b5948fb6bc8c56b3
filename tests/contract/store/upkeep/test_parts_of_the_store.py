"""Test the lists of the main schema in parts of any length, on SQLite and MariaDB: complete and without repetitions."""

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Table
from support.databases import migrated
from support.scheduler.aggregate_builders import Aggregates
from support.scheduler.builders import CELLS
from support.scheduler.rig import Rig, node_uuid, rig_on_each_store

from moorage import errors, ids
from moorage.bus.bus import Bus, Client, handlers
from moorage.cli import lists
from moorage.config import options
from moorage.messages import (
    CreateServerGroup,
    ListClaims,
    ListHostAggregates,
    ListHosts,
    ListProviderAllocations,
    ListResourceProviders,
    ListServerGroups,
)
from moorage.messages.wire import Message, R
from moorage.model import ResourceGroup, ServerGroup
from placement_store.schema import (
    MAIN,
    aggregates,
    allocations,
    consumer_groups,
    consumers,
    host_aggregate_hosts,
    host_aggregates,
    hosts,
    resource_classes,
    resource_providers,
)

rig = rig_on_each_store

MANY = 20_000
#: A provider with allocations of all consumers.
POOL = node_uuid(0)
#: Each list with the message for the whole list.
LISTS: dict[str, tuple[Callable[..., Collection[Any]], Message[Any]]] = {
    "hosts": (lists.hosts, ListHosts()),
    "hosts of a cell": (lists.hosts, ListHosts(cell_uuid=CELLS[0])),
    "aggregates": (lists.host_aggregates, ListHostAggregates()),
    "aggregates of a host": (lists.host_aggregates, ListHostAggregates(service_host="host1")),
    "providers": (lists.providers, ListResourceProviders()),
    "providers of a tree": (lists.providers, ListResourceProviders(matching=ResourceGroup(in_tree=node_uuid(3)))),
    "groups": (lists.server_groups, ListServerGroups()),
    "groups of a project": (lists.server_groups, ListServerGroups(project_id="project 1")),
    "allocations of a provider": (lists.provider_allocations, ListProviderAllocations(uuid=POOL)),
    "claims": (lists.claims, ListClaims(residues=True)),
}


def endpoints(rig: Rig) -> list[object]:
    return [rig.registry, rig.placement.handlers()]


class Asked:
    """Passes messages to endpoints, and records the lengths of their answers."""

    def __init__(self, rig: Rig) -> None:
        self._handlers = {kind: handler for each in endpoints(rig) for kind, handler in handlers([each])}
        self.lengths: list[int] = []

    def call(self, message: Message[R]) -> R:
        answer: Any = self._handlers[type(message)](message)
        self.lengths.append(len(getattr(answer, "allocations", answer)))
        return answer  # type: ignore[no-any-return]


@pytest.fixture
def asked(rig: Rig) -> Asked:
    """Seven hosts in two cells, and as many aggregates, groups and claims, created in another order than listed."""
    rig.add_hosts(range(4))
    rig.add_hosts(range(4, 7), cell=1)
    made = Aggregates(rig)
    for number in (4, 1, 6, 3, 5, 2, 0):
        made.create(f"aggregate {number}", *(f"host{each}" for each in range(number)))
        rig.placement.call(
            CreateServerGroup(
                request_id=rig.fresh(),
                group=ServerGroup(uuid=ids.derived("parts", "group", number), policy="anti-affinity"),
                name=f"group {number}",
                project_id=f"project {number % 2}",
            )
        )
        rig.take(number, 1)
        rig.take(0, 1)
    # All ages differ, because claims of the same age are listed in any order.
    older = consumers.update().values(accepted_by=consumers.c.uuid, claimed_at=100.0 * consumers.c.id)
    rig.database.write(lambda connection: connection.execute(older))
    return Asked(rig)


@pytest.mark.parametrize("name", LISTS)
def test_a_list_in_parts_of_any_length_equals_the_whole_list(asked: Asked, name: str) -> None:
    listed, message = LISTS[name]
    answer = asked.call(message)
    whole = [identity(one) for one in getattr(answer, "allocations", answer)]
    assert whole

    for at_once in (1, 2, 3, 7, 1000):
        asked.lengths.clear()
        assert [identity(one) for one in listed(asked, message, at_once)] == whole
        full, rest = divmod(len(whole), at_once)
        assert asked.lengths == [*[at_once] * full, rest]


def identity(one: Any) -> str:
    """Return the uuid of an entry: the entries themselves contain an age, which changes."""
    if isinstance(one, str):
        return one
    for name in ("compute_node_uuid", "consumer_uuid", "uuid"):
        if hasattr(one, name):
            return str(getattr(one, name))
    return str(one.group.uuid)


# --- Lists of a large cloud -------------------------------------------------------------------------------------------


class Measured:
    """Calls over a bus, which refuses answers that are too large, and counts these refusals."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.too_large = 0

    def call(self, message: Message[R]) -> R:
        try:
            return self._client.call(message)
        except errors.ReplyTooLarge:
            self.too_large += 1
            raise


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """A store with twenty thousand hosts, providers, groups and claims, on a bus."""
    rig = Rig(migrated.sqlite(tmp_path_factory.mktemp("many") / "main.sqlite", MAIN), is_migrated=True)
    rig.database.write(fill)
    bus = Bus(options.new({"DEFAULT": {"transport_url": f"inproc://{uuid4()}/"}, "rpc": {"call_timeout": 60}}))
    bus.server("store", "one", endpoints(rig)).start()
    yield Measured(bus.client("store"))
    bus.close()
    rig.close()


def fill(connection: Connection) -> None:
    uuids = [ids.derived("many", number) for number in range(MANY)]

    def insert(table: Table, row: Callable[[int], dict[str, Any]], count: int = MANY) -> None:
        stamps = {name: 1.0 for name in ("created_at", "updated_at", "heartbeat_at", "claimed_at") if name in table.c}
        rows = [stamps | row(number) for number in range(count)]
        connection.execute(table.insert(), rows)

    described = {"cell_uuid": CELLS[0], "agent": "agent", "availability_zone": "nova", "up": True}
    attributes = json.dumps({"cpu_info": "x" * 700}).encode()
    insert(
        hosts,
        lambda n: {
            **described,
            "service_host": f"host{n}",
            "nodename": f"host{n}",
            "compute_node_uuid": uuids[n],
            "attributes": attributes,
        },
    )
    insert(resource_providers, lambda n: {"id": n + 1, "uuid": uuids[n], "name": uuids[n], "root_provider_id": n + 1})
    insert(aggregates, lambda n: {"id": n + 1, "uuid": uuids[n]}, 200)
    insert(host_aggregates, lambda n: {"aggregate_id": n + 1, "name": f"aggregate{n}", "metadata": b"{}"}, 200)
    # Each host is in four aggregates.
    insert(
        host_aggregate_hosts,
        lambda n: {"aggregate_id": n % 200 + 1, "cell_uuid": CELLS[0], "service_host": f"host{n // 4}"},
        MANY * 4,
    )
    insert(consumer_groups, lambda n: {"id": n + 1, "uuid": uuids[n], "policy": "anti-affinity", "name": "group"})
    insert(
        consumers,
        lambda n: {
            "id": n + 1,
            "uuid": uuids[n],
            "consumer_type": "INSTANCE",
            "project_id": "p",
            "user_id": "u",
            "generation": 1,
            "claim_id": uuids[n],
            "consumer_group_id": n % 10 + 1,
        },
    )
    # All consumers have an allocation of one provider.
    insert(resource_classes, lambda _n: {"id": 10_000, "name": "CUSTOM_MANY"}, 1)
    held = {"resource_provider_id": MANY + 1, "resource_class_id": 10_000, "used": 1}
    insert(allocations, lambda n: {**held, "consumer_id": n + 1})
    insert(
        resource_providers, lambda _n: {"id": MANY + 1, "uuid": POOL, "name": "pool", "root_provider_id": MANY + 1}, 1
    )


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("hosts", MANY),
        ("aggregates", 200),
        ("providers", MANY + 1),
        ("groups", MANY),
        ("claims", MANY),
        ("allocations of a provider", MANY),
    ],
)
def test_no_part_of_a_large_list_exceeds_the_message_limit(many: Measured, name: str, count: int) -> None:
    listed, message = LISTS[name]
    found = listed(many, message)
    assert len({identity(one) for one in found}) == len(found) == count
    assert many.too_large == 0
