"""Reshapes: moves of inventories with their allocations between the providers of one tree."""

from typing import Annotated

from msgspec import Meta

from moorage.model.allocations import Aggregates, Inventories, Traits
from moorage.model.basis import (
    Amount,
    Count,
    Generation,
    Name,
    NewProviderName,
    ResourceClassName,
    Resources,
    Uuid,
    Value,
)


class ReshapedInventories(Value, frozen=True, kw_only=True):
    """The complete inventories of a provider after a whole-tree reshape."""

    #: Compared with the stored generation.
    generation: Generation
    inventories: Inventories


class InventoryFields(Value, frozen=True, kw_only=True):
    """The fields of a moved inventory at its destination; null fields are taken from its source.

    ``max_unit`` is at most the total that arrives.
    """

    reserved: Count | None = None
    min_unit: Amount | None = None
    max_unit: Amount | None = None
    step_size: Amount | None = None
    allocation_ratio: Annotated[float, Meta(gt=0)] | None = None


class ChildProvider(Value, frozen=True, kw_only=True):
    """A provider that a reshape creates if it is missing; an existing one must be as described here."""

    name: NewProviderName
    #: The uuid or the name of its parent: a provider of the tree, or another new one.
    parent: Name
    #: Null means the uuid of the existing provider of this name, or else a new uuid.
    uuid: Uuid | None = None
    inventories: dict[ResourceClassName, InventoryFields] = {}
    traits: Traits = ()
    aggregates: Aggregates = ()


class MoveInstruction(Value, frozen=True, kw_only=True):
    """A move of inventory amounts from one provider to another of the same tree, with their allocations.

    Providers are named by uuid or by name.
    """

    from_resource_provider: Name
    moved_resources: Annotated[Resources, Meta(min_length=1, max_length=256)]
    to_resource_provider: Name


class Reallocation(Value, frozen=True, kw_only=True):
    """Amounts of one consumer that a reshape moves from one provider to another.

    In a request the caller chooses the destination; providers are then named by uuid or by name.
    """

    consumer_uuid: Uuid
    from_resource_provider: Name
    to_resource_provider: Name
    resources: Annotated[Resources, Meta(min_length=1, max_length=256)]


#: The former name, for drivers that import it.
Dealt = Reallocation


class ReshapePlan(Value, frozen=True, kw_only=True):
    """The effect of a reshape by move instructions, planned or done. Providers are named by uuid."""

    #: The name of each new provider by uuid. In a plan, uuids that are not given are random.
    created: dict[Uuid, Name] = {}
    #: The changed inventories after the reshape; empty for a provider without any of them.
    inventories: dict[Uuid, Inventories] = {}
    #: The allocations that move; the name of the field is on the wire.
    dealt: tuple[Reallocation, ...] = ()
