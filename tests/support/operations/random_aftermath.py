"""Check an idle cloud: exactly the instances that should have allocations and guests have them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from harness.waiting import wait_until
from moorage import errors, ids
from moorage.cli.audit import findings
from moorage.cli.audit.collector import AuditCollector
from moorage.cli.audit.command import examine
from moorage.cli.clients import Clients
from moorage.messages import (
    AuditStore,
    DeleteInstance,
    GetAllocations,
    ListHosts,
    ListInstances,
    ListMigrations,
    ListOperations,
    ListResourceProviders,
    SetHost,
)
from moorage.model import Flavor, HostState, Instance, Resources
from support.operations.cloud import TroublesomeCloud
from support.operations.instances import guests
from support.operations.room import until_answered

_SECONDS = 240.0


def settle(cloud: TroublesomeCloud) -> None:
    """Wait until no operation is under way and no residue is left.

    :raises TimeoutError: an operation is under way for ever.
    """
    conductor, placement = cloud.client("conductor"), cloud.client("placement")

    def going_on() -> list[object]:
        pending: list[object] = [
            (one.kind, one.subject, one.step, one.tries, one.reason)
            for one in until_answered(lambda: conductor.call(ListOperations()))
        ]
        holders = placement.call(AuditStore()).holders
        return pending + [holder.uuid for holder in holders if holder.consumer_type == "RESIDUE"]

    # Twice: an operation that is handed from one conductor to the other is on neither list for a moment.
    wait_until(lambda: not going_on() and not going_on(), going_on, _SECONDS, interval=0.05)


@dataclass(frozen=True)
class Aftermath:
    """The state of a cloud after its actors have ended."""

    cloud: TroublesomeCloud
    #: Providers that belong to no host, from which others write to the consumers of servers.
    licences: Collection[str] = ()
    #: The flavor of each resize, by the uuid of its migration.
    sizes: Mapping[str, Flavor] = field(default_factory=dict)
    #: Consumers that are not servers.
    others: Collection[str] = ()

    def settle(self) -> None:
        """Bring all hosts up, and wait until no operation is under way and no residue is left.

        :raises TimeoutError: an operation is under way for ever.
        """
        scheduler = self.cloud.client("scheduler")
        for host in until_answered(lambda: scheduler.call(ListHosts())):
            message = SetHost(request_id=ids.fresh(), service_host=host.service_host, forced_down=False)
            until_answered(partial(scheduler.call, message))

        settle(self.cloud)

    def findings(self) -> list[str]:
        """Return all findings of an audit, allocations that differ from the servers' states, and unwanted guests."""
        with closing(Clients(self.cloud.configuration(), 60.0)) as clients:
            found, unseen, _state = examine(
                lambda: AuditCollector(self.cloud.configuration(), clients).collect(), settle=2.0
            )
        wrong = [f"{finding.kind} {finding.subject}: {finding.detail}" for finding in found]
        wrong += [f"not seen: {part}: {why}" for part, why in unseen.items()]
        conductor = self.cloud.client("conductor")
        instances = conductor.call(ListInstances())
        hosts = {host.service_host: host for host in self.cloud.client("scheduler").call(ListHosts())}
        wanted, expected = self._wanted(instances, hosts)
        held = self._held()
        wrong += [
            f"{uuid} holds {held.get(uuid)}, not {wanted.get(uuid)}"
            for uuid in sorted(held.keys() | wanted.keys())
            if held.get(uuid) != wanted.get(uuid)
        ]
        there = self._guests()
        wrong += [
            f"guests on {one} are {there[one]}, not {expected[one]}"
            for one in there.keys() | expected.keys()
            if there[one] != expected[one]
        ]
        wrong += [f"{one.uuid} is {one.state}: {one.reason}" for one in instances if one.state not in _QUIET]
        return wrong

    def _wanted(
        self, instances: Sequence[Instance], hosts: Mapping[str, HostState]
    ) -> tuple[dict[str, dict[str, Resources]], Counter[tuple[str, str]]]:
        """Return the amounts that each consumer must hold of each host, and the number of guests by host and server."""
        held: dict[str, dict[str, Resources]] = {}
        guests: Counter[tuple[str, str]] = Counter()
        migrations = {one.uuid: one for one in self.cloud.client("conductor").call(ListMigrations(ended=True))}
        for instance in instances:
            if instance.host is None:
                continue
            flavor = instance.flavor
            if instance.state == "moved" and instance.migration_uuid is not None:
                migration = migrations[instance.migration_uuid]
                source = str(migration.source_host)
                held[migration.uuid] = {hosts[source].compute_node_uuid: _amounts(flavor, instance)}
                guests[source, instance.uuid] += 1
                flavor = self.sizes.get(migration.uuid, flavor)
            held[instance.uuid] = {hosts[instance.host].compute_node_uuid: _amounts(flavor, instance)}
            guests[instance.host, instance.uuid] += 1
        return held, guests

    def _held(self) -> dict[str, dict[str, Resources]]:
        """Return the amounts that each consumer holds of each host, summed over all providers of its tree."""
        placement = self.cloud.client("placement")
        roots = {one.uuid: one.root_provider_uuid for one in placement.call(ListResourceProviders())}
        found: dict[str, dict[str, Resources]] = {}
        for holder in placement.call(AuditStore()).holders:
            if holder.uuid in self.others:
                continue
            try:
                allocations = placement.call(GetAllocations(consumer_uuid=str(holder.uuid))).allocations
            except errors.ConsumerNotFound:
                continue  # it was released in the meantime
            # Foreign allocations are left out.
            of_hosts: dict[str, Counter[str]] = {}
            for at in allocations.keys() - set(self.licences):
                of_hosts.setdefault(roots[at], Counter()).update(allocations[at].resources)
            if of_hosts:
                found[str(holder.uuid)] = {at: dict(amounts) for at, amounts in of_hosts.items()}
        return found

    def _guests(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for cell in self.cloud.cell_names:
            found.update((guest.host, guest.instance_uuid) for guest in guests(self.cloud, cell))
        return found

    def clear(self) -> list[str]:
        """Delete all servers; return the consumers that still hold something."""
        for instance in self.cloud.client("conductor").call(ListInstances()):
            message = DeleteInstance(request_id=ids.fresh(), instance_uuid=instance.uuid)
            until_answered(partial(self.cloud.client("conductor").call, message))
        self.settle()
        holders = self.cloud.client("placement").call(AuditStore()).holders
        return [str(holder) for holder in holders if holder.uuid not in self.others]


_QUIET = ("active", "moved", "shelved", "error")


def _amounts(flavor: Flavor, instance: Instance) -> Resources:
    """Return the amounts that an instance of this size holds of its host, with its attached groups."""
    amounts = Counter({"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.root_gb})
    for one in instance.attached.values():
        amounts.update(one.resources)
    return dict(amounts)


def drifts(cloud: TroublesomeCloud) -> list[findings.Finding]:
    """Return the contradictions within the store."""
    store = cloud.client("placement").call(AuditStore())
    return [
        one for one in findings.judge(findings.CloudState(store=store)) if one.kind in ("over-committed", "drifted")
    ]
