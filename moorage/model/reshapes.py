"""Reshapes: how inventories, and all that is allocated of them, move between the providers of one tree."""

from typing import Annotated

from msgspec import Meta

from moorage.model.allocations import Aggregates, Inventories, Traits
from moorage.model.basis import Amount, Count, Generation, Name, NewName, ResourceClassName, Resources, Uuid, Value


class ReshapedInventories(Value, frozen=True, kw_only=True):
    """All that a provider shall have after a whole-tree reshape."""

    #: Compared.
    generation: Generation
    inventories: Inventories


class InventoryFields(Value, frozen=True, kw_only=True):
    """How an inventory that is moved shall be described where it arrives; what is null comes from where it was.

    ``max_unit`` is never more than the total that arrives.
    """

    reserved: Count | None = None
    min_unit: Amount | None = None
    max_unit: Amount | None = None
    step_size: Amount | None = None
    allocation_ratio: Annotated[float, Meta(gt=0)] | None = None


class ChildProvider(Value, frozen=True, kw_only=True):
    """A provider that a reshape creates if it is not there, or finds as it is described here."""

    name: NewName
    #: The uuid or the name of its parent: a provider of the tree, be it another new one.
    parent: Name
    #: Null: the one that is there under this name, else a new one.
    uuid: Uuid | None = None
    inventories: dict[ResourceClassName, InventoryFields] = {}
    traits: Traits = ()
    aggregates: Aggregates = ()


class MoveInstruction(Value, frozen=True, kw_only=True):
    """So much of the inventory of one provider moves to another of the same tree, with what is allocated of it.

    Providers are named by uuid or by name.
    """

    from_resource_provider: Name
    moved_resources: Annotated[Resources, Meta(min_length=1, max_length=256)]
    to_resource_provider: Name


class Dealt(Value, frozen=True, kw_only=True):
    """Amounts of one consumer that a reshape moves from one provider to another.

    In a request it is the caller's word for where that shall go; providers are then named by uuid or by name.
    """

    consumer_uuid: Uuid
    from_resource_provider: Name
    to_resource_provider: Name
    resources: Annotated[Resources, Meta(min_length=1, max_length=256)]


class ReshapePlan(Value, frozen=True, kw_only=True):
    """The effect of a reshape by move instructions, planned or done. Providers are named by uuid."""

    #: Name by uuid. In a plan, the uuids of providers that are not named by one are made up.
    created: dict[Uuid, Name] = {}
    #: The inventories that change, as they are afterwards; a provider that is left with none of them has an empty one.
    inventories: dict[Uuid, Inventories] = {}
    dealt: tuple[Dealt, ...] = ()
