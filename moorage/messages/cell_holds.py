"""Topic `conductor.<cell uuid>`: what a cell's records say is held, and how the store is brought to agree with them."""

from typing import Annotated

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, MAX_LISTED
from moorage.messages.wire import Message, Mutation
from moorage.model import InstanceHolds, SeenConsumer, Text, Uuid, Value

Uuids = Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)]


class HoldsInCell(Value, frozen=True, kw_only=True):
    """A part of what a cell has on record."""

    instances: tuple[InstanceHolds, ...] = ()
    #: The greatest uuid of this part, where others may come after it.
    more_after: Uuid | None = None


class ListHoldsInCell(Message[HoldsInCell], frozen=True, kw_only=True):
    """List the amounts that instances of a cell hold by its records, in parts, by uuid.

    Deleted instances are left out unless a host may still have a guest of theirs, or they are named.
    """

    topic = "conductor.cell"
    method = "list_holds"
    version = "1.6"
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 1000
    after: Uuid | None = None
    #: Only those to which one of these belongs: instances, attempts and migrations. Not part by part.
    uuids: Uuids = ()


class HealsBegun(Value, frozen=True, kw_only=True):
    """Answer an order to heal, by instance."""

    #: The operation that heals it.
    operations: dict[Uuid, Uuid] = {}
    #: Why none was begun.
    refused: dict[Uuid, Text] = {}


class HealInCell(Mutation[HealsBegun], frozen=True, kw_only=True):
    """Bring what the store has of some instances into agreement with the cell's records, an operation for each.

    By instance: the consumers of it that the store has or lacks, as they were seen. Those of them that the records do
    not know, or know to be over, release what they hold.
    """

    topic = "conductor.cell"
    method = "heal_instances"
    version = "1.6"
    instances: Annotated[dict[Uuid, dict[Uuid, SeenConsumer]], Meta(min_length=1, max_length=MAX_INSTANCES)]
