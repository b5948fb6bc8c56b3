"""A whole cloud in which servers are moved, resized, shelved and deleted, and the state that must follow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select

from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import (
    BuildInstances,
    ConfirmMigration,
    DeleteInstance,
    GetResourceProvider,
    ListHosts,
    ListInstances,
    LiveMigrateInstance,
    MigrateInstance,
    Ordered,
    ResizeInstance,
    RevertMigration,
    SetHost,
    ShowInstance,
    ShowMigration,
)
from moorage.messages.wire import Mutation, R
from moorage.model import Flavor, Guest, Instance, Migration, RequestSpec
from placement_store.schema import allocations, consumers, resource_providers
from support.operations.instances import guests
from support.operations.record_peek import RecordPeek

SMALL = Flavor(vcpus=2, memory_mb=4096, root_gb=20)
LARGE = Flavor(vcpus=4, memory_mb=8192, root_gb=20)
SPEC = RequestSpec(project_id="p", user_id="u", flavor=SMALL)
HOSTS = tuple(f"cell1-host-{number:04d}" for number in (1, 2, 3))


def plan(
    hosts: int = 3,
    conductor: Mapping[str, Any] | None = None,
    database: str | None = None,
    transport: str | None = None,
    **fake_driver: Any,
) -> CloudSpec:
    """Return a small cloud with short time-outs."""
    settings: Mapping[str, Mapping[str, Any]] = {
        "rpc": {"call_timeout": 10.0},
        "conductor": {"report_interval": 0.2, "retry_backoff": 0.1, "delete_patience": 1.0, **(conductor or {})},
        "compute": {"report_interval": 0.2, "stop_timeout": 0.1},
        "fake_driver": fake_driver,
    }
    return CloudSpec(hosts=hosts, settings=settings, database_connection=database, transport_url=transport)


@dataclass
class MoveScenario:
    """A running cloud, and its operations."""

    cloud: RunningCloud

    def order(self, message: Mutation[R]) -> R:
        return self.cloud.client("conductor").call(message)

    def build(self, host: str | None = None) -> str:
        """Build an instance on this host or any; return it when it is active."""
        uuid = ids.fresh()
        spec = SPEC if host is None else structs.replace(SPEC, force_hosts=(host,))
        self.order(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,)))
        self.becomes(uuid, "active")
        return uuid

    def show(self, uuid: str) -> Instance:
        return self.cloud.client("conductor").call(ShowInstance(instance_uuid=uuid))

    def migration(self, ordered: Ordered) -> Migration:
        return self.cloud.client("conductor").call(ShowMigration(uuid=ordered.migration_uuid))

    def becomes(self, uuid: str, state: str) -> Instance:
        peek = RecordPeek(self.cloud.database, uuid)
        try:
            wait_until(lambda: peek.may_be(state) and self.show(uuid).state == state, state)
        except TimeoutError:
            pytest.fail(f"{state}: {self.show(uuid)}")
        return self.show(uuid)

    def ends(self, ordered: Ordered, state: str) -> Migration:
        try:
            wait_until(lambda: self.migration(ordered).state == state, state)
        except TimeoutError:
            pytest.fail(f"{state}: {self.migration(ordered)}")
        return self.migration(ordered)

    def confirm(self, uuid: str) -> None:
        self.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid))

    def revert(self, uuid: str) -> None:
        self.order(RevertMigration(request_id=ids.fresh(), instance_uuid=uuid))

    def delete(self, uuid: str) -> None:
        self.order(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))

    def migrate(self, uuid: str, host: str | None = None, *, drop_extras: bool = False) -> Ordered:
        message = MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host, drop_extras=drop_extras)
        return self.order(message)

    def resize(self, uuid: str, host: str | None = None, flavor: Flavor = LARGE) -> Ordered:
        return self.order(ResizeInstance(request_id=ids.fresh(), instance_uuid=uuid, flavor=flavor, host=host))

    def live_migrate(self, uuid: str, host: str | None = None) -> Ordered:
        return self.order(LiveMigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host))

    def held(self) -> dict[str, set[str]]:
        """Return the names of the hosts of which each consumer holds something."""
        names = {host.compute_node_uuid: host.service_host for host in self.cloud.client("scheduler").call(ListHosts())}
        # One statement shows one moment: a consumer may hold something at this moment and nothing at the next.
        provider = resource_providers.c.uuid.label("provider")
        joined = allocations.join(consumers, allocations.c.consumer_id == consumers.c.id).join(
            resource_providers, allocations.c.resource_provider_id == resource_providers.c.id
        )
        statement = select(consumers.c.uuid, provider).select_from(joined)
        found: dict[str, set[str]] = {}
        for row in self.cloud.database.read(lambda connection: connection.execute(statement).all()):
            found.setdefault(row.uuid, set()).add(names[row.provider])
        return found

    def used(self, host: str) -> int:
        """Return the VCPU of a host that are in use."""
        [node] = [each for each in self.cloud.client("scheduler").call(ListHosts()) if each.service_host == host]
        provider = self.cloud.client("placement").call(GetResourceProvider(uuid=node.compute_node_uuid))
        return provider.used["VCPU"]

    def guests(self) -> list[Guest]:
        return guests(self.cloud)

    def settles(self, uuid: str, host: str) -> Instance:
        """Wait until an instance runs only on this host, and holds something only there."""
        wait_until(lambda: self.held().get(uuid) == {host}, f"it to hold {host} alone")
        wait_until(
            lambda: [guest.host for guest in self.guests() if guest.instance_uuid == uuid] == [host], "one guest"
        )
        instance = self.show(uuid)
        assert (instance.state, instance.host, instance.migration_uuid) == ("active", host, None)
        return instance

    def clear(self) -> None:
        """Delete all servers, and bring all hosts up."""
        for instance in self.cloud.client("conductor").call(ListInstances()):
            self.delete(instance.uuid)
            self.becomes(instance.uuid, "deleted")
        for host in HOSTS:
            self.force_down(host, False)

    def force_down(self, host: str, down: bool) -> None:
        message = SetHost(request_id=ids.fresh(), service_host=host, forced_down=down)
        self.cloud.client("scheduler").call(message)
