"""Servers in all states, for tests in which the store loses their allocations, and what must work after a heal."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from oslo_config import cfg
from sqlalchemy import Connection, select

from harness.cloud import CloudSpec
from harness.commands import FLAVOR
from harness.waiting import wait_until
from moorage import ids
from moorage.cli.audit.collector import AuditCollector
from moorage.cli.audit.command import Examination, examine, heal
from moorage.cli.audit.healing import Healer
from moorage.cli.clients import Clients
from moorage.messages import (
    AttachResource,
    BuildInstances,
    ConfirmMigration,
    DeleteInstance,
    EvacuateInstance,
    GetAllocations,
    ListCells,
    ListOperationsInCell,
    MigrateInstance,
    PutAllocations,
    ResizeInstance,
    RevertMigration,
    SetHost,
    ShelveInstance,
    ShowInstance,
    UnshelveInstance,
)
from moorage.messages.wire import Message, R
from moorage.model import Flavor, Instance, RequestSpec, ServerGroup
from placement_store.schema import allocations, consumers
from support.operations.cloud import TroublesomeCloud
from support.operations.port_room import NICS, PORT, WIDTH, bandwidth
from support.placement_store.builders import Store

PLAN = CloudSpec(
    hosts=6,
    cells=2,
    settings={
        "rpc": {"call_timeout": 20.0},
        "conductor": {"report_interval": 1.0, "retry_backoff": 0.05, "delete_patience": 0.3},
        "compute": {"report_interval": 1.0, "stop_timeout": 0.1},
        "service": {"report_interval": 0.5},
        "fake_driver": {"vcpus": 32, **NICS},
    },
)
GROUP = ServerGroup(uuid=ids.derived("healing", "group"), policy="anti-affinity")
LARGE = Flavor(name="large", vcpus=4, memory_mb=4096)
KINDS = ("active", "grouped", "moved", "shelved", "attached", "evacuated", "leaving", "deleted")


@dataclass
class Servers:
    """A cloud with servers in all states, by their kind."""

    cloud: TroublesomeCloud
    uuids: dict[str, str] = field(default_factory=dict)
    #: Seconds between the two collections of an audit.
    settle: float = 0.3

    @cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration of the operator's commands; cached, because creating it takes as long as a command."""
        return self.cloud.configuration()

    def call(self, message: Message[R]) -> R:
        return self.cloud.client(message.topic).call(message)

    def order(self, kind: Any, uuid: str, **fields: Any) -> Any:
        return self.call(kind(request_id=ids.fresh(), instance_uuid=uuid, **fields))

    def show(self, uuid: str) -> Instance:
        return self.call(ShowInstance(instance_uuid=uuid))

    def becomes(self, uuid: str, *states: str) -> Instance:
        wait_until(lambda: self.show(uuid).state in states, f"{uuid} to be {states}", 60, 0.1)
        return self.show(uuid)

    def at_once(self, work: Callable[[str], object]) -> None:
        """Do the same with every server, with all servers at the same time."""
        with ThreadPoolExecutor(len(self.uuids)) as threads:
            list(threads.map(work, self.uuids.values()))

    def build(self, uuid: str, **fields: Any) -> str:
        spec = RequestSpec(project_id="p", user_id="u", flavor=FLAVOR, **fields)
        self.call(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,)))
        self.becomes(uuid, "active")
        return uuid

    def furnish(self) -> None:
        """Build one server of each kind, and bring it into the state of its name."""
        for kind in KINDS:
            self.uuids[kind] = ids.fresh()
        self.at_once(lambda uuid: self.build(uuid, server_group=GROUP if uuid == self.uuids["grouped"] else None))
        self.attach(self.uuids["attached"])
        self.order(ResizeInstance, self.uuids["moved"], flavor=LARGE)
        self.becomes(self.uuids["moved"], "moved")
        self.shelve(self.uuids["shelved"])
        self.evacuate(self.uuids["evacuated"])
        # Its host does not answer, so the resources that it may still use there stay held.
        leaving = self.uuids["leaving"]
        self.cloud.faults.silent.add((leaving, str(self.show(leaving).host)))
        for kind in ("leaving", "deleted"):
            self.delete(self.uuids[kind])

    def attach(self, uuid: str) -> None:
        self.order(AttachResource, uuid, suffix=PORT, group=bandwidth(WIDTH))
        wait_until(lambda: PORT in self.show(uuid).attached, "the port to be attached", 30, 0.05)

    def shelve(self, uuid: str) -> None:
        self.order(ShelveInstance, uuid)
        self.becomes(uuid, "shelved")

    def evacuate(self, uuid: str) -> None:
        host = str(self.show(uuid).host)
        self.cloud.faults.silent.add((uuid, host))
        self.call(SetHost(request_id=ids.fresh(), service_host=host, forced_down=True))
        self.order(EvacuateInstance, uuid)
        wait_until(lambda: self.show(uuid).host != host, f"{uuid} to be elsewhere", 30, 0.05)
        self.becomes(uuid, "active")
        self.call(SetHost(request_id=ids.fresh(), service_host=host, forced_down=False))

    def delete(self, uuid: str) -> None:
        self.order(DeleteInstance, uuid)
        self.becomes(uuid, "deleted")

    def _clients(self) -> closing[Clients]:
        return closing(Clients(self.conf, 20.0))

    # --- Auditing and healing -----------------------------------------------------------------------------------------

    def audit(self) -> Examination:
        with self._clients() as clients:
            return examine(lambda: AuditCollector(self.conf, clients).collect(), settle=self.settle)

    def findings(self) -> list[tuple[str, str, str]]:
        found = self.audit()
        assert found.unseen == {}
        return [(one.kind, one.subject, one.detail) for one in found.findings]

    def heal(self) -> dict[tuple[str, str, str], str]:
        """Heal everything; return the remaining findings with their reasons."""
        with self._clients() as clients:
            last, why = heal(Healer(clients), self.audit(), self.audit)
        return {one.key: why.get(one.key, one.detail) for one in last.findings}

    # --- Operations after a heal --------------------------------------------------------------------------------------

    def play(self) -> None:
        """Move, resize, shelve, unshelve and delete every server; afterwards nothing is held."""
        self.cloud.faults.silent.clear()
        if self.show(self.uuids["moved"]).state == "moved":
            self.end(self.uuids["moved"], RevertMigration)
        self.at_once(self.play_with)
        wait_until(lambda: not self.pending(), "all to be cleaned up", 60, 0.1)
        assert self.held() == {}
        assert self.findings() == []

    def play_with(self, uuid: str) -> None:
        if self.show(uuid).state == "shelved":
            self.order(UnshelveInstance, uuid)
            self.becomes(uuid, "active")
        if self.show(uuid).state != "active":
            return
        self.order(MigrateInstance, uuid)
        self.becomes(uuid, "moved")
        self.end(uuid, ConfirmMigration)
        self.order(ResizeInstance, uuid, flavor=LARGE)
        self.becomes(uuid, "moved")
        self.end(uuid, ConfirmMigration)
        self.shelve(uuid)
        assert self.call(GetAllocations(consumer_uuid=uuid)).allocations == {}
        self.order(UnshelveInstance, uuid)
        self.becomes(uuid, "active")
        held = self.call(GetAllocations(consumer_uuid=uuid)).allocations
        assert sum(part.resources.get("VCPU", 0) for part in held.values()) == LARGE.vcpus
        self.delete(uuid)

    def end(self, uuid: str, kind: Any) -> None:
        self.order(kind, uuid)
        self.becomes(uuid, "active")

    def held(self) -> dict[tuple[str, int, int], int]:
        """Return all amounts by the uuid of the consumer and the ids of provider and class."""
        columns = (consumers.c.uuid, allocations.c.resource_provider_id, allocations.c.resource_class_id)
        query = select(*columns, allocations.c.used).join_from(
            allocations, consumers, consumers.c.id == allocations.c.consumer_id, isouter=True
        )
        return {tuple(row[:3]): row.used for row in self.cloud.database.read(lambda c: c.execute(query).all())}

    def comes_up(self, name: str) -> None:
        wait_until(
            lambda: name in {host.service_host for host in self.cloud.hosts() if host.up}, f"{name} to be up", 30
        )

    def is_stuck(self, uuid: str) -> bool:
        """Return whether an operation on a server is retried without success."""
        return any(one.subject == uuid and one.reason is not None for one in self.pending())

    def waits_for(self, uuid: str) -> bool:
        """Return whether a former host of a server must still be cleaned up."""
        attempts = {attempt.attempt_id for attempt in self.show(uuid).attempts}
        return any(operation.subject in attempts for operation in self.pending())

    def pending(self) -> list[Any]:
        with self._clients() as clients:
            return [one for cell in self.call(ListCells()) for one in clients.cell(cell).call(ListOperationsInCell())]

    def hold(self, uuid: str, amounts: dict[str, dict[str, int]]) -> None:
        """Let another consumer hold amounts."""
        self.call(PutAllocations(request_id=ids.fresh(), consumer_uuid=uuid, wanted=Store.wanted(amounts)))

    def break_(self, work: Callable[[Connection], object]) -> None:
        self.cloud.database.write(work)
