"""Values for inspection by an operator; no decision depends on them."""

from typing import Any

from msgspec import field

from moorage.model import ConsumerType, Generation, Guest, Name, Uuid, Value


class UnknownGuest(Value, frozen=True, kw_only=True):
    """A guest on a host of which its cell has no record; it is left running."""

    guest: Guest
    cell_uuid: Uuid
    agent: Name
    #: Seconds since it was last reported, by the database's clock.
    age: float


class OperationSummary(Value, frozen=True, kw_only=True):
    """The record of an operation: its next step, its lease, its times."""

    uuid: Uuid
    kind: str
    #: Its instance; for a build of the super conductor, its request.
    subject: str
    request_id: str
    step: str
    step_number: int
    #: One of :data:`moorage.model.states.OperationState`.
    state: str
    tries: int
    reason: str | None = None
    #: Null for an operation of the super conductor.
    cell_uuid: Uuid | None = None
    lease_owner: str | None = None
    #: Seconds until the lease expires; negative if it has.
    lease_left: float | None = None
    #: Seconds since it was begun, and since it last changed.
    age: float
    idle: float


class ClaimState(Value, frozen=True, kw_only=True):
    """A consumer with a claim, or a residue, in the store."""

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
    """The reconciler's last finding about an unaccepted claim."""

    consumer_uuid: Uuid
    claim_id: Uuid
    owner: Name
    #: ``released`` because the owner does not want it, ``kept`` because it does, or ``unknown``.
    outcome: str
    reason: str = ""
    #: Seconds since then.
    age: float


class ServiceReport(Value, frozen=True, kw_only=True):
    """A service's description of itself."""

    name: Name
    #: One of ``scheduler``, ``placement``, ``conductor``, ``cell conductor`` and ``compute``.
    kind: Name
    machine: Name
    version: Name
    cell_uuid: Uuid | None = None


class ServiceState(Value, frozen=True, kw_only=True):
    """A service as last reported to the store."""

    service: ServiceReport
    #: Seconds since its last report, and since its first.
    heard: float
    running: float
    #: Its last report was that it is being stopped in order.
    stopped: bool = False


class InventoryFinding(Value, frozen=True, kw_only=True):
    """An over-allocated inventory, or one whose ``used`` is not the sum of its allocations."""

    provider_uuid: str
    resource_class: str
    capacity: float
    used: int
    allocated: int


class Holder(Value, frozen=True, kw_only=True):
    """A consumer with allocations; without uuid, the allocations whose consumer is gone."""

    uuid: Uuid | None = None
    consumer_type: str | None = None
    claim_id: Uuid | None = None
    #: For a migration, its instance.
    migration_of: Uuid | None = None
    #: The attempt whose host has accepted its claim.
    accepted_by: Uuid | None = None
    #: The number of its allocations, and the root providers of those that are not of sharing providers.
    allocations: int
    root_provider_uuids: tuple[Uuid, ...] = ()
    #: The foreign allocations of a consumer that was deleted for good and has no claim: written by others. By provider
    #: and resource class; an unknown class is given by its number.
    foreign: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Only on request: all its allocations, by provider and resource class, and the columns of its row.
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    generation: Generation | None = None
    owner: Name | None = None
    #: The root provider of its claim or residue.
    placed_on: Uuid | None = None
    group_uuid: Uuid | None = None

    @property
    def is_residue(self) -> bool:
        """Tell a residue, which is kept for an attempt, from a consumer whose writer has called it so."""
        return self.consumer_type == "RESIDUE" and self.accepted_by is not None and self.claim_id is None


class StoreAudit(Value, frozen=True, kw_only=True):
    """The result of the store's own audit, which changes nothing."""

    overcommitted: tuple[InventoryFinding, ...] = ()
    drifted: tuple[InventoryFinding, ...] = ()
    holders: tuple[Holder, ...] = ()
    #: The number of the last of these, if more may follow.
    more_after: int | None = None
    #: Only on request: the root of each allocated provider that is not a root, and in the first part that of each
    #: sharing provider.
    roots: dict[str, Uuid] = field(default_factory=dict)


class ViewDrift(Value, frozen=True, kw_only=True):
    """The differences between the answering scheduler's host view and the store, at one moment."""

    hosts: int
    #: Service hosts whose row or provider has another ``seq`` in the view than in the store.
    drifted: tuple[Name, ...] = ()


class PluginUse(Value, frozen=True, kw_only=True):
    """A plug-in in use by a scheduler."""

    name: Name
    #: Where it comes from, as ``module:Class``.
    source: str
    #: The values of its options, without secret ones.
    settings: dict[str, Any] = field(default_factory=dict)
    #: Only for a weigher.
    multiplier: float | None = None


class RefusedReload(Value, frozen=True, kw_only=True):
    """A reload that was refused; the former policy stays in force."""

    reason: str
    #: Seconds since then.
    age: float


class PolicyState(Value, frozen=True, kw_only=True):
    """The policy of the answering scheduler. The fingerprint covers all fields but the times."""

    #: Equal for equal policies of two schedulers.
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
    #: Options with another value at the last reload than at the scheduler's start, which need a restart.
    needs_restart: tuple[str, ...] = ()
    #: The faults of each plug-in, as ``filter rack``, since the scheduler's start.
    broken: dict[str, int] = field(default_factory=dict)
    #: The plug-ins with faults since the last successful decision: every request since has failed.
    breaking: tuple[str, ...] = ()
    #: The longest call of each slow plug-in since the scheduler's start, in seconds.
    slow: dict[str, float] = field(default_factory=dict)
