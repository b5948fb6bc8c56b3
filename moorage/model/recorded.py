"""Describe the amounts that consumers hold by their owners' records, for an audit to compare and heal the store by."""

from typing import Annotated, Literal

from msgspec import Meta

from moorage.model.allocations import ProviderAmounts
from moorage.model.basis import Generation, Name, Suffix, Uuid, Value
from moorage.model.moves import ServerGroup


class RecordedHold(Value, frozen=True, kw_only=True):
    """Describe the amounts that one consumer holds by its owner's records.

    The amounts are those that the claim was made with. Those of ``pools`` are held of these very providers; the others
    may be anywhere in the host's tree, for a reshape moves them.
    """

    consumer_uuid: Uuid
    consumer_type: Literal["INSTANCE", "MIGRATION", "RESIDUE"]
    #: Null for a residue.
    claim_id: Uuid | None = None
    #: The host's own provider.
    root_provider_uuid: Uuid
    #: The attempt whose host has accepted the claim, and that host; null where none has, as far as that is on record.
    accepted_by: Uuid | None = None
    accepted_host: Name | None = None
    allocations: Annotated[dict[Uuid, ProviderAmounts], Meta(min_length=1, max_length=256)]
    pools: Annotated[tuple[Uuid, ...], Meta(max_length=256)] = ()
    project_id: Name
    user_id: Name
    #: The instance that it belongs to; null for that instance itself.
    migration_of: Uuid | None = None
    group: ServerGroup | None = None
    #: The providers of its suffixed groups, where they are isolated from each other.
    isolated: dict[Suffix, tuple[Uuid, ...]] = {}
    #: Who can be asked whether the claim is wanted.
    owner: Name | None = None


class InstanceHolds(Value, frozen=True, kw_only=True):
    """All that an instance, its migration and its residues hold according to their cell's records."""

    instance_uuid: Uuid
    state: str
    #: False while an operation is under way that may change what is held: the records are then no measure.
    settled: bool
    holds: tuple[RecordedHold, ...] = ()
    #: All attempts on record, and all moves: a consumer of one of these uuids belongs to the instance.
    attempts: tuple[Uuid, ...] = ()
    #: Those of the attempts whose hosts are still to be cleaned up.
    cleaned: tuple[Uuid, ...] = ()
    migrations: tuple[Uuid, ...] = ()


class SeenConsumer(Value, frozen=True, kw_only=True):
    """A consumer as the store was seen to have it, for a later write to compare."""

    #: Null where there was none.
    generation: Generation | None = None
    claim_id: Uuid | None = None
