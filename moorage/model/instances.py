"""Instances, the attempts at building them, and their guests."""

from moorage.model.answers import Explanation
from moorage.model.asked import Flavor
from moorage.model.basis import Name, Resources, Uuid, Value


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
