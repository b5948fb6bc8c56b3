"""Instances, attempts, migrations and guests."""

from moorage.model.basis import Name, Resources, Suffix, Uuid, Value
from moorage.model.explanation import Explanation
from moorage.model.moves import MoveKind
from moorage.model.request_spec import Flavor, RequestSpec
from moorage.model.selection import Selection


class Attempt(Value, frozen=True, kw_only=True):
    """An attempt at building an instance on one host."""

    attempt_id: Uuid
    number: int
    host: str
    #: One of :data:`moorage.model.states.AttemptState`.
    state: str
    #: The migration that it was made for; null for an attempt to build.
    migration_uuid: Uuid | None = None
    reason: str | None = None
    #: Its host reported that the build would fail on every host.
    no_other_host: bool = False
    #: The guest may still be on its host.
    guest_left: bool = False
    #: The times of its start and of its record's last change, in seconds since 1970 by its cell's clock.
    created_at: float = 0.0
    updated_at: float = 0.0


class AttachedResource(Value, frozen=True, kw_only=True):
    """A resource group that was attached to an instance after its build."""

    resources: Resources
    #: The provider of its claim; null while the instance is on no host.
    provider_uuid: Uuid | None = None


class Instance(Value, frozen=True, kw_only=True):
    """An instance in the conductor's records."""

    uuid: Uuid
    #: Its name for operators; null if it has none.
    name: Name | None = None
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
    #: The migration in progress, or waiting to be confirmed or reverted.
    migration_uuid: Uuid | None = None
    #: The number of its last order, which a new order may name; null from a release without such numbers.
    last_order: int | None = None
    #: The groups attached to it after its build, by suffix.
    attached: dict[Suffix, AttachedResource] = {}
    #: Its present request; only on request.
    request_spec: RequestSpec | None = None
    #: Its number in the order of requests; 0 from a release without lists in parts.
    number: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0


class Placement(Value, frozen=True, kw_only=True):
    """The present place of an instance by its cell's records, from which its next operation begins."""

    request_spec: RequestSpec
    #: The host, with the allocation request of its claim.
    selection: Selection
    attempt_id: Uuid
    claim_id: Uuid


class Migration(Value, frozen=True, kw_only=True):
    """A move of an instance in the conductor's records."""

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
    #: Its number in the order of requests; 0 from a release without lists in parts.
    number: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0


class Guest(Value, frozen=True, kw_only=True):
    """A guest in the driver's records, with the attempt and the claim under which it was started."""

    instance_uuid: Uuid
    host: Name
    attempt_id: Uuid
    claim_id: Uuid
    resources: Resources = {}


class EndedAttempt(Value, frozen=True, kw_only=True):
    """An ended attempt whose guest may still be on its host: the record by which the host destroys it."""

    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
