"""Resource providers, inventories, consumers and allocations."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.model.basis import (
    Amount,
    ConsumerType,
    Count,
    Generation,
    Name,
    NewProviderName,
    ResourceClassName,
    Resources,
    Suffix,
    TraitName,
    Uuid,
    Value,
)


class ProviderAmounts(Value, frozen=True, kw_only=True):
    """Amounts that a consumer holds, or is to hold, of one resource provider."""

    resources: Annotated[Resources, Meta(min_length=1, max_length=256)]
    #: In a write: the generation that the caller relies on, compared where given. In a read: the present one.
    generation: Generation | None = None


Allocations = Annotated[dict[Uuid, ProviderAmounts], Meta(max_length=256)]


class AllocationRequest(Value, frozen=True, kw_only=True):
    """An allocation request: amounts by provider, and the providers that serve each resource group."""

    allocations: Annotated[dict[Uuid, ProviderAmounts], Meta(min_length=1, max_length=256)]
    mappings: dict[Suffix, tuple[Uuid, ...]] = {}


class ConsumerAllocations(Value, frozen=True, kw_only=True):
    """The complete allocations of one consumer in a write: its other allocations are released."""

    since: ClassVar = {"isolated": "1.6"}
    allocations: Allocations
    project_id: Name
    user_id: Name
    consumer_type: ConsumerType = "INSTANCE"
    #: The generation that the caller relies on; null stands for a consumer that does not exist yet.
    consumer_generation: Generation | None
    #: Suffixed groups that may share no provider, with their providers: attached by this write, or detached (empty).
    isolated: dict[Suffix, tuple[Uuid, ...]] = {}


class Consumer(Value, frozen=True, kw_only=True):
    """A consumer in the store."""

    uuid: Uuid
    consumer_type: ConsumerType
    project_id: Name
    user_id: Name
    generation: Generation
    allocations: Allocations = {}
    claim_id: Uuid | None = None
    #: The attempt whose host has accepted the claim.
    accepted_by: Uuid | None = None
    #: The host that the claim places the consumer on.
    root_provider_uuid: Uuid | None = None
    owner: Name | None = None


class Inventory(Value, frozen=True, kw_only=True):
    """A provider's inventory of one resource class. Capacity = (total - reserved) x allocation_ratio."""

    total: Amount
    reserved: Count = 0
    min_unit: Amount = 1
    max_unit: Amount = 2**31 - 1
    step_size: Amount = 1
    allocation_ratio: Annotated[float, Meta(gt=0)] = 1.0

    @property
    def capacity(self) -> float:
        """The amount that can be allocated in all."""
        return (self.total - self.reserved) * self.allocation_ratio


Inventories = Annotated[dict[ResourceClassName, Inventory], Meta(max_length=256)]


class ResourceProvider(Value, frozen=True, kw_only=True):
    """A resource provider in the store; ``used`` has a key for each inventory. Names are sorted."""

    uuid: Uuid
    name: Name
    generation: Generation
    root_provider_uuid: Uuid
    parent_provider_uuid: Uuid | None = None
    inventories: Inventories = {}
    used: dict[ResourceClassName, int] = {}
    traits: tuple[TraitName, ...] = ()
    aggregates: tuple[Uuid, ...] = ()


Traits = Annotated[tuple[TraitName, ...], Meta(max_length=1024)]
Aggregates = Annotated[tuple[Uuid, ...], Meta(max_length=1024)]


class ProviderReport(Value, frozen=True, kw_only=True):
    """A report of one provider by its host; null fields leave the stored values as they are."""

    uuid: Uuid
    name: NewProviderName
    inventories: Inventories = {}
    #: Null for a root. A report never changes the parent of an existing provider.
    parent_provider_uuid: Uuid | None = None
    traits: Traits | None = None
    aggregates: Aggregates | None = None
    #: The generation that the reporter relies on, compared where given; null for a new provider.
    generation: Generation | None = None


# --- Holds and usages -----------------------------------------------------------------------------------------------


class ConsumerHold(Value, frozen=True, kw_only=True):
    """The amounts that one consumer holds of one provider."""

    resources: Resources
    consumer_generation: Generation


class ProviderAllocations(Value, frozen=True, kw_only=True):
    """The consumers of one provider, with their amounts."""

    generation: Generation
    allocations: dict[Uuid, ConsumerHold] = {}


class Usage(Value, frozen=True, kw_only=True):
    """The sum of the allocations of all consumers of one type."""

    consumer_type: ConsumerType
    consumer_count: int
    resources: dict[ResourceClassName, int] = {}


# --- Allocation candidates ------------------------------------------------------------------------------------------


class ProviderSummary(Value, frozen=True, kw_only=True):
    """Capacity and use of one provider of a tree with an allocation candidate."""

    root_provider_uuid: Uuid
    parent_provider_uuid: Uuid | None = None
    #: By resource class.
    capacity: dict[ResourceClassName, float] = {}
    used: dict[ResourceClassName, int] = {}
    traits: tuple[TraitName, ...] = ()


class AllocationCandidates(Value, frozen=True, kw_only=True):
    """Allocation candidates of a request, and all providers of their trees. Nothing is claimed."""

    allocation_requests: tuple[AllocationRequest, ...] = ()
    provider_summaries: dict[Uuid, ProviderSummary] = {}


#: The amounts of resource classes, by provider uuid.
Amounts = Mapping[str, Mapping[str, int]]


def in_words(amounts: Amounts) -> str:
    """Return amounts as text."""
    return ", ".join(
        f"{amount} {name} of provider {uuid}"
        for uuid, resources in sorted(amounts.items())
        for name, amount in sorted(resources.items())
    )


def amounts_of(allocations: Allocations) -> Amounts:
    """Return the amounts of allocations, by provider uuid and resource class."""
    return {uuid: part.resources for uuid, part in allocations.items()}
