"""Topic `placement` of the main bus: resource providers, what they have, what may be asked of them, and reshapes."""

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from moorage.messages.basis import IN_PARTS, Done, ListInParts
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    Aggregates,
    AllocationCandidates,
    ChildProvider,
    ConsumerAllocations,
    ConsumerType,
    Dealt,
    Generation,
    Inventories,
    Inventory,
    MoveInstruction,
    Name,
    NewName,
    ProviderAllocations,
    ProviderReport,
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

#: The most allocation candidates that one answer has.
MAX_CANDIDATES = 1000

# --- Providers ------------------------------------------------------------------------------------------------------


class CreateResourceProvider(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Create a provider without inventory: a root, or a child of the parent that is named."""

    topic = "placement"
    method = "create_resource_provider"
    since: ClassVar = {"parent_provider_uuid": "1.2"}
    uuid: Uuid
    name: NewName
    parent_provider_uuid: Uuid | None = None


class UpdateResourceProvider(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Give a provider another name or another parent; a parent of null makes it a root. What is not said stays."""

    topic = "placement"
    method = "update_resource_provider"
    version = "1.2"
    uuid: Uuid
    name: NewName | None = None
    parent_provider_uuid: Uuid | UnsetType | None = UNSET


class DeleteResourceProvider(Mutation[Done], frozen=True, kw_only=True):
    """Delete a provider that has no children and that nobody holds anything of, with its inventories."""

    topic = "placement"
    method = "delete_resource_provider"
    uuid: Uuid


class GetResourceProvider(Message[ResourceProvider], frozen=True, kw_only=True):
    """One provider with its inventories and what is used of them."""

    topic = "placement"
    method = "get_resource_provider"
    uuid: Uuid


class ListResourceProviders(ListInParts[list[ResourceProvider]], frozen=True, kw_only=True):
    """The providers by name: all, or those for which everything that is said is true; in parts by ``uuid``.

    ``matching`` asks of each provider for itself: room for its resources, its traits, its aggregates, its tree.
    """

    topic = "placement"
    method = "list_resource_providers"
    since: ClassVar = {**IN_PARTS, "uuid": "1.2", "matching": "1.2"}
    name: Name | None = None
    uuid: Uuid | None = None
    matching: ResourceGroup | None = None
    after: Uuid | None = None


class ListProviderTrees(Message[list[ResourceProvider]], frozen=True, kw_only=True):
    """All providers of the trees that these belong to, parents before their children; one that is not there is none."""

    topic = "placement"
    method = "list_provider_trees"
    version = "1.2"
    uuids: Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=1000)]


# --- What they have -------------------------------------------------------------------------------------------------


class SetInventories(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Replace all inventories of a provider; ``generation`` is compared and moves."""

    topic = "placement"
    method = "set_inventories"
    uuid: Uuid
    generation: Generation
    inventories: Inventories


class SetInventory(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Create or replace the inventory of one class; ``generation`` is compared where named, and moves."""

    topic = "placement"
    method = "set_inventory"
    version = "1.2"
    uuid: Uuid
    resource_class: ResourceClassName
    inventory: Inventory
    generation: Generation | None = None
    #: Whether it must be there already (``InventoryNotFound``), must not (``AlreadyExists``), or may.
    expected: Literal["present", "absent", "any"] = "any"


class DeleteInventory(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Take away the inventory of one class that nobody holds anything of."""

    topic = "placement"
    method = "delete_inventory"
    version = "1.2"
    uuid: Uuid
    resource_class: ResourceClassName
    generation: Generation | None = None


class DeleteInventories(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Take away all inventories of a provider; nobody may hold anything of it."""

    topic = "placement"
    method = "delete_inventories"
    version = "1.2"
    uuid: Uuid
    generation: Generation | None = None


class SetTraits(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Replace all traits of a provider; ``generation`` is compared where named, and moves if anything changes."""

    topic = "placement"
    method = "set_traits"
    version = "1.2"
    uuid: Uuid
    traits: Traits
    generation: Generation | None = None


class SetAggregates(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Replace all aggregates of a provider; ``generation`` is compared where named, and moves.

    Aggregates that are new come to be by being named.
    """

    topic = "placement"
    method = "set_aggregates"
    version = "1.2"
    uuid: Uuid
    aggregates: Aggregates
    generation: Generation | None = None


class ProvidersReported(Value, frozen=True, kw_only=True):
    """The generations that the reported providers have now; none in the answer of an older version."""

    generations: dict[Uuid, Generation] = {}


ProviderReports = Annotated[tuple[ProviderReport, ...], Meta(max_length=1000)]


class ReportProviders(Mutation[ProvidersReported], frozen=True, kw_only=True):
    """Make the providers what their hosts say they are: create what is missing, change what differs.

    Parents stand before their children. ``gone`` are deleted, children before their parents. All or nothing.
    """

    topic = "placement"
    method = "report_providers"
    since: ClassVar = {"gone": "1.2"}
    providers: ProviderReports
    gone: Annotated[tuple[Uuid, ...], Meta(max_length=1000)] = ()


# --- Names ----------------------------------------------------------------------------------------------------------


class Ensured(Value, frozen=True, kw_only=True):
    """Whether something was created, or was there already."""

    created: bool


class ListResourceClasses(Message[list[ResourceClassName]], frozen=True, kw_only=True):
    """All resource classes, standard and custom, by name."""

    topic = "placement"
    method = "list_resource_classes"
    version = "1.2"


class EnsureResourceClass(Mutation[Ensured], frozen=True, kw_only=True):
    """Create a custom resource class, unless it is there."""

    topic = "placement"
    method = "ensure_resource_class"
    version = "1.2"
    name: ResourceClassName


class DeleteResourceClass(Mutation[Done], frozen=True, kw_only=True):
    """Delete a custom resource class that no provider has an inventory of."""

    topic = "placement"
    method = "delete_resource_class"
    version = "1.2"
    name: ResourceClassName


class ListTraits(Message[list[TraitName]], frozen=True, kw_only=True):
    """The traits by name: all, or those for which everything that is said is true."""

    topic = "placement"
    method = "list_traits"
    version = "1.2"
    names: Annotated[tuple[TraitName, ...], Meta(max_length=1000)] | None = None
    starting_with: TraitName | None = None
    #: Only those that some provider has, or only those that none has.
    associated: bool | None = None


class EnsureTrait(Mutation[Ensured], frozen=True, kw_only=True):
    """Create a custom trait, unless it is there."""

    topic = "placement"
    method = "ensure_trait"
    version = "1.2"
    name: TraitName


class DeleteTrait(Mutation[Done], frozen=True, kw_only=True):
    """Delete a custom trait that no provider has."""

    topic = "placement"
    method = "delete_trait"
    version = "1.2"
    name: TraitName


# --- Who uses how much, and what is left ----------------------------------------------------------------------------


class ListProviderAllocations(ListInParts[ProviderAllocations], frozen=True, kw_only=True):
    """List the consumers that hold anything of one provider, with their amounts; in parts by uuid."""

    topic = "placement"
    method = "list_provider_allocations"
    version = "1.2"
    uuid: Uuid
    after: Uuid | None = None


class ListUsages(Message[list[Usage]], frozen=True, kw_only=True):
    """What the consumers of a project hold, one item a consumer type; of one user, or of one type, where named."""

    topic = "placement"
    method = "list_usages"
    version = "1.2"
    project_id: Name
    user_id: Name | None = None
    consumer_type: ConsumerType | None = None


class ListAllocationCandidates(Message[AllocationCandidates], frozen=True, kw_only=True):
    """Ways to serve a request. From all trees. Nothing is reserved.

    A trait or class that does not exist is refused; an aggregate or tree that nobody has gives no candidates.
    """

    topic = "placement"
    method = "list_allocation_candidates"
    version = "1.2"
    since: ClassVar = {"request.apart": "1.4", "request.root_member_of": "1.4", "request.root_not_member_of": "1.4"}
    request: ResourceRequest
    limit: Annotated[int, Meta(ge=1, le=MAX_CANDIDATES)] = MAX_CANDIDATES


# --- Reshapes -------------------------------------------------------------------------------------------------------


class Reshape(Mutation[Done], frozen=True, kw_only=True):
    """Give providers all the inventories and consumers all the allocations named here, at once, or change nothing.

    Providers and consumers that are not named stay as they are (Placement's `POST /reshaper`).
    """

    topic = "placement"
    method = "reshape"
    version = "1.2"
    inventories: Annotated[dict[Uuid, ReshapedInventories], Meta(min_length=1, max_length=1000)]
    allocations: Annotated[dict[Uuid, ConsumerAllocations], Meta(max_length=100_000)] = {}


Children = Annotated[tuple[ChildProvider, ...], Meta(max_length=1000)]
MoveInstructions = Annotated[tuple[MoveInstruction, ...], Meta(min_length=1, max_length=1000)]
CallersDeals = Annotated[tuple[Dealt, ...], Meta(max_length=100_000)]
SearchSteps = Annotated[int, Meta(ge=1, le=10_000_000)]

#: How many steps the search for a deal takes before it gives up, where nobody says.
DEFAULT_SEARCH_STEPS = 100_000


class ReshapeByInstructions(Mutation[ReshapePlan], frozen=True, kw_only=True):
    """Move inventories between providers of one tree, with all that is allocated of them, at once, or change nothing.

    Providers that are missing are created as ``providers`` describes them. What each consumer holds of what moves goes
    where ``dealt`` says; the rest is dealt out so that each whole allocation fits its new place. No generation is
    named, and none can be in the way.
    """

    topic = "placement"
    method = "reshape_by_instructions"
    version = "1.2"
    instructions: MoveInstructions
    providers: Children = ()
    dealt: CallersDeals = ()
    search_steps: SearchSteps = DEFAULT_SEARCH_STEPS


class PlanReshape(Message[ReshapePlan], frozen=True, kw_only=True):
    """What :class:`ReshapeByInstructions` would do now; nothing is changed."""

    topic = "placement"
    method = "plan_reshape"
    version = "1.2"
    instructions: MoveInstructions
    providers: Children = ()
    dealt: CallersDeals = ()
    search_steps: SearchSteps = DEFAULT_SEARCH_STEPS
