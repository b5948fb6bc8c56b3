"""Test that an audit finds exactly the damage done to a store, and that a heal restores all that there is room for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert, select, update
from support.operations.cloud import TroublesomeCloud
from support.operations.healed_servers import GROUP, LARGE, PLAN, Servers

from moorage import ids
from moorage.messages import DeleteAllocations, ResizeInstance
from placement_store.db import change_feed
from placement_store.schema import allocations, consumers, inventories, resource_providers

EXAMPLES = 8
#: A finding: its kind, and the consumer or provider.
Found = tuple[str, str]


@dataclass
class Consumer:
    """The row of a consumer, in a transaction that damages it."""

    connection: Connection
    row: Any
    #: The numbers and uuids of the root providers of the hosts.
    hosts: dict[int, str]

    def rows(self) -> list[Any]:
        query = select(allocations).where(allocations.c.consumer_id == self.row.id)
        return list(self.connection.execute(query.order_by(allocations.c.resource_class_id)))

    def use(self, provider: int, number: int, amount: int) -> None:
        """Add to the sum of an inventory."""
        this = (inventories.c.resource_provider_id == provider, inventories.c.resource_class_id == number)
        self.connection.execute(update(inventories).where(*this).values(used=inventories.c.used + amount))

    def free(self) -> None:
        for held in self.rows():
            self.use(held.resource_provider_id, held.resource_class_id, -held.used)
        self.connection.execute(delete(allocations).where(allocations.c.consumer_id == self.row.id))

    def change(self, **values: Any) -> None:
        self.connection.execute(update(consumers).where(consumers.c.id == self.row.id).values(values))

    def found(self, kind: str) -> set[Found]:
        return {(kind, self.row.uuid)}


def lose(one: Consumer) -> set[Found]:
    one.free()
    one.connection.execute(delete(consumers).where(consumers.c.id == one.row.id))
    return one.found("unheld")


def lose_amounts(one: Consumer) -> set[Found]:
    """Leave the claim with nothing, and the sums as they were."""
    drifted = {("drifted", one.hosts[held.resource_provider_id]) for held in one.rows()}
    one.connection.execute(delete(allocations).where(allocations.c.consumer_id == one.row.id))
    return one.found("unheld") | drifted


def lose_row(one: Consumer) -> set[Found]:
    """Leave the amounts without a consumer."""
    one.connection.execute(delete(consumers).where(consumers.c.id == one.row.id))
    return one.found("unheld") | {("leaked", "(no consumer)")}


def shrink(one: Consumer) -> set[Found]:
    held = one.rows()[0]
    one.use(held.resource_provider_id, held.resource_class_id, 1 - held.used)
    one.connection.execute(update(allocations).where(allocations.c.id == held.id).values(used=1))
    return one.found("short")


def lose_class(one: Consumer) -> set[Found]:
    held = one.rows()[-1]
    one.use(held.resource_provider_id, held.resource_class_id, -held.used)
    one.connection.execute(delete(allocations).where(allocations.c.id == held.id))
    return one.found("short")


def change_claim(one: Consumer) -> set[Found]:
    one.change(claim_id=ids.fresh())
    return one.found("claim")


def forget_claim(one: Consumer) -> set[Found]:
    one.change(claim_id=None, root_provider_id=None, accepted_by=None)
    return one.found("claim")


def change_host(one: Consumer) -> set[Found]:
    other = min(one.hosts.keys() - {one.row.root_provider_id})
    held = one.rows()
    one.free()
    for each in held:
        values = {"consumer_id": one.row.id, "resource_class_id": each.resource_class_id, "used": each.used}
        one.connection.execute(insert(allocations).values(resource_provider_id=other, **values))
        one.use(other, each.resource_class_id, each.used)
    one.change(root_provider_id=other, claim_id=ids.fresh())
    return one.found("claim")


HARMS: tuple[Callable[[Consumer], set[Found]], ...] = (
    *(lose, lose_amounts, lose_row, shrink, lose_class, change_claim, forget_claim, change_host),
)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Return two servers, a member of a server group, and a moved server, all without findings."""
    with TroublesomeCloud(replace(PLAN, hosts=4)) as cloud:
        servers = Servers(cloud, {kind: ids.fresh() for kind in ("one", "two", "grouped", "moved")}, settle=0.02)
        servers.at_once(
            lambda uuid: servers.build(uuid, server_group=GROUP if uuid == servers.uuids["grouped"] else None)
        )
        servers.order(ResizeInstance, servers.uuids["moved"], flavor=LARGE)
        servers.becomes(servers.uuids["moved"], "moved")
        assert servers.findings() == []
        yield servers


def harm(servers: Servers, harms: list[Callable[[Consumer], set[Found]] | None]) -> set[Found]:
    """Damage the consumers in the order of their uuids; return the expected findings."""
    expected: set[Found] = set()

    def work(connection: Connection) -> None:
        hosts = dict(connection.execute(select(resource_providers.c.id, resource_providers.c.uuid)).all())
        claimed = select(consumers).where(consumers.c.claim_id.is_not(None))
        rows = connection.execute(claimed.order_by(consumers.c.uuid)).all()
        assert len(rows) == len(harms)
        roots = {row.root_provider_id: hosts[row.root_provider_id] for row in rows}
        for row, harmed in zip(rows, harms, strict=True):
            if harmed is not None:
                expected.update(harmed(Consumer(connection, row, roots)))
        change_feed.record(connection, provider_ids=hosts.keys())

    servers.break_(work)
    return expected


def rows(servers: Servers) -> Any:
    """Return the rows of all consumers."""
    return servers.cloud.database.read(lambda c: c.execute(select(consumers).order_by(consumers.c.id)).all())


harms = st.lists(st.none() | st.sampled_from(HARMS), min_size=5, max_size=5)
few = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


@given(harms=harms)
@few
def test_an_audit_finds_exactly_the_damage_and_one_heal_repairs_it(servers: Servers, harms: Any) -> None:
    before = servers.held()
    expected = harm(servers, harms)
    assert {(kind, subject) for kind, subject, _ in servers.findings()} == expected

    assert servers.heal() == {}

    assert servers.findings() == []
    assert servers.held() == before
    healed = rows(servers)
    assert servers.heal() == {}
    assert rows(servers) == healed, "a second heal changes something"


@given(harms=harms)
@few
def test_without_room_for_all_a_heal_restores_the_rest_and_over_commits_nothing(servers: Servers, harms: Any) -> None:
    before = servers.held()
    expected = harm(servers, harms)
    with all_room_taken(servers) as others:
        left = servers.heal()

        assert {kind for kind, *_ in left} <= {"unheld", "claim", "short"}, left
        assert {subject for _, subject, _ in left} <= {subject for _, subject in expected}
        assert all(reason.startswith("not healed: ") for reason in left.values()), left
        unhealed = {subject for _, subject, _ in left}
        healed = {key: amount for key, amount in servers.held().items() if key[0] not in unhealed | others}
        assert healed == {key: amount for key, amount in before.items() if key[0] not in unhealed}
        assert servers.heal().keys() == left.keys()
    assert servers.heal() == {}
    assert servers.held() == before


@contextmanager
def all_room_taken(servers: Servers) -> Iterator[set[str]]:
    """Let other consumers hold all free amounts of each host; yield these consumers."""
    taken: set[str] = set()
    try:
        for uuid, amounts in free(servers).items():
            taken.add(consumer := ids.fresh())
            servers.hold(consumer, {uuid: amounts})
        yield taken
    finally:
        for consumer in taken:
            servers.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=consumer, for_good=True))


def free(servers: Servers) -> dict[str, dict[str, int]]:
    """Return the free VCPU and memory of each host that has any."""
    columns = (resource_providers.c.uuid, inventories.c.resource_class_id)
    of_provider = resource_providers.c.id == inventories.c.resource_provider_id
    left = inventories.c.total - inventories.c.used
    query = select(*columns, left).join_from(inventories, resource_providers, of_provider)
    names = {0: "VCPU", 1: "MEMORY_MB"}
    found: dict[str, dict[str, int]] = {}
    for uuid, number, amount in servers.cloud.database.read(lambda c: c.execute(query).all()):
        if number in names and amount > 0:
            found.setdefault(uuid, {})[names[number]] = amount
    return found
