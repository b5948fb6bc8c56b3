"""The values that cross folders and the wire: all frozen, all JSON-safe, each the same word everywhere."""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

# --- Names and amounts ----------------------------------------------------------------------------------------------

#: A uuid in its canonical, lower-case form.
Uuid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
#: Names a request for its whole life; see :mod:`moorage.requests`.
RequestId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
ResourceClassName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}$")]
ConsumerType = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}$")]
#: The name of a host, node, agent, cell, zone, project or user.
Name = Annotated[str, Meta(min_length=1, max_length=255)]
#: An amount of a resource. The bound is Placement's, and keeps every sum within a signed 64-bit integer.
Amount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Generation = Annotated[int, Meta(ge=0)]
#: Values of extra specs, image properties and hints: long enough for any policy, short enough to store.
Text = Annotated[str, Meta(max_length=4096)]

Resources = dict[ResourceClassName, Amount]

VCPU = "VCPU"
MEMORY_MB = "MEMORY_MB"
DISK_GB = "DISK_GB"


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all values have in common: frozen, keyword-only, and silent about fields left at their default."""


# --- What is asked for ----------------------------------------------------------------------------------------------


class Flavor(Value, frozen=True, kw_only=True):
    """The size of a server: amounts in units, MiB and GiB; swap in MiB."""

    name: Name = "custom"
    vcpus: Annotated[int, Meta(ge=1, le=2**20)]
    memory_mb: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    root_gb: Count = 0
    ephemeral_gb: Count = 0
    swap_mb: Count = 0
    extra_specs: Annotated[dict[Name, Text], Meta(max_length=512)] = {}


class Image(Value, frozen=True, kw_only=True):
    """The image that a server starts from."""

    id: Name | None = None
    properties: Annotated[dict[Name, Text], Meta(max_length=512)] = {}


class Destination(Value, frozen=True, kw_only=True):
    """Where a server shall go: any of host, node and cell, the others left open."""

    host: Name | None = None
    node: Name | None = None
    cell: Uuid | None = None


HostNames = Annotated[tuple[Name, ...], Meta(max_length=10_000)]


class RequestSpec(Value, frozen=True, kw_only=True):
    """What is asked of the scheduler, for each instance of the request alike."""

    project_id: Name
    user_id: Name
    flavor: Flavor
    image: Image = Image()
    is_volume_backed: bool = False
    availability_zone: Name | None = None
    ignore_hosts: HostNames = ()
    force_hosts: HostNames = ()
    force_nodes: HostNames = ()
    requested_destination: Destination | None = None
    scheduler_hints: Annotated[dict[Name, Text], Meta(max_length=64)] = {}

    @property
    def resources(self) -> Resources:
        """The unsuffixed resource group that the flavor stands for; an amount of nothing is left out.

        Disk is root + ephemeral + swap rounded up to GiB, without the root disk for a volume-backed server
        (Nova: ``ResourceRequest.from_request_spec``).
        """
        flavor = self.flavor
        root_gb = 0 if self.is_volume_backed else flavor.root_gb
        amounts = {
            VCPU: flavor.vcpus,
            MEMORY_MB: flavor.memory_mb,
            DISK_GB: root_gb + flavor.ephemeral_gb + math.ceil(flavor.swap_mb / 1024),
        }
        return {name: amount for name, amount in amounts.items() if amount}


# --- What is held ---------------------------------------------------------------------------------------------------


class ProviderAmounts(Value, frozen=True, kw_only=True):
    """What a consumer holds, or shall hold, of one resource provider."""

    resources: Annotated[Resources, Meta(min_length=1, max_length=256)]
    #: In a write: the provider's generation that the caller relies on, compared where named. In a read: the present.
    generation: Generation | None = None


Allocations = Annotated[dict[Uuid, ProviderAmounts], Meta(max_length=256)]


class AllocationRequest(Value, frozen=True, kw_only=True):
    """The amounts that place one consumer, by provider, and which providers serve which resource group."""

    allocations: Annotated[dict[Uuid, ProviderAmounts], Meta(min_length=1, max_length=256)]
    mappings: dict[str, tuple[Uuid, ...]] = {}


class ConsumerAllocations(Value, frozen=True, kw_only=True):
    """All that one consumer shall hold from now on; whatever it holds beside this is released."""

    allocations: Allocations
    project_id: Name
    user_id: Name
    consumer_type: ConsumerType = "INSTANCE"
    #: The generation that the caller relies on; null means that there is no such consumer yet.
    consumer_generation: Generation | None


class Consumer(Value, frozen=True, kw_only=True):
    """A consumer as the store has it."""

    uuid: Uuid
    consumer_type: ConsumerType
    project_id: Name
    user_id: Name
    generation: Generation
    allocations: Allocations = {}
    claim_id: Uuid | None = None
    #: The attempt whose host has accepted the claim.
    accepted_by: Uuid | None = None
    #: The host that the claim places the consumer on.
    root_provider_uuid: Uuid | None = None
    owner: Name | None = None


class Inventory(Value, frozen=True, kw_only=True):
    """What a provider has of one resource class. Capacity = (total - reserved) x allocation_ratio."""

    total: Amount
    reserved: Count = 0
    min_unit: Amount = 1
    max_unit: Amount = 2**31 - 1
    step_size: Amount = 1
    allocation_ratio: Annotated[float, Meta(gt=0)] = 1.0

    @property
    def capacity(self) -> float:
        """How much may be allocated in all."""
        return (self.total - self.reserved) * self.allocation_ratio


Inventories = Annotated[dict[ResourceClassName, Inventory], Meta(max_length=256)]


class ResourceProvider(Value, frozen=True, kw_only=True):
    """A resource provider as the store has it; ``used`` has a key for each inventory."""

    uuid: Uuid
    name: Name
    generation: Generation
    root_provider_uuid: Uuid
    parent_provider_uuid: Uuid | None = None
    inventories: Inventories = {}
    used: dict[ResourceClassName, int] = {}


class ProviderReport(Value, frozen=True, kw_only=True):
    """One provider as the host that has it describes it."""

    uuid: Uuid
    name: Name
    inventories: Inventories = {}


# --- Hosts and cells ------------------------------------------------------------------------------------------------


class Cell(Value, frozen=True, kw_only=True):
    """A shard of the cloud. A URL of null means: the same as the reader's own main one."""

    uuid: Uuid
    name: Name
    transport_url: str | None = None
    database_connection: str | None = None


class HostReport(Value, frozen=True, kw_only=True):
    """A host as its agent describes it."""

    service_host: Name
    nodename: Name
    compute_node_uuid: Uuid
    agent: Name
    availability_zone: Name = "nova"
    attributes: dict[Name, Any] = {}


class HostState(Value, frozen=True, kw_only=True):
    """A host as the registry has it."""

    service_host: Name
    nodename: Name
    compute_node_uuid: Uuid
    cell_uuid: Uuid
    agent: Name
    availability_zone: Name
    up: bool
    disabled: bool = False
    disabled_reason: str | None = None
    forced_down: bool = False
    attributes: dict[Name, Any] = {}
    #: Seconds since the last heartbeat, by the database's clock.
    heartbeat_age: float


# --- Answers of the scheduler ---------------------------------------------------------------------------------------


class Selection(Value, frozen=True, kw_only=True):
    """One host in an answer, with the allocation request that claims it.

    The claimed one alone has a ``claim_id``. In a replayed answer it is marked ``released`` where that claim no longer
    stands, with the consumer generation to name next.
    """

    service_host: Name
    nodename: Name
    compute_node_uuid: Uuid
    cell_uuid: Uuid
    agent: Name
    availability_zone: Name
    allocation_request: AllocationRequest
    limits: dict[ResourceClassName, float] = {}
    weight: float = 0.0
    claim_id: Uuid | None = None
    consumer_generation: Generation | None = None
    released: bool = False


class FilterCount(Value, frozen=True, kw_only=True):
    """How many hosts entered a filter and how many it removed."""

    name: str
    hosts: int
    removed: int


class Miss(Value, frozen=True, kw_only=True):
    """A host that came near: what it lacked of one resource class."""

    host: str
    resource_class: str
    asked: int
    free: float
    reason: str = "not enough room"


class Explanation(Value, frozen=True, kw_only=True):
    """Why there was no valid host, as data."""

    hosts: int
    filters: tuple[FilterCount, ...] = ()
    nearest_misses: tuple[Miss, ...] = ()
    #: For hosts that the request names: why not this one.
    named_hosts: dict[str, str] = {}
    #: Hosts that passed every filter and refused the claim itself.
    refused_claims: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return the explanation in one line for people."""
        if not self.hosts:
            return "the cloud has no hosts"
        parts = [f"{f.name} removed {f.removed} of {f.hosts}" for f in self.filters if f.removed]
        parts += [f"{host}: {why}" for host, why in self.named_hosts.items()]
        if self.refused_claims:
            parts.append(f"{len(self.refused_claims)} refused the claim")
        return "; ".join(parts) or "no host was left"


# --- Instances and their attempts -----------------------------------------------------------------------------------


class Attempt(Value, frozen=True, kw_only=True):
    """One try at building an instance on one host."""

    attempt_id: Uuid
    number: int
    host: str
    #: One of ``starting``, ``building``, ``active``, ``failed``, ``skipped`` (refused the claim) and ``ended``.
    state: str
    reason: str | None = None
    #: Its host may still have the guest.
    guest_left: bool = False
    #: When it was begun, and when its record last changed, in seconds since 1970 by its cell's clock.
    created_at: float = 0.0
    updated_at: float = 0.0


class Instance(Value, frozen=True, kw_only=True):
    """An instance as the conductor has it."""

    uuid: Uuid
    project_id: Name
    user_id: Name
    flavor: Flavor
    #: One of ``building``, ``active``, ``error``, ``deleting``, ``deleted``.
    state: str
    cell_uuid: Uuid | None = None
    cell: Name | None = None
    host: Name | None = None
    claim_id: Uuid | None = None
    reason: str | None = None
    attempts: tuple[Attempt, ...] = ()
    explanation: Explanation | None = None
    request_id: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0


class Guest(Value, frozen=True, kw_only=True):
    """A guest as the driver has it: who it is, and under which attempt and claim it was started."""

    instance_uuid: Uuid
    host: Name
    attempt_id: Uuid
    claim_id: Uuid
    resources: Resources = {}


class EndedAttempt(Value, frozen=True, kw_only=True):
    """An attempt that has ended, of which its host may still have the guest: the positive record to destroy it by."""

    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
