"""Three hosts of a cloud on which one server at a time is built, gets its operation and its trouble, and is checked."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec import structs
from sqlalchemy import or_, select

from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Client
from moorage.messages import (
    BuildInstances,
    CreateResourceProvider,
    DeleteAllocations,
    EnsureResourceClass,
    GetAllocations,
    GetResourceProvider,
    ListHosts,
    ListMigrations,
    ListOperations,
    ListResourceProviders,
    PutAllocations,
    SetAggregates,
    SetHost,
    SetInventories,
    ShowInstance,
    ShowMigration,
)
from moorage.messages.wire import Message, Mutation, R
from moorage.model import (
    Flavor,
    HostState,
    Instance,
    Inventory,
    Migration,
    RequestSpec,
    ResourceGroup,
)
from placement_store.schema import allocations, consumers, resource_classes, resource_providers
from support.operations.cloud import Troubles, TroublesomeCloud, roles
from support.operations.lost_patience import run_out
from support.operations.record_peek import RecordPeek
from support.placement_store.builders import Store

SMALL = Flavor(name="small", vcpus=2, memory_mb=4096, root_gb=20)
LARGE = Flavor(name="large", vcpus=4, memory_mb=8192, root_gb=20)
SPEC = RequestSpec(project_id="p", user_id="u", flavor=SMALL)
LICENCE = "CUSTOM_LICENCE"
#: Seconds to wait for a condition, and seconds that a server must stay in an unexpected state, with no operation under
#: way, until that state counts as final.
SECONDS, STILL = 180.0, 20.0


@dataclass(frozen=True)
class Seen:
    """The state of a server: its state and host, its last migration's state, the allocations for it, and operations."""

    server: str
    migration: str
    holds: str
    pending: tuple[str, ...] = ()

    def __str__(self) -> str:
        goes_on = f"; pending: {', '.join(self.pending)}" if self.pending else ""
        return f"{self.server} | {self.migration or 'no migration'} | {self.holds or 'none'}{goes_on}"


@dataclass
class Room:
    """Three hosts; the rest of the cloud does not affect the servers in this room."""

    cloud: TroublesomeCloud
    troubles: Troubles
    hosts: Mapping[str, str]
    nodes: Mapping[str, str]
    aggregate: str
    licences: str
    fillers: list[str] = field(default_factory=list)
    #: The NICs of the hosts, if they have any: the role of the host and the number of the NIC, by uuid.
    nics: dict[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def furnish(cls, cloud: TroublesomeCloud, troubles: Troubles, hosts: list[HostState]) -> "Room":
        """Make a room of three hosts, in which the alternate has less room than the destination."""
        placement = cloud.client("placement")
        named = {host.service_host: host.compute_node_uuid for host in hosts}
        of_role = roles(sorted(named))
        room = cls(
            cloud, troubles, of_role, {role: named[host] for role, host in of_role.items()}, ids.fresh(), ids.fresh()
        )
        for node in room.nodes.values():
            placement.call(SetAggregates(request_id=ids.fresh(), uuid=node, aggregates=(room.aggregate,)))
        placement.call(EnsureResourceClass(request_id=ids.fresh(), name=LICENCE))
        made = placement.call(
            CreateResourceProvider(request_id=ids.fresh(), uuid=room.licences, name=f"licences of {of_role['source']}")
        )
        shelf = {LICENCE: Inventory(total=100)}
        placement.call(
            SetInventories(request_id=ids.fresh(), uuid=room.licences, generation=made.generation, inventories=shelf)
        )
        room.hold(ids.fresh(), {room.nodes["alternate"]: {"MEMORY_MB": 4096}})
        role_of = {host: role for role, host in of_role.items()}
        for provider in placement.call(ListResourceProviders()):
            host, _, number = provider.name.partition("_nic")
            if number and host in role_of:
                room.nics[provider.uuid] = (role_of[host], int(number))
        return room

    # --- Orders -------------------------------------------------------------------------------------------------------

    @property
    def placement(self) -> Client:
        return self.cloud.client("placement")

    def order(self, message: Mutation[R]) -> R:
        """Send an order, with the same request until it is answered."""
        return until_answered(lambda: self.cloud.client("conductor").call(message))

    def ask(self, message: Message[R]) -> R:
        return until_answered(lambda: self.cloud.client("conductor").call(message))

    def show(self, uuid: str) -> Instance:
        return self.ask(ShowInstance(instance_uuid=uuid))

    def spec(self, *forced: str) -> RequestSpec:
        """Return the request spec of this room, for hosts of these roles or for any."""
        return structs.replace(
            SPEC,
            force_hosts=tuple(self.hosts[role] for role in forced),
            groups={"": ResourceGroup(member_of=((self.aggregate,),))},
        )

    def build(self, hanging: bool = False) -> str:
        """Build an instance on the source; return it when it is active."""
        uuid = ids.fresh()
        spec = self.spec("source")
        if hanging:
            self.misbehave("hanging", uuid, "source")
        self.order(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,)))
        if hanging:
            self.until(lambda: self.is_building(uuid, "source"), "it to be built")
        else:
            self.becomes(uuid, "active")
        return uuid

    def is_building(self, uuid: str, role: str) -> bool:
        return any(one.host == self.hosts[role] and one.state == "building" for one in self.show(uuid).attempts)

    def pending(self, uuid: str | None = None) -> set[str]:
        """Return the operations under way, of one server or of all, including cleanings."""
        return {one.uuid for one in self.ask(ListOperations(instance_uuid=uuid))}

    def becomes(self, uuid: str, state: str) -> None:
        peek = RecordPeek(self.cloud.database, uuid)
        self.until(lambda: peek.may_be(state) and self.show(uuid).state == state, state)

    def migration_becomes(self, migration_uuid: str, state: str) -> Migration:
        """Wait until a migration is in a state; return it."""
        shown = ShowMigration(uuid=migration_uuid)
        self.until(lambda: self.ask(shown).state == state, state)
        return self.ask(shown)

    def until(self, true: Callable[[], bool], what: str) -> None:
        wait_until(true, what, SECONDS, interval=0.1)

    # --- Other clients and hosts --------------------------------------------------------------------------------------

    def misbehave(self, how: str, uuid: str, *which: str) -> None:
        """Let hosts fail for an instance."""
        getattr(self.cloud.faults, how).update((uuid, self.hosts[role]) for role in which)

    def force_down(self, role: str, down: bool = True) -> None:
        message = SetHost(request_id=ids.fresh(), service_host=self.hosts[role], forced_down=down)
        until_answered(lambda: self.cloud.client("scheduler").call(message))

    def hold(self, consumer: str, wanted: Mapping[str, Mapping[str, int]]) -> None:
        """Let a consumer hold more amounts than it already holds, as an operator does with plain writes."""
        while True:
            try:
                known = self.placement.call(GetAllocations(consumer_uuid=consumer))
            except errors.ConsumerNotFound:
                known = None
            held = {} if known is None else {uuid: dict(one.resources) for uuid, one in known.allocations.items()}
            for provider, amounts in wanted.items():
                for name, amount in amounts.items():
                    at = held.setdefault(provider, {})
                    at[name] = at.get(name, 0) + amount
            kind, generation = ("OTHER", None) if known is None else (known.consumer_type, known.generation)
            allocations = Store.wanted(held, generation, project_id="p", user_id="u", consumer_type=kind)
            message = PutAllocations(request_id=ids.fresh(), consumer_uuid=consumer, wanted=allocations)
            try:
                self.placement.call(message)
            except errors.ConsumerGenerationConflict:
                continue
            return

    def attach_licence(self, uuid: str) -> None:
        """Write an amount that is on no host to an instance's consumer: it takes no room, but bumps the generation."""
        self.hold(uuid, {self.licences: {LICENCE: 1}})

    def migration_of(self, uuid: str) -> str:
        """Return the last migration of an instance."""
        return self.ask(ListMigrations(instance_uuid=uuid, ended=True))[-1].uuid

    def take_away(self, uuid: str) -> None:
        """Release everything that a consumer holds, as another client could."""
        self.placement.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=uuid))

    def given_up(self, uuid: str, *which: str) -> bool:
        """Let time pass for an instance; return whether its attempts on these hosts have timed out."""
        return run_out(self.cloud.database, uuid, [self.hosts[role] for role in which]) == len(which)

    def touch_licence(self, uuid: str) -> None:
        """Attach a licence the first time, and write the same again each further time."""
        held = self.placement.call(GetAllocations(consumer_uuid=uuid)).allocations
        self.hold(uuid, {} if self.licences in held else {self.licences: {LICENCE: 1}})

    def attach_memory(self, uuid: str) -> None:
        """Write an amount of the instance's source to its consumer."""
        self.hold(uuid, {self.nodes["source"]: {"MEMORY_MB": 512}})

    def fill(self, role: str, leave: int = 0) -> None:
        """Let another consumer take all VCPU of a host except ``leave``."""
        provider = self.placement.call(GetResourceProvider(uuid=self.nodes[role]))
        free = 16 - provider.used["VCPU"] - leave
        filler = ids.fresh()
        self.fillers.append(filler)
        self.hold(filler, {self.nodes[role]: {"VCPU": free}})

    def make_room(self) -> None:
        """Release everything that other consumers have taken."""
        while self.fillers:
            self.placement.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=self.fillers.pop()))

    # --- State --------------------------------------------------------------------------------------------------------

    def seen(self, uuid: str) -> Seen:
        """Return the state of a server; operations under way are read first, so that none ends unseen."""
        operations = self.ask(ListOperations(instance_uuid=uuid))
        pending = tuple(sorted({one.kind for one in operations if one.kind != "clean"}))
        instance = self.show(uuid)
        migrations = self.ask(ListMigrations(instance_uuid=uuid, ended=True))
        role = {host: role for role, host in self.hosts.items()}
        where = "" if instance.host is None else f" on the {role[instance.host]}"
        return Seen(
            server=f"{instance.state}{where}",
            migration=migrations[-1].state if migrations else "",
            holds=self.holds(instance),
            pending=pending,
        )

    def holds(self, instance: Instance) -> str:
        """Return the allocations for an instance; read in one statement, so that they are of one moment."""
        attempts = [attempt.attempt_id for attempt in instance.attempts]
        statement = (
            select(
                consumers.c.uuid,
                consumers.c.consumer_type,
                resource_providers.c.uuid.label("provider"),
                resource_classes.c.name,
                allocations.c.used,
            )
            .join(allocations, allocations.c.consumer_id == consumers.c.id)
            .join(resource_providers, resource_providers.c.id == allocations.c.resource_provider_id)
            .join(resource_classes, resource_classes.c.id == allocations.c.resource_class_id)
            .where(
                or_(
                    consumers.c.uuid.in_([instance.uuid, *attempts]),
                    consumers.c.migration_of == instance.uuid,
                    consumers.c.accepted_by.in_(attempts),
                )
            )
        )
        held: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
        for row in self.cloud.database.read(lambda connection: connection.execute(statement).all()):
            who = "residue" if row.consumer_type == "RESIDUE" else "migration"
            who = "instance" if row.uuid == instance.uuid else who
            held.setdefault((who, row.uuid), {}).setdefault(row.provider, {})[row.name] = row.used
        # In alphabetical order: instance, migration, residue.
        return "; ".join(sorted(f"{who}: {self._places(amounts)}" for (who, _uuid), amounts in held.items()))

    def _places(self, held: Mapping[str, Mapping[str, int]]) -> str:
        places = [role + _size(held[node]) for role, node in self.nodes.items() if node in held]
        for role, _number in (nic for uuid, nic in self.nics.items() if uuid in held):
            places.append("port" if self.nodes[role] in held else f"port of the {role}")
        return " + ".join([*places, "licence"] if self.licences in held else places)

    def settles(self, uuid: str, wanted: Seen) -> Seen:
        """Return the state of a server once it is twice as wanted, or when it stays different."""
        peek = RecordPeek(self.cloud.database, uuid)
        now = time.monotonic()
        end, still = now + SECONDS, now + STILL
        before, times = None, 0
        while True:
            # Reading the whole state is expensive, so it waits until the server itself is in the wanted state.
            is_late = time.monotonic() > still
            if is_late or (
                peek.may_be(wanted.server.split()[0], wanted.pending)
                and wanted.server.startswith(self.show(uuid).state)
            ):
                seen = self.seen(uuid)
                times = times + 1 if seen == wanted else 0
                if times == 2 or (is_late and (seen == before and not seen.pending)) or time.monotonic() > end:
                    return seen
                if seen != before:
                    before, still = seen, time.monotonic() + STILL
            time.sleep(0.15)

    def clear(self, uuid: str) -> None:
        """Remove all faults for the next server."""
        self.cloud.faults.forget(uuid)
        self.make_room()
        self.force_down("source", False)


def _size(resources: Mapping[str, int]) -> str:
    """Return how an amount differs from the usual one."""
    memory = resources.get("MEMORY_MB", 0)
    if resources.get("VCPU") == LARGE.vcpus:
        return " (new size)"
    return " (and more)" if memory > SMALL.memory_mb else ""


def until_answered(call: Callable[[], R]) -> R:
    """Repeat a call until it is answered, as clients do."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            return call()
        except (errors.Unavailable, errors.RequestInProgress):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def rooms_of(cloud: TroublesomeCloud, troubles: Troubles) -> list[Room]:
    """Divide all hosts of a cloud into rooms."""
    found = cloud.client("scheduler").call(ListHosts())
    hosts = sorted(found, key=lambda host: host.service_host)
    return [Room.furnish(cloud, troubles, hosts[first : first + 3]) for first in range(0, len(hosts) - 2, 3)]
