"""The operators of a simulated cloud: they set, delete and audit what it has, while servers are built and moved."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from harness.cloud import RunningCloud
from harness.simulation.clients.requests import Methods, Requests
from harness.simulation.clients.zones import VIEW_AGE
from harness.simulation.machine.kernel import KERNEL
from harness.simulation.story import ALL_HOSTS, Action
from moorage import errors, ids
from moorage.cli.audit.collector import AuditCollector
from moorage.cli.audit.command import Examination, examine, heal
from moorage.cli.audit.healing import Healer
from moorage.messages import DeleteHost, DeleteServerGroup, ListProviderTrees, SetHost, SetInventory
from moorage.model import Cell, ResourceProvider

#: Virtual seconds between the two collections of an audit.
_SETTLE = 2.0


@dataclass(frozen=True)
class OperatorClients:
    """The clients of an audit, by the topics and cells that it asks."""

    cloud: RunningCloud

    def topic(self, topic: str, server: str | None = None) -> Any:
        """Return a client of a topic, or of one of its servers."""
        return self.cloud.client(topic, 20.0, server)

    def cell(self, cell: Cell) -> Any:
        """Return a client of a cell's conductors: all cells share one bus."""
        return self.topic(f"conductor.{cell.uuid}")


class Operators:
    """All operators of a cloud."""

    def __init__(self, cloud: RunningCloud, callers: Requests) -> None:
        self._configuration = cloud.configuration
        self._clients: Any = OperatorClients(cloud)
        self._callers = callers
        #: The time at which the order to disable a host was answered, for the hosts that nobody has enabled since.
        self._disabled: dict[str, float] = {}
        #: The number of orders to enable or delete a host, by host.
        self._enabled: dict[str, int] = {}
        #: The hosts that somebody has ordered to delete.
        self.deleted: set[str] = set()
        #: Whether somebody has let a host be over-committed; it may still be so when nothing may be over-committed.
        self.have_over_committed = False
        self.methods: Methods = {
            "disable": self._set_host,
            "enable": self._set_host,
            "delete host": self._delete_host,
            "reserve": self._reserve,
            "set ratio": self._set_ratio,
            "delete group": self._delete_group,
            "heal": self._heal,
        }

    def closed_hosts(self) -> Mapping[str, float]:
        """Return the hosts that no decision may choose that begins now, each with the time since it is so."""
        return {host: since for host, since in self._disabled.items() if KERNEL.now > since + VIEW_AGE}

    def is_closed_since(self, host: str, closed: Mapping[str, float]) -> bool:
        """Return whether a host that was closed is so without interruption."""
        return host in closed and self._disabled.get(host) == closed[host]

    def audit(self) -> Examination:
        """Examine the cloud, as `moorage audit` does."""
        return examine(AuditCollector(self._configuration(), self._clients).collect, _SETTLE, KERNEL.sleep)

    # --- Actions ------------------------------------------------------------------------------------------------------

    def _set_host(self, action: Action) -> None:
        host, disabled = self._callers.host_of(action), action.kind == "disable"
        message = SetHost(request_id=self._callers.request_id(action), service_host=host, disabled=disabled)
        self._callers.again(lambda: self._disable(message) if disabled else self._enable(message))

    def _disable(self, message: SetHost) -> None:
        host = message.service_host
        before = self._enabled.get(host, 0)
        is_first = self._callers.is_first(message)
        self._callers.send("scheduler", message)
        if is_first and self._enabled.get(host, 0) == before:
            self._disabled[host] = KERNEL.now

    def _enable(self, message: SetHost | DeleteHost) -> None:
        host = message.service_host
        self._enabled[host] = self._enabled.get(host, 0) + 1
        self._disabled.pop(host, None)
        try:
            self._callers.send("scheduler", message)
        finally:
            # A host that was disabled in the meantime may have been so before.
            self._enabled[host] += 1
            self._disabled.pop(host, None)

    def _delete_host(self, action: Action) -> None:
        """Delete a host whose agent may run: it is forced down before, or down already, or the order is refused."""
        start = ALL_HOSTS.index(self._callers.host_of(action))
        # An operator first looks for a host without servers; there may be one by then.
        hosts = [*ALL_HOSTS[start:], *ALL_HOSTS[:start]]
        host = next((one for one in hosts if not self._is_used(one)), hosts[0])
        if action.choice % 4:
            self._callers.forced_down = True
            down = SetHost(request_id=self._callers.request_id(action, "down"), service_host=host, forced_down=True)
            self._callers.call("scheduler", down)
        self.deleted.add(host)
        message = DeleteHost(request_id=self._callers.request_id(action), service_host=host)
        self._callers.again(lambda: self._enable(message))

    def _reserve(self, action: Action) -> None:
        """Reserve an amount of a host for the host itself, or no longer: less than is used may be left for guests."""
        name = ("VCPU", "MEMORY_MB", "VGPU")[action.choice // 64 % 3]
        for provider in self._providers_of(self._callers.host_of(action)):
            if (inventory := provider.inventories.get(name)) is not None:
                self._set_inventory(provider, name, reserved=inventory.total * (action.choice // 16 % 4) // 4)

    def _set_ratio(self, action: Action) -> None:
        """Let a host's processors or memory be over-committed, or not used in full; its guests stay."""
        name, ratio = ("VCPU", "MEMORY_MB")[action.choice // 64 % 2], (0.5, 1.0, 1.5, 2.0)[action.choice // 16 % 4]
        self.have_over_committed = self.have_over_committed or ratio > 1.0
        for provider in self._providers_of(self._callers.host_of(action)):
            if name in provider.inventories:
                self._set_inventory(provider, name, allocation_ratio=ratio)

    def restore_inventories(self, uuid: str) -> None:
        """Reserve nothing of a provider any more and over-commit nothing, unless it is changed at the same time."""
        for provider in self._callers.call("placement", ListProviderTrees(uuids=(uuid,))):
            for name, inventory in provider.inventories.items():
                if inventory.reserved or inventory.allocation_ratio != 1.0:
                    with suppress(errors.MoorageError):
                        self._set_inventory(provider, name, reserved=0, allocation_ratio=1.0)

    def _providers_of(self, host: str) -> list[ResourceProvider]:
        root = ids.derived("fake-node", host.partition("-")[0], host)
        return self._callers.call("placement", ListProviderTrees(uuids=(root,)))

    def _is_used(self, host: str) -> bool:
        return any(any(provider.used.values()) for provider in self._providers_of(host))

    def _set_inventory(self, provider: ResourceProvider, name: str, **fields: float) -> None:
        message = SetInventory(
            request_id=ids.fresh(),
            uuid=provider.uuid,
            resource_class=name,
            inventory=structs.replace(provider.inventories[name], **fields),
            generation=provider.generation,
        )
        self._callers.call("placement", message)

    def _delete_group(self, action: Action) -> None:
        """Delete a server group: refused while it has members; the next build that names it makes it again."""
        uuids = [*self._callers.groups]
        message = DeleteServerGroup(request_id=self._callers.request_id(action), uuid=uuids[action.choice % len(uuids)])
        self._callers.again(lambda: self._callers.send("placement", message))

    def _heal(self, _action: Action) -> None:
        """Audit the cloud and heal what is found, as `moorage audit --heal --apply` does."""
        try:
            heal(Healer(self._clients), self.audit(), self.audit)
        except errors.Unavailable as fault:
            KERNEL.note(f"heal: {fault}")
