"""Topic `placement` of the main bus: inspection and healing of the store for an operator, and reports of services."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, MAX_LISTED, Done, ToPlacement
from moorage.messages.wire import Message, Mutation
from moorage.model import Allocations, Generation, RecordedHold, RowNumber, SeenConsumer, Uuid, Value
from moorage.model.inspection import ClaimState, ReconcilerAction, ServiceReport, ServiceState, StoreAudit


class ListClaims(Message[list[ClaimState]], ToPlacement, frozen=True, kw_only=True):
    """List the consumers with a claim, and on request residues, the oldest first.

    A list may be longer than a message: then in parts by the consumers' uuids, each after the greatest uuid of the
    part before it. A part that is shorter than its limit is the last one.
    """

    version = "1.1"
    since: ClassVar = {"limit": "1.5", "after": "1.5"}
    #: Only claims that no host has accepted.
    unaccepted: bool = False
    #: Only claims of at least this age, in seconds.
    older_than: Annotated[float, Meta(ge=0)] = 0.0
    residues: bool = False
    consumer_uuids: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)] = ()
    #: The most entries; null for all.
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] | None = None
    after: Uuid | None = None


class ListReconciled(Message[list[ReconcilerAction]], ToPlacement, frozen=True, kw_only=True):
    """List the reconciler's findings, the newest first."""

    version = "1.1"


class AuditStore(Message[StoreAudit], ToPlacement, frozen=True, kw_only=True):
    """Audit the store: read-only, and safe on a live cloud.

    The list of holders may be longer than a message: then in parts, each after ``more_after`` of the part before it.
    Each holder is read whole and at one moment. The inventories come with the first part.
    """

    version = "1.1"
    since: ClassVar = {"limit": "1.5", "after": "1.5", "amounts": "1.6"}
    #: The most holders; null for all.
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] | None = None
    after: RowNumber = 0
    #: Include the allocations of each holder, and the columns of the consumer's row.
    amounts: bool = False


class Healed(Value, frozen=True, kw_only=True):
    """The changes of a heal."""

    #: The generation of each remaining consumer.
    generations: dict[Uuid, Generation] = {}
    #: The released allocations of claims without a record.
    released: Allocations = {}


class HealConsumers(Mutation[Healed], ToPlacement, frozen=True, kw_only=True):
    """Set the allocations of some consumers to their owner's records, in one transaction.

    Each consumer is compared with the ``seen`` one (``ConsumerGenerationConflict`` if it differs). Missing amounts are
    claimed as by any claim, and refused where they do not fit. Foreign allocations of a consumer stay, unless its claim
    is not the recorded one. A consumer that was deleted for good is not revived.
    """

    version = "1.6"
    seen: Annotated[dict[Uuid, SeenConsumer], Meta(min_length=1, max_length=MAX_INSTANCES)]
    #: The allocations of the consumers that hold any afterwards. The others release all allocations.
    holds: Annotated[tuple[RecordedHold, ...], Meta(max_length=MAX_INSTANCES)] = ()
    #: The consumers, among the others, that get a tombstone.
    for_good: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)] = ()


class Recounted(Value, frozen=True, kw_only=True):
    """The changes of a recount."""

    inventories: int = 0
    #: The number of removed allocations without a consumer.
    orphans: int = 0


class RecountInventories(Mutation[Recounted], ToPlacement, frozen=True, kw_only=True):
    """Set ``used`` of some providers' inventories to the sum of their allocations; remove those without consumer."""

    version = "1.6"
    provider_uuids: Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class ReportService(Mutation[Done], ToPlacement, frozen=True, kw_only=True):
    """Report a running service with its version, or that it is being stopped in order."""

    version = "1.1"
    since: ClassVar = {"stopped": "1.6"}
    service: ServiceReport
    #: Set in the last report of a service that stops in order.
    stopped: bool = False


class ListServices(Message[list[ServiceState]], ToPlacement, frozen=True, kw_only=True):
    """List the services that have reported, by kind and name."""

    version = "1.1"
