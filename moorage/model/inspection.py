"""What an operator looks at: values that only describe, and that no decision rests on."""

from typing import Any

from msgspec import field

from moorage.model import ConsumerType, Generation, Guest, Name, Uuid, Value


class UnknownGuest(Value, frozen=True, kw_only=True):
    """A guest that a host has and its cell knows nothing of; it is left running."""

    guest: Guest
    cell_uuid: Uuid
    agent: Name
    #: Seconds since it was last reported, by the database's clock.
    age: float


class OperationSummary(Value, frozen=True, kw_only=True):
    """An operation as it is on record: what is to be done next, who has it, since when."""

    uuid: Uuid
    kind: str
    #: The instance it is about; of a build of the super conductor, the request.
    subject: str
    request_id: str
    step: str
    step_number: int
    #: One of :data:`moorage.model.states.OperationState`.
    state: str
    tries: int
    reason: str | None = None
    #: Null for the super conductor's.
    cell_uuid: Uuid | None = None
    lease_owner: str | None = None
    #: Seconds until the lease runs out; negative where it has.
    lease_left: float | None = None
    #: Seconds since it was begun, and since it last changed.
    age: float
    idle: float


class ClaimState(Value, frozen=True, kw_only=True):
    """A consumer that a claim places, or a residue, as the store has it."""

    consumer_uuid: Uuid
    consumer_type: ConsumerType
    generation: Generation
    #: Null for a residue.
    claim_id: Uuid | None = None
    root_provider_uuid: Uuid | None = None
    #: The name of that provider.
    node: Name | None = None
    owner: Name | None = None
    accepted_by: Uuid | None = None
    accepted_host: Name | None = None
    #: Seconds since the claim was made.
    age: float


class ReconcilerAction(Value, frozen=True, kw_only=True):
    """What the reconciler found of one unaccepted claim, the last time it looked."""

    consumer_uuid: Uuid
    claim_id: Uuid
    owner: Name
    #: ``released`` upon the owner's word, ``kept`` because the owner wants it, or ``unknown``.
    outcome: str
    reason: str = ""
    #: Seconds since then.
    age: float


class ServiceReport(Value, frozen=True, kw_only=True):
    """A service as it describes itself."""

    name: Name
    #: One of ``scheduler``, ``placement``, ``conductor``, ``cell conductor`` and ``compute``.
    kind: Name
    machine: Name
    version: Name
    cell_uuid: Uuid | None = None


class ServiceState(Value, frozen=True, kw_only=True):
    """A service as the store last heard of it."""

    service: ServiceReport
    #: Seconds since its last report, and since its first.
    heard: float
    running: float
    #: Its last report was that it is being stopped in order.
    stopped: bool = False


class InventoryFinding(Value, frozen=True, kw_only=True):
    """An inventory that holds too much, or whose ``used`` is not the sum of its allocations."""

    provider_uuid: str
    resource_class: str
    capacity: float
    used: int
    allocated: int


class Holder(Value, frozen=True, kw_only=True):
    """A consumer that holds something; without uuid, allocations whose consumer is gone."""

    uuid: Uuid | None = None
    consumer_type: str | None = None
    claim_id: Uuid | None = None
    #: The instance that it moves, if it is a migration.
    migration_of: Uuid | None = None
    #: The attempt whose host has accepted what it holds.
    accepted_by: Uuid | None = None
    #: How many allocations, and the root providers that they are on.
    allocations: int
    root_provider_uuids: tuple[Uuid, ...] = ()
    #: It was deleted for good, and no claim places it: what it holds all the same, others have put there. By provider
    #: and resource class; a class that is unknown is named by its number.
    foreign: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Only where the amounts are asked for: all that it holds, by provider and resource class, and what its row says.
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    generation: Generation | None = None
    owner: Name | None = None
    #: The provider of the host that its claim, or the residue, is on.
    placed_on: Uuid | None = None
    group_uuid: Uuid | None = None


class StoreAudit(Value, frozen=True, kw_only=True):
    """What the store says of itself; nothing is changed by looking."""

    overcommitted: tuple[InventoryFinding, ...] = ()
    drifted: tuple[InventoryFinding, ...] = ()
    holders: tuple[Holder, ...] = ()
    #: The number of the last of these, where they are a part and others may come after it.
    more_after: int | None = None
    #: Only where the amounts are asked for: the root of each provider held that is none itself.
    roots: dict[str, Uuid] = field(default_factory=dict)


class ViewDrift(Value, frozen=True, kw_only=True):
    """How the host view of the scheduler that answered differs from the store, at one moment."""

    hosts: int
    #: Service hosts whose row or provider the view had at another ``seq`` than the store.
    drifted: tuple[Name, ...] = ()


class PluginUse(Value, frozen=True, kw_only=True):
    """A plug-in as a scheduler uses it."""

    name: Name
    #: Where it comes from, as ``module:Class``.
    source: str
    #: The values of its options; one that is secret is not told.
    settings: dict[str, Any] = field(default_factory=dict)
    #: Of a weigher.
    multiplier: float | None = None


class RefusedReload(Value, frozen=True, kw_only=True):
    """A new configuration whose policy could not be taken; the one before it stays in force."""

    reason: str
    #: Seconds since then.
    age: float


class PolicyState(Value, frozen=True, kw_only=True):
    """By what the scheduler that answered decides; everything but what is said of time is in the fingerprint."""

    #: The same where two schedulers decide by the same.
    fingerprint: str
    filters: tuple[PluginUse, ...] = ()
    weighers: tuple[PluginUse, ...] = ()
    request_filters: tuple[PluginUse, ...] = ()
    host_subset_size: int = 1
    broken_plugin: str = "fail"
    #: Seconds since it has been in force.
    age: float = 0.0
    #: The last reload, if it was refused.
    refused: RefusedReload | None = None
    #: Options that had another value at the last reload than the scheduler was started with, and need a restart.
    needs_restart: tuple[str, ...] = ()
    #: How often each plug-in has been broken since the scheduler was started: ``filter rack``.
    broken: dict[str, int] = field(default_factory=dict)
    #: Those that have been broken since a request was decided last: every request since has failed.
    breaking: tuple[str, ...] = ()
    #: The longest time in seconds that a question to each slow plug-in has taken since the scheduler was started.
    slow: dict[str, float] = field(default_factory=dict)
