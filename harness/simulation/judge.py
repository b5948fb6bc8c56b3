"""The judge of a history: it waits until all is quiet, and compares the cloud with the answers."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.simulation import queries
from harness.simulation.clients.answers import ACCEPTED, UNKNOWN, Broken, Told
from harness.simulation.clients.callers import Callers
from harness.simulation.clients.writers import LICENCE, LICENCES
from harness.simulation.cloud import POOL, WHOLE, SimulatedCloud, agent_of, uses_pool
from harness.simulation.commit_checks import CommitChecks
from harness.simulation.guest_checks import GuestChecks, amounts_of
from harness.simulation.machine import store
from harness.simulation.machine.kernel import KERNEL
from harness.simulation.story import ALL_HOSTS
from moorage import errors, ids, metrics
from moorage.cli.audit.findings import Finding
from moorage.messages import (
    AuditStore,
    DeleteAllocations,
    ListHosts,
    ListInstances,
    ListMigrations,
    ListOperations,
    SelectDestinations,
    SetHost,
    ShowOperation,
)
from moorage.messages.wire import Message, R
from moorage.model import Flavor, HostState, Instance, Migration, RequestSpec, Resources

#: Virtual seconds after which no work may be under way: more than all time-outs of a cloud, one after another.
_QUIET_WITHIN = 1200.0
_LOOK = 1.0
_AT_REST = ("active", "moved", "shelved", "error", "deleted")


class Judge:
    """Judges one history."""

    def __init__(self, cloud: SimulatedCloud, callers: Callers) -> None:
        self._cloud = cloud
        self._callers = callers
        self._file = sqlite3.Connection(f"file:{store.place(cloud.database.url.database)}?mode=ro", uri=True)
        for cell in cloud.cell_names:
            guests = store.place(str(cloud.guests_file(cell)))
            self._file.execute(f"ATTACH 'file:{guests}?mode=ro' AS {cell}")
        self.checks = CommitChecks(cloud, callers, self._file)
        self._drifted = _drifted()

    def check(self) -> None:
        """Raise the first finding so far, if any.

        :raises Broken: a promise is broken.
        """
        if self._callers.broken:
            raise Broken(self._callers.broken[0])

    # --- When all is quiet --------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring all hosts up, and wait until no work is under way.

        :raises Broken: work is under way for ever.
        """
        end = KERNEL.now + _QUIET_WITHIN
        # The databases are checked first, because calls over the bus cost more.
        while True:
            may_rest = self._callers.are_answered and not self._unfinished()
            if may_rest and not self._not_at_rest():
                return
            self.check()
            if KERNEL.now > end:
                raise Broken(
                    f"promise 10: this goes on for ever: {self._not_at_rest() + self._unfinished() or 'callers wait'}"
                )
            if may_rest:
                self._restore_layouts()
            KERNEL.sleep(_LOOK)

    def _restore_layouts(self) -> None:
        """Restart agents with flat hosts if their guests do not fit into nested ones, as an operator must do.

        The amount that a consumer holds of a provider moves undivided to one place of the new layout. So a reshape may
        be refused for ever, and the host stays down.
        """
        parts: dict[tuple[str, str], list[int]] = defaultdict(list)
        for host, name, amount in self._file.execute(queries.PARTS_OF_FLAT_HOSTS):
            parts[host, name].append(amount)
        for (host, name), amounts in parts.items():
            agent = agent_of(host)
            if self._cloud.layouts[agent] == "nested" and not _fit_into_two(amounts, WHOLE[name] // 2):
                self._cloud.reshape(agent)
                # An agent that is down gets the layout when it restarts.
                if agent in self._cloud.services:
                    self._cloud.crash(agent)
                    self._cloud.restart(agent)

    def _unfinished(self) -> list[str]:
        """Return the work under way according to the databases; undo the orders of operators about hosts."""
        for (host,) in self._file.execute("SELECT service_host FROM hosts WHERE forced_down OR disabled").fetchall():
            order = SetHost(request_id=ids.fresh(), service_host=host, forced_down=False, disabled=False)
            self._ask("scheduler", order)
        for uuid in {uuid for (uuid,) in self._file.execute(queries.CHANGED_INVENTORIES).fetchall()}:
            self._callers.operators.restore_inventories(uuid)
        found = self._file.execute(queries.UNFINISHED).fetchall()
        return [f"{what} {uuid}" for what, uuid in found if uuid not in self._callers.others]

    def _not_at_rest(self) -> list[str]:
        """Return the operations and hosts that are not at rest according to the services."""
        pending = [
            f"{one.kind} of {one.subject} at {one.step}, try {one.tries}: {one.reason}"
            for one in self._ask("conductor", ListOperations())
        ]
        up = {host.service_host for host in self._ask("scheduler", ListHosts()) if host.up}
        return pending + [f"{host} is down" for host in ALL_HOSTS if host not in up]

    def verdict(self) -> None:
        """Compare the state of the cloud with the answers to the callers.

        :raises Broken: a promise is broken.
        """
        self.check()
        instances = self._ask("conductor", ListInstances(deleted=True))
        self._callers.answers.update(f"ended {one.state}" for one in instances)
        self._callers.answers["ended nested"] += self._file.execute(queries.NESTED_HOSTS).fetchone()[0]
        self._check_states({one.uuid: one for one in instances})
        hosts = {one.service_host: one for one in self._ask("scheduler", ListHosts())}
        migrations = {one.uuid: one for one in self._ask("conductor", ListMigrations(ended=True))}
        wanted = self._wanted(instances, hosts, migrations)
        found = self._held()
        self._check_licences(instances, found)
        _compare("promise 3: allocations", found, wanted)
        GuestChecks(self._cloud, lambda message: self._ask("conductor", message)).check(instances, migrations)
        if findings := [*self._findings(), *self._callers.zones.missing_providers()]:
            raise Broken(f"promise 3: an audit finds {findings}")
        self._probe()
        self._check_views()
        self.check()

    def _check_views(self) -> None:
        """Check that the change feed has brought schedulers all changes, so that no comparison had to find any."""
        if (drifted := _drifted() - self._drifted) and not store.FAULTS.feed_numbers.were_late:
            raise Broken(f"promise 8: comparisons have found {drifted:.0f} rows that the change feed had missed")

    def _findings(self) -> Iterator[Finding]:
        """Yield what an audit finds, except for what an operator has allowed."""
        operators = self._callers.operators
        for finding in operators.audit().findings:
            if finding.kind != "over-committed" or not operators.have_over_committed:
                yield finding

    def _check_states(self, found: Mapping[str, Instance]) -> None:
        for uuid, told in self._callers.told.items():
            if (instance := found.get(uuid)) is not None:
                for promise, wrong in (*_faults_of(instance, told), *self._wrong_groups(instance, told)):
                    raise Broken(f"promise {promise}: {uuid} is {instance.state}, {wrong}")
            elif told.was(["build"], ACCEPTED) and not (
                self._cloud.forgets and told.was(["delete"], ACCEPTED, UNKNOWN)
            ):
                raise Broken(f"promise 4: the order to build {uuid} was accepted, and it does not exist")

    def _check_licences(self, instances: Sequence[Instance], found: dict[object, object]) -> None:
        """Check the licences that others have written to servers, and remove them from the allocations found."""
        for instance in instances:
            if instance.state == "deleted" or not (told := self._callers.told[instance.uuid]).licences:
                continue
            held: Any = found.pop((instance.uuid, LICENCES), {})
            # A build that fails on every host loses them, and names them.
            are_named = instance.state == "error" and LICENCE in (instance.reason or "")
            if held.get(LICENCE, 0) not in (possible := told.possible_licences(are_named=are_named)):
                raise Broken(f"promise 7: {instance.uuid} is {instance.state} and holds {held}, of {possible} licences")

    def _wrong_groups(self, instance: Instance, told: Told) -> Iterator[tuple[int, str]]:
        """Yield the resource groups that an instance lacks or must not have, each with the promise that is broken."""
        if instance.state == "deleted":
            return
        done: set[tuple[str, str]] = set()
        possible: set[tuple[str, str]] = set()
        for order in told.attached:
            state = None if order.operation is None else self._state_of(order.operation)
            if state == "done":
                done.add((order.kind, order.suffix))
            elif order.outcome == UNKNOWN or (order.outcome == ACCEPTED and state is None):
                possible.add((order.kind, order.suffix))
        possible |= done
        for order in told.attached:
            has = instance.attached.get(order.suffix)
            if has is not None and has.resources != order.resources:
                yield 11, f"and its group {order.suffix} has {has.resources}, of {order.resources}"
            if has is not None and (("attach", order.suffix) not in possible or ("detach", order.suffix) in done):
                yield 11, f"and has group {order.suffix}, which nobody wanted, or which was detached"
            if has is None and ("attach", order.suffix) in done and ("detach", order.suffix) not in possible:
                yield 4, f"and has no group {order.suffix}, though it was attached"

    def _state_of(self, operation: str) -> str | None:
        """Return the state of an operation; null if it is forgotten."""
        try:
            return self._ask("conductor", ShowOperation(uuid=operation)).state
        except errors.NotFound:
            if not self._cloud.forgets:
                raise
            return None

    def _wanted(
        self, instances: Sequence[Instance], hosts: Mapping[str, HostState], migrations: Mapping[str, Migration]
    ) -> dict[object, object]:
        """Return the amounts that each consumer must hold of each host."""
        held: dict[object, Counter[str]] = defaultdict(Counter)

        def hold(consumer: str, host: str, amounts: Resources) -> None:
            held[consumer, hosts[host].compute_node_uuid].update(amounts)
            if uses_pool(host):
                disk = held[consumer, hosts[host].compute_node_uuid].pop("DISK_GB")
                # If both hosts of a move use the pool, the instance holds the larger amount of it, and its migration
                # none.
                uuid = instance.uuid
                held[uuid, POOL]["DISK_GB"] = max(disk, held[uuid, POOL]["DISK_GB"])

        for instance in instances:
            if instance.host is None or instance.state in ("deleted", "shelved"):
                continue
            flavor = instance.flavor
            if instance.state == "moved" and instance.migration_uuid is not None:
                migration = migrations[instance.migration_uuid]
                source = str(migration.source_host)
                hold(migration.uuid, source, _amounts(flavor, instance))
                flavor = self._callers.sizes.get(migration.uuid, flavor)
            hold(instance.uuid, instance.host, _amounts(flavor, instance))
        return {key: dict(amounts) for key, amounts in held.items()}

    def _held(self) -> dict[object, object]:
        """Return the amounts that each consumer holds of each host, summed over the providers of the host."""
        root_of = dict(self._file.execute(queries.ROOTS))
        holders = self._ask("placement", AuditStore(amounts=True)).holders
        # A host may become nested or flat during the call: include the providers from before and after it.
        root_of |= dict(self._file.execute(queries.ROOTS))
        held: dict[object, Counter[str]] = defaultdict(Counter)
        for one in holders:
            if one.uuid not in self._callers.others:
                for provider, amounts in one.held.items():
                    held[one.uuid, root_of[provider]].update(amounts)
        return {key: dict(amounts) for key, amounts in held.items()}

    def _probe(self) -> None:
        """Request the most that any provider has left, and more than that: the results are known."""
        most = self._most_left()
        while (fault := self._fault_of_decisions(most)) is not None:
            # A host may become nested or flat during the requests, which changes what its providers have left.
            before, most = most, self._most_left()
            if most == before:
                raise Broken(fault)

    def _most_left(self) -> int:
        free = self._file.execute("SELECT total - used FROM inventories WHERE resource_class_id = 0")
        return max((row[0] for row in free), default=0)

    def _fault_of_decisions(self, most: int) -> str | None:
        """Return why decisions on ``most`` VCPU and on more are wrong, if the most that a provider has left is that."""
        for vcpus, fits in ((most, True), (most + 1, False)):
            if vcpus <= 0:
                continue
            uuid = ids.fresh()
            self._callers.others.add(uuid)
            spec = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=vcpus, memory_mb=1, root_gb=0))
            message = SelectDestinations(
                request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,), num_alternates=0
            )
            try:
                self._ask("scheduler", message)
            except errors.NoValidHost as refusal:
                if refusal.data.get("explanation") is None:
                    raise Broken(f"promise 9: this is not explained: {refusal}") from None
                if fits:
                    return f"promise 8: a host has {vcpus} VCPU left, and yet: {refusal}"
                continue
            self._ask("placement", DeleteAllocations(request_id=ids.fresh(), consumer_uuid=uuid))
            if not fits:
                return f"promise 1: no host has {vcpus} VCPU left, and yet they are claimed"
        return None

    def _ask(self, topic: str, message: Message[R]) -> R:
        return self._callers.call(topic, message)


def _drifted() -> float:
    """Return how many rows comparisons have found that the change feed had missed, in all schedulers."""
    return metrics.REGISTRY.get_sample_value("moorage_view_drift_total") or 0.0


def _fit_into_two(amounts: Sequence[int], size: int) -> bool:
    """Return whether undivided amounts fit into two places of a size."""
    sums = {0}
    for amount in amounts:
        sums |= {reached + amount for reached in sums}
    return any(sum(amounts) - size <= reached <= size for reached in sums)


def _faults_of(instance: Instance, told: Told) -> Iterator[tuple[int, str]]:
    """Yield the errors in the final state of an instance, each with the promise that is broken."""
    state, possible = instance.state, (ACCEPTED, UNKNOWN)
    if state not in _AT_REST:
        yield 10, "and remains so"
    if state != "deleted" and told.was(["delete"], ACCEPTED):
        yield 4, "though the order to delete it was accepted"
    if state == "deleted" and not told.was(["delete"], *possible):
        yield 4, "and nobody wanted that"
    if state == "moved" and not told.was(["migrate", "resize"], *possible):
        yield 11, "and nobody wanted that"
    if state == "shelved" and not told.was(["shelve"], *possible):
        yield 11, "and nobody wanted that"
    if state == "error" and not instance.reason:
        yield 9, "and has no reason"
    if instance.flavor not in told.flavors:
        yield 11, f"and has flavor {instance.flavor}, which nobody wanted"


def _compare(what: str, found: Mapping[object, object], wanted: Mapping[object, object]) -> None:
    for key in sorted(found.keys() | wanted.keys(), key=str):
        if found.get(key) != wanted.get(key):
            raise Broken(f"{what} of {key} are {found.get(key)}, and should be {wanted.get(key)}")


def _amounts(flavor: Flavor, instance: Instance) -> Resources:
    """Return the amounts that an instance of a flavor holds, with its attached groups."""
    amounts = Counter(amounts_of(flavor))
    for group in instance.attached.values():
        amounts.update(group.resources)
    return dict(amounts)
