"""Topic `placement` of the main bus: resource providers, inventories, traits, usages, candidates and reshapes."""

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from moorage.messages.basis import IN_PARTS, Done, ListInParts, ToPlacement
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    Aggregates,
    AllocationCandidates,
    ChildProvider,
    ConsumerAllocations,
    ConsumerType,
    Count,
    Generation,
    Inventories,
    Inventory,
    MoveInstruction,
    Name,
    NewProviderName,
    ProviderAllocations,
    ProviderReport,
    Reallocation,
    ReshapedInventories,
    ReshapePlan,
    ResourceClassName,
    ResourceGroup,
    ResourceProvider,
    ResourceRequest,
    TraitName,
    Traits,
    Usage,
    Uuid,
    Value,
)

#: The most allocation candidates of one answer.
MAX_CANDIDATES = 1000

# --- Providers ------------------------------------------------------------------------------------------------------


class CreateResourceProvider(Mutation[ResourceProvider], ToPlacement, frozen=True, kw_only=True):
    """Create a provider without inventory: a root, or a child of the given parent."""

    since: ClassVar = {"parent_provider_uuid": "1.2"}
    uuid: Uuid
    name: NewProviderName
    parent_provider_uuid: Uuid | None = None


class UpdateResourceProvider(Mutation[ResourceProvider], ToPlacement, frozen=True, kw_only=True):
    """Change the name or the parent of a provider; a null parent makes it a root. Fields not given stay."""

    version = "1.2"
    uuid: Uuid
    name: NewProviderName | None = None
    parent_provider_uuid: Uuid | UnsetType | None = UNSET


class DeleteResourceProvider(Mutation[Done], ToPlacement, frozen=True, kw_only=True):
    """Delete a provider that has no children and no allocations, with its inventories."""

    uuid: Uuid


class GetResourceProvider(Message[ResourceProvider], ToPlacement, frozen=True, kw_only=True):
    """Return one provider with its inventories and their use."""

    uuid: Uuid


class ListResourceProviders(ListInParts[list[ResourceProvider]], ToPlacement, frozen=True, kw_only=True):
    """List the providers by name: all, or those that meet all given conditions; in parts by ``uuid``.

    ``matching`` applies to each provider by itself: its free resources, traits, aggregates and tree.
    """

    since: ClassVar = {**IN_PARTS, "uuid": "1.2", "matching": "1.2"}
    name: Name | None = None
    uuid: Uuid | None = None
    matching: ResourceGroup | None = None
    after: Uuid | None = None


class ListProviderTrees(Message[list[ResourceProvider]], ToPlacement, frozen=True, kw_only=True):
    """List all providers of the trees of these providers, parents before their children; missing ones are skipped."""

    version = "1.2"
    uuids: Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=1000)]


# --- Inventories, traits and aggregates -----------------------------------------------------------------------------


class SetInventories(Mutation[ResourceProvider], ToPlacement, frozen=True, kw_only=True):
    """Replace all inventories of a provider; ``generation`` is compared and bumped."""

    uuid: Uuid
    generation: Generation
    inventories: Inventories


class ProviderChange(Mutation[ResourceProvider], ToPlacement, frozen=True, kw_only=True):
    """A change of a provider; ``generation`` is compared where given, and bumped."""

    version = "1.2"
    uuid: Uuid
    generation: Generation | None = None


class SetInventory(ProviderChange, frozen=True, kw_only=True):
    """Create or replace the inventory of one class; ``generation`` is compared where given, and bumped."""

    resource_class: ResourceClassName
    inventory: Inventory
    #: Whether it must exist already (``InventoryNotFound``), must not (``AlreadyExists``), or may.
    expected: Literal["present", "absent", "any"] = "any"


class DeleteInventory(ProviderChange, frozen=True, kw_only=True):
    """Delete the inventory of one class, which must have no allocations."""

    resource_class: ResourceClassName


class DeleteInventories(ProviderChange, frozen=True, kw_only=True):
    """Delete all inventories of a provider, which must have no allocations."""


class SetTraits(ProviderChange, frozen=True, kw_only=True):
    """Replace all traits of a provider; ``generation`` is compared where given, and bumped if anything changes."""

    traits: Traits


class SetAggregates(ProviderChange, frozen=True, kw_only=True):
    """Replace all aggregates of a provider; ``generation`` is compared where given, and bumped.

    New aggregates are created.
    """

    aggregates: Aggregates


class ProvidersReported(Value, frozen=True, kw_only=True):
    """The present generations of the reported providers; empty from a former release."""

    generations: dict[Uuid, Generation] = {}


ProviderReports = Annotated[tuple[ProviderReport, ...], Meta(max_length=1000)]


class ReportProviders(Mutation[ProvidersReported], ToPlacement, frozen=True, kw_only=True):
    """Create and change providers by their hosts' reports, in one transaction.

    Parents stand before their children. ``gone`` are deleted, children before their parents.
    """

    since: ClassVar = {"gone": "1.2"}
    providers: ProviderReports
    gone: Annotated[tuple[Uuid, ...], Meta(max_length=1000)] = ()


# --- Names ----------------------------------------------------------------------------------------------------------


class Ensured(Value, frozen=True, kw_only=True):
    """The answer whether something was created or existed already."""

    created: bool


class ListResourceClasses(Message[list[ResourceClassName]], ToPlacement, frozen=True, kw_only=True):
    """List all resource classes, standard and custom, by name."""

    version = "1.2"


class EnsureResourceClass(Mutation[Ensured], ToPlacement, frozen=True, kw_only=True):
    """Create a custom resource class, unless it exists."""

    version = "1.2"
    name: ResourceClassName


class DeleteResourceClass(Mutation[Done], ToPlacement, frozen=True, kw_only=True):
    """Delete a custom resource class that no provider has an inventory of."""

    version = "1.2"
    name: ResourceClassName


class ListTraits(Message[list[TraitName]], ToPlacement, frozen=True, kw_only=True):
    """List the traits by name: all, or those that meet all given conditions."""

    version = "1.2"
    names: Annotated[tuple[TraitName, ...], Meta(max_length=1000)] | None = None
    starting_with: TraitName | None = None
    #: True for only those that a provider has, false for only those that none has.
    associated: bool | None = None


class EnsureTrait(Mutation[Ensured], ToPlacement, frozen=True, kw_only=True):
    """Create a custom trait, unless it exists."""

    version = "1.2"
    name: TraitName


class DeleteTrait(Mutation[Done], ToPlacement, frozen=True, kw_only=True):
    """Delete a custom trait that no provider has."""

    version = "1.2"
    name: TraitName


# --- Allocations, usages and candidates -----------------------------------------------------------------------------


class ListProviderAllocations(ListInParts[ProviderAllocations], ToPlacement, frozen=True, kw_only=True):
    """List the consumers with allocations of one provider, with their amounts; in parts by uuid."""

    version = "1.2"
    uuid: Uuid
    after: Uuid | None = None


class ListUsages(Message[list[Usage]], ToPlacement, frozen=True, kw_only=True):
    """Sum the allocations of a project's consumers by consumer type; of one user or one type, where given."""

    version = "1.2"
    project_id: Name
    user_id: Name | None = None
    consumer_type: ConsumerType | None = None


class ListAllocationCandidates(Message[AllocationCandidates], ToPlacement, frozen=True, kw_only=True):
    """List allocation candidates of a request, from all trees. Nothing is claimed.

    A trait or class that does not exist is refused; an unused aggregate or tree gives no candidates.
    """

    version = "1.2"
    since: ClassVar = {"request.apart": "1.4", "request.root_member_of": "1.4", "request.root_not_member_of": "1.4"}
    request: ResourceRequest
    limit: Annotated[int, Meta(ge=1, le=MAX_CANDIDATES)] = MAX_CANDIDATES


# --- Reshapes -------------------------------------------------------------------------------------------------------


class Reshape(Mutation[Done], ToPlacement, frozen=True, kw_only=True):
    """Replace all inventories of some providers and all allocations of some consumers, in one transaction.

    Other providers and consumers stay as they are (Placement's `POST /reshaper`).
    """

    version = "1.2"
    inventories: Annotated[dict[Uuid, ReshapedInventories], Meta(min_length=1, max_length=1000)]
    allocations: Annotated[dict[Uuid, ConsumerAllocations], Meta(max_length=100_000)] = {}


Children = Annotated[tuple[ChildProvider, ...], Meta(max_length=1000)]
MoveInstructions = Annotated[tuple[MoveInstruction, ...], Meta(min_length=1, max_length=1000)]
GivenReallocations = Annotated[tuple[Reallocation, ...], Meta(max_length=100_000)]
SearchSteps = Annotated[int, Meta(ge=1, le=10_000_000)]

#: The default bound on the steps of the search for a distribution.
DEFAULT_SEARCH_STEPS = 100_000


class ReshapeByInstructions(Mutation[ReshapePlan], ToPlacement, frozen=True, kw_only=True):
    """Move inventories between providers of one tree, with their allocations, in one transaction.

    Missing providers are created by ``providers``. Allocations of moved inventories go to the places in ``dealt``; the
    others are distributed so that each fits its new place whole. No generation is compared, only ``totals``, if given.
    """

    version = "1.2"
    since: ClassVar = {"totals": "1.9"}
    guards: ClassVar = frozenset({"totals"})
    instructions: MoveInstructions
    providers: Children = ()
    dealt: GivenReallocations = ()
    search_steps: SearchSteps = DEFAULT_SEARCH_STEPS
    #: Totals that the caller relies on, by uuid or name of a provider; 0 stands for an inventory that does not exist.
    totals: Annotated[dict[Name, dict[ResourceClassName, Count]], Meta(max_length=2000)] | None = None


class PlanReshape(Message[ReshapePlan], ToPlacement, frozen=True, kw_only=True):
    """Return the plan of a :class:`ReshapeByInstructions` without carrying it out."""

    version = "1.2"
    instructions: MoveInstructions
    providers: Children = ()
    dealt: GivenReallocations = ()
    search_steps: SearchSteps = DEFAULT_SEARCH_STEPS
