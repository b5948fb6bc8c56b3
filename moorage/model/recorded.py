"""Allocations by their owners' records, by which an audit compares and heals the store."""

from typing import Annotated, Literal

from msgspec import Meta

from moorage.model.allocations import ProviderAmounts
from moorage.model.basis import Generation, Name, Suffix, Uuid, Value
from moorage.model.moves import ServerGroup


class RecordedHold(Value, frozen=True, kw_only=True):
    """The allocations of one consumer by its owner's records.

    The amounts are those of the claim. Those of ``pools`` are on these very providers; a reshape may have moved the
    others to any provider of the host's tree.
    """

    consumer_uuid: Uuid
    consumer_type: Literal["INSTANCE", "MIGRATION", "RESIDUE"]
    #: Null for a residue.
    claim_id: Uuid | None = None
    #: The host's root provider.
    root_provider_uuid: Uuid
    #: The attempt whose host has accepted the claim, and that host; null where no acceptance is recorded.
    accepted_by: Uuid | None = None
    accepted_host: Name | None = None
    #: Empty for a claim whose amounts the store cannot hold any more; up to 1.8 never.
    allocations: Annotated[dict[Uuid, ProviderAmounts], Meta(max_length=256)]
    pools: Annotated[tuple[Uuid, ...], Meta(max_length=256)] = ()
    project_id: Name
    user_id: Name
    #: For a migration or a residue, its instance.
    migration_of: Uuid | None = None
    group: ServerGroup | None = None
    #: The providers of its suffixed groups that are isolated from each other.
    isolated: dict[Suffix, tuple[Uuid, ...]] = {}
    #: The service that knows whether the claim is wanted.
    owner: Name | None = None


class InstanceHolds(Value, frozen=True, kw_only=True):
    """The allocations of an instance, its migration and its residues by their cell's records."""

    instance_uuid: Uuid
    state: str
    #: False while an operation may change the allocations: the records are then not comparable.
    settled: bool
    holds: tuple[RecordedHold, ...] = ()
    #: All recorded attempts and moves: a consumer with one of these uuids belongs to the instance.
    attempts: tuple[Uuid, ...] = ()
    #: The attempts whose hosts are still to be cleaned up.
    cleaned: tuple[Uuid, ...] = ()
    migrations: tuple[Uuid, ...] = ()


class SeenConsumer(Value, frozen=True, kw_only=True):
    """A consumer as last read from the store, which a later write compares."""

    #: Null if it did not exist.
    generation: Generation | None = None
    claim_id: Uuid | None = None
