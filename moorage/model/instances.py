"""Instances, the attempts at building them, and their guests."""

from moorage.model.basis import Name, Resources, Suffix, Uuid, Value
from moorage.model.explanation import Explanation
from moorage.model.moves import MoveKind
from moorage.model.request_spec import Flavor, RequestSpec
from moorage.model.selection import Selection


class Attempt(Value, frozen=True, kw_only=True):
    """One try at building an instance on one host."""

    attempt_id: Uuid
    number: int
    host: str
    #: One of :data:`moorage.model.states.AttemptState`.
    state: str
    #: The migration that it was made for; null for an attempt to build.
    migration_uuid: Uuid | None = None
    reason: str | None = None
    #: Its host has found that no other one would do either.
    no_other_host: bool = False
    #: Its host may still have the guest.
    guest_left: bool = False
    #: When it was begun, and when its record last changed, in seconds since 1970 by its cell's clock.
    created_at: float = 0.0
    updated_at: float = 0.0


class AttachedResource(Value, frozen=True, kw_only=True):
    """A resource group that was attached to an instance after its build."""

    resources: Resources
    #: What it was claimed of; null while the instance is on no host.
    provider_uuid: Uuid | None = None


class Instance(Value, frozen=True, kw_only=True):
    """An instance as the conductor has it."""

    uuid: Uuid
    project_id: Name
    user_id: Name
    flavor: Flavor
    #: One of :data:`moorage.model.states.InstanceState`.
    state: str
    cell_uuid: Uuid | None = None
    cell: Name | None = None
    host: Name | None = None
    claim_id: Uuid | None = None
    reason: str | None = None
    attempts: tuple[Attempt, ...] = ()
    explanation: Explanation | None = None
    request_id: str | None = None
    #: The migration that is under way, or waits to be confirmed or reverted.
    migration_uuid: Uuid | None = None
    #: The number of the last order about it, which an order may name; null from a release that counts none.
    last_order: int | None = None
    #: What was attached to it after its build, by the name of the group.
    attached: dict[Suffix, AttachedResource] = {}
    #: What was asked for, as it stands by now; only where it was wanted.
    request_spec: RequestSpec | None = None
    #: The order in which it was asked for; 0 from a release that lists no parts.
    number: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0


class Placement(Value, frozen=True, kw_only=True):
    """Where an instance is, as its cell knows it: what the next operation on it begins from."""

    request_spec: RequestSpec
    #: The host with the allocation request that it was claimed with.
    selection: Selection
    attempt_id: Uuid
    claim_id: Uuid


class Migration(Value, frozen=True, kw_only=True):
    """A move of an instance as the conductor has it."""

    uuid: Uuid
    instance_uuid: Uuid
    kind: MoveKind
    #: One of :data:`moorage.model.states.MigrationState`.
    state: str
    source_host: Name | None = None
    destination_host: Name | None = None
    reason: str | None = None
    explanation: Explanation | None = None
    attempts: tuple[Attempt, ...] = ()
    cell: Name | None = None
    request_id: str | None = None
    #: The order in which it was asked for; 0 from a release that lists no parts.
    number: int = 0
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
