"""Servers of a faulty cloud: the orders about each, even while a part of the cloud is down, and the final checks."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import os_resource_classes
from sqlalchemy import Connection, select

from harness.audit import judge
from moorage import errors, ids
from moorage.messages import (
    BuildInstances,
    DeleteInstance,
    ListMigrations,
    ListOperations,
    ListResourceProviders,
    OperationBegun,
    ShowInstance,
    ShowMigration,
    ShowOperation,
)
from moorage.messages.wire import Message, Mutation, R
from moorage.model import Flavor, Instance, Migration, RequestSpec
from moorage.model.inspection import OperationSummary
from placement_store.schema import allocations, consumers, resource_providers
from support.processes.faulty_cloud import FaultyCloud

#: Seconds for an order that meets a process that is down.
PATIENCE = 60.0
#: Seconds until ended operations have left nothing behind: the next owner's lease, a report, a cleaning.
TIDY = 20.0

#: Seconds between two reads of a state: most states are reached within a second, time-outs take ten. Each read costs
#: processor time in three processes, and several clouds run side by side.
RARER: Mapping[str, float] = {"interval": 0.05, "longest": 0.4}

_VCPU = os_resource_classes.STANDARDS.index(os_resource_classes.VCPU)


def flavor(vcpus: int) -> Flavor:
    """Return a flavor."""
    return Flavor(name=f"v{vcpus}", vcpus=vcpus, memory_mb=1024, root_gb=1)


@dataclass
class Server:
    """An instance that is built, operated on, and deleted.

    Each order has its own request id, by which its log lines are found.
    """

    cloud: FaultyCloud
    vcpus: int
    zone: str | None = None
    #: The only host that it may be built on.
    host: str | None = None
    patience: float = PATIENCE
    uuid: str = field(default_factory=ids.fresh)
    requests: list[str] = field(default_factory=list)
    #: Its size after its move is confirmed.
    becoming: int | None = None
    #: The last action is still under way, and can end in more than one state.
    is_unsettled: bool = False

    def request_id(self, what: str) -> str:
        """Return a new request id."""
        self.requests.append(ids.derived(self.uuid, what, len(self.requests)))
        return self.requests[-1]

    def order(self, message: Mutation[R]) -> R:
        """Send an order, and repeat it as long as it is not answered."""
        end = time.monotonic() + self.patience
        while True:
            try:
                return self.cloud.call("conductor", message, self.patience)
            except errors.InvalidState as fault:
                # The super conductor may not have learned yet that an operation in the cell has ended.
                if ("under way" not in fault.reason and "being placed" not in fault.reason) or time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def order_build(self) -> None:
        """Order the build."""
        spec = RequestSpec(
            project_id="p",
            user_id="u",
            flavor=flavor(self.vcpus),
            availability_zone=self.zone,
            force_hosts=() if self.host is None else (self.host,),
        )
        self.order(BuildInstances(request_spec=spec, instance_uuids=(self.uuid,), request_id=self.request_id("build")))

    def order_delete(self) -> None:
        """Order the delete."""
        self.order(DeleteInstance(instance_uuid=self.uuid, request_id=self.request_id("delete")))

    def built(self) -> Instance:
        """Wait until the build has ended in an allowed state: active, deleted, or in error with a reason."""
        instance = self.becomes("active", "error", "deleted")
        assert instance.reason or instance.state != "error", instance
        return instance

    def show(self) -> Instance:
        """Return the instance as shown by its cell, as soon as the cell answers."""
        return self.becomes()

    def becomes(self, *states: str) -> Instance:
        """Wait until the instance is in one of these states (or in any) according to its cell, and return it."""

        def reached(instance: Instance) -> bool:
            # If the cell does not answer, the super conductor returns only what it has handed over.
            is_known = bool(instance.attempts) or instance.state in ("error", "deleted")
            return is_known and (not states or instance.state in states)

        return self._read_until(ShowInstance(instance_uuid=self.uuid), reached)

    def comes_to(self, migration_uuid: str, states: Collection[str]) -> Migration:
        """Wait until a migration is in one of these states, and return it."""
        return self._read_until(ShowMigration(uuid=migration_uuid), lambda migration: migration.state in states)

    def ended(self, begun: OperationBegun) -> OperationSummary:
        """Wait until an operation has ended, and return it."""
        return self._read_until(
            ShowOperation(uuid=begun.operation_uuid), lambda operation: operation.state != "pending"
        )

    def _read_until(self, message: Message[R], reached: Callable[[R], bool]) -> R:
        """Repeat a read until its answer fulfils a condition, and return the answer."""
        end, pause = time.monotonic() + self.patience, RARER["interval"]
        while not reached(seen := self.cloud.call("conductor", message, self.patience)):
            if time.monotonic() > end:
                raise AssertionError(
                    f"after {self.patience:g} s: {seen}, {self.cloud.call('conductor', ListOperations())}"
                )
            time.sleep(pause)
            pause = min(pause * 1.1, RARER["longest"])
        return seen

    def migrations(self) -> list[Migration]:
        """Return its migrations that have not ended."""
        return self.cloud.call("conductor", ListMigrations(instance_uuid=self.uuid))


def delete(servers: Sequence[Server]) -> None:
    """Delete servers, and return when they are deleted."""
    for server in servers:
        server.order_delete()
    for server in servers:
        server.becomes("deleted")


# --- Checks -----------------------------------------------------------------------------------------------------------

#: An amount that a consumer holds of a host: the consumer, the host, the number of VCPU.
Holding = tuple[str, str, int]
#: A guest: its host, its instance, and its state.
Wanted = tuple[str, str, str]


def check(cloud: FaultyCloud, servers: Sequence[Server], seconds: float = TIDY) -> None:
    """Fail unless, soon, each server has exactly the guests and amounts of its state, and nothing else exists.

    An active server has one running guest. While its move waits to be confirmed, its source has a second, stopped
    guest; for it the migration holds the amounts that the server held before. No other consumer holds anything, and no
    operation is left.
    """
    end, pause = time.monotonic() + seconds, 0.1
    while True:
        try:
            _check_now(cloud, servers)
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(pause)
            pause = min(pause * 1.2, RARER["longest"])
        else:
            return


def _check_now(cloud: FaultyCloud, servers: Sequence[Server]) -> None:
    holdings, guests = expected(servers)
    assert sorted((each.host, each.instance_uuid, each.how) for each in cloud.guests()) == guests
    assert held(cloud) == holdings
    assert _pending(cloud) == []
    verdict = judge(cloud.database, {consumer for consumer, _, _ in holdings})
    assert verdict.clean, verdict
    used = sum(provider.used.get("VCPU", 0) for provider in cloud.call("placement", ListResourceProviders()))
    assert used == sum(vcpus for _, _, vcpus in holdings), (used, holdings)
    assert sorted(guest.claim_id for guest in cloud.guests()) == sorted(claim_id for _, claim_id, _ in claims(cloud))


def expected(servers: Sequence[Server]) -> tuple[list[Holding], list[Wanted]]:
    """Return the amounts and the guests that servers must have according to the conductors."""
    holdings: list[Holding] = []
    guests: list[Wanted] = []
    for server in servers:
        instance = server.show()
        if instance.state == "active":
            assert instance.migration_uuid is None, instance
            holdings.append((server.uuid, str(instance.host), server.vcpus))
            guests.append((str(instance.host), server.uuid, "running"))
        elif instance.state == "moved":
            [migration] = server.migrations()
            assert migration.uuid == instance.migration_uuid, (migration, instance)
            assert migration.destination_host == instance.host, (migration, instance)
            holdings.append((server.uuid, str(instance.host), server.becoming or server.vcpus))
            holdings.append((migration.uuid, str(migration.source_host), server.vcpus))
            guests.append((str(instance.host), server.uuid, "running"))
            guests.append((str(migration.source_host), server.uuid, "stopped"))
        else:
            assert instance.state in ("error", "shelved", "deleted"), instance
            assert instance.host is None or instance.state == "deleted", instance
    return sorted(holdings), sorted(guests)


def held(cloud: FaultyCloud) -> list[Holding]:
    """Return the VCPU that are held, by consumer and host."""

    def read(connection: Connection) -> list[Holding]:
        rows = connection.execute(
            select(consumers.c.uuid, resource_providers.c.name, allocations.c.used)
            .select_from(allocations)
            .outerjoin(consumers, consumers.c.id == allocations.c.consumer_id)
            .outerjoin(resource_providers, resource_providers.c.id == allocations.c.resource_provider_id)
            .where(allocations.c.resource_class_id == _VCPU)
        )
        return sorted((str(row.uuid), str(row.name), int(row.used)) for row in rows)

    return cloud.database.read(read)


def claims(cloud: FaultyCloud) -> list[tuple[str, str, str]]:
    """Return all existing claims, as (consumer, claim id, accepted by)."""

    def read(connection: Connection) -> list[tuple[str, str, str]]:
        table = consumers
        rows = connection.execute(
            select(table.c.uuid, table.c.claim_id, table.c.accepted_by).where(table.c.claim_id.is_not(None))
        )
        return sorted((row.uuid, row.claim_id, str(row.accepted_by)) for row in rows)

    return cloud.database.read(read)


def _pending(cloud: FaultyCloud) -> list[str]:
    """Return all work that is left, in any service."""
    pending = cloud.call("conductor", ListOperations())
    return [f"{each.kind} of {each.subject} at {each.step}: {each.reason}" for each in pending]
