"""Topic `conductor.<cell uuid>`: the allocations by a cell's records, and healing of the store by them."""

from typing import Annotated

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, MAX_LISTED, ToCell
from moorage.messages.wire import Message, Mutation
from moorage.model import InstanceHolds, SeenConsumer, Text, Uuid, Value

Uuids = Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)]


class HoldsInCell(Value, frozen=True, kw_only=True):
    """A part of the allocations by a cell's records."""

    instances: tuple[InstanceHolds, ...] = ()
    #: The greatest uuid of this part, if more may follow.
    more_after: Uuid | None = None


class ListHoldsInCell(Message[HoldsInCell], ToCell, frozen=True, kw_only=True):
    """List the amounts that instances of a cell hold by its records, in parts, by uuid.

    A part may be shorter than its limit, even empty: ``more_after`` shows whether more may follow.
    Deleted instances are left out unless a host may still have a guest of theirs, or they are named.
    """

    method = "list_holds"
    version = "1.6"
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 1000
    after: Uuid | None = None
    #: Only the instances with these uuids, or with attempts or migrations with these uuids; then not in parts.
    uuids: Uuids = ()


class HealsBegun(Value, frozen=True, kw_only=True):
    """The answer to an order to heal, by instance."""

    #: The healing operation of each instance.
    operations: dict[Uuid, Uuid] = {}
    #: For each instance without an operation, the reason.
    refused: dict[Uuid, Text] = {}


class HealInCell(Mutation[HealsBegun], ToCell, frozen=True, kw_only=True):
    """Heal the store's allocations of some instances by the cell's records, with an operation for each.

    The consumers are given by instance, as last read from the store. Those without a record, or with an ended one,
    release their allocations.
    """

    method = "heal_instances"
    version = "1.6"
    instances: Annotated[dict[Uuid, dict[Uuid, SeenConsumer]], Meta(min_length=1, max_length=MAX_INSTANCES)]
