"""Every noun of the API; falcon finds the one that a path stands for."""

from collections.abc import Sequence

from placement_store.http.operations import Noun
from placement_store.http.resources.aggregates import Aggregates
from placement_store.http.resources.allocation_candidates import Candidates
from placement_store.http.resources.allocations import Allocations, AllocationsOfConsumer
from placement_store.http.resources.inventories import Inventories, InventoryOfClass
from placement_store.http.resources.provider_allocations import AllocationsOfProvider
from placement_store.http.resources.provider_traits import ProviderTraits
from placement_store.http.resources.provider_usages import ProviderUsages
from placement_store.http.resources.reshaper import Reshaper
from placement_store.http.resources.resource_classes import ResourceClass, ResourceClasses
from placement_store.http.resources.resource_providers import ResourceProvider, ResourceProviders
from placement_store.http.resources.root import Root
from placement_store.http.resources.traits import Trait, Traits
from placement_store.http.resources.usages import Usages

NOUNS: Sequence[type[Noun]] = [
    Root,
    ResourceProviders,
    ResourceProvider,
    Inventories,
    InventoryOfClass,
    ProviderUsages,
    Aggregates,
    ProviderTraits,
    Traits,
    Trait,
    ResourceClasses,
    ResourceClass,
    AllocationsOfProvider,
    Allocations,
    AllocationsOfConsumer,
    Usages,
    Candidates,
    Reshaper,
]
