"""Topic `placement` of the main bus: inspection and healing of the store for an operator, and reports of services."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, MAX_LISTED, Done
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    Allocations,
    Generation,
    RecordedHold,
    SeenConsumer,
    Uuid,
    Value,
)
from moorage.model.inspection import ClaimState, ReconcilerAction, ServiceReport, ServiceState, StoreAudit


class ListClaims(Message[list[ClaimState]], frozen=True, kw_only=True):
    """The consumers that a claim places, and on request residues, the oldest first.

    There may be more than a message takes: then part by part, by the uuids of the consumers, each part after the
    greatest uuid of the one before it. A part that is shorter than its limit is the last one.
    """

    topic = "placement"
    method = "list_claims"
    version = "1.1"
    since: ClassVar = {"limit": "1.5", "after": "1.5"}
    #: Only those that no host has accepted.
    unaccepted: bool = False
    #: Only those made at least so many seconds ago.
    older_than: Annotated[float, Meta(ge=0)] = 0.0
    residues: bool = False
    consumer_uuids: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)] = ()
    #: How many at most; all, where it is not said.
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] | None = None
    after: Uuid | None = None


class ListReconciled(Message[list[ReconcilerAction]], frozen=True, kw_only=True):
    """What the reconciler found, the newest first."""

    topic = "placement"
    method = "list_reconciled"
    version = "1.1"


class AuditStore(Message[StoreAudit], frozen=True, kw_only=True):
    """What the store says of itself: read-only, safe on a live cloud.

    A store may have more holders than a message takes: then part by part, each after the number that the one before it
    names in ``more_after``. Each holder is told of whole and at one moment. The inventories come with the first part.
    """

    topic = "placement"
    method = "audit_store"
    version = "1.1"
    since: ClassVar = {"limit": "1.5", "after": "1.5", "amounts": "1.6"}
    #: How many holders at most; all, where it is not said.
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] | None = None
    after: Annotated[int, Meta(ge=0)] = 0
    #: With what each of them holds, and the consumer's row.
    amounts: bool = False


class Healed(Value, frozen=True, kw_only=True):
    """Describe the changes of a heal."""

    #: The generation of each consumer that is there now.
    generations: dict[Uuid, Generation] = {}
    #: What was held by a claim that is on no record, and has been released.
    released: Allocations = {}


class HealConsumers(Mutation[Healed], frozen=True, kw_only=True):
    """Set what some consumers hold to what their owner has on record: all of them in one transaction, or none.

    Each consumer is compared with how it was ``seen`` (``ConsumerGenerationConflict`` otherwise). Amounts that are
    missing are claimed as any claim is, and refused where they do not fit. What others have put on a consumer stays,
    unless its claim is another than the recorded one. A consumer that was deleted for good is not revived.
    """

    topic = "placement"
    method = "heal_consumers"
    version = "1.6"
    seen: Annotated[dict[Uuid, SeenConsumer], Meta(min_length=1, max_length=MAX_INSTANCES)]
    #: What of them is to hold something. The others release all that they hold.
    holds: Annotated[tuple[RecordedHold, ...], Meta(max_length=MAX_INSTANCES)] = ()
    #: Those of the others that are deleted for good.
    for_good: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)] = ()


class Recounted(Value, frozen=True, kw_only=True):
    """Describe the changes of a recount."""

    inventories: int = 0
    #: Allocations without a consumer, which were removed.
    orphans: int = 0


class RecountInventories(Mutation[Recounted], frozen=True, kw_only=True):
    """Set ``used`` of some providers' inventories to the sum of their allocations, without those of no consumer."""

    topic = "placement"
    method = "recount_inventories"
    version = "1.6"
    provider_uuids: Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class ReportService(Mutation[Done], frozen=True, kw_only=True):
    """Report that a service is running, and which version of it; or that it is being stopped in order."""

    topic = "placement"
    method = "report_service"
    version = "1.1"
    since: ClassVar = {"stopped": "1.6"}
    service: ServiceReport
    #: The last report of a service that was told to stop.
    stopped: bool = False


class ListServices(Message[list[ServiceState]], frozen=True, kw_only=True):
    """The services that have reported, by kind and name."""

    topic = "placement"
    method = "list_services"
    version = "1.1"
