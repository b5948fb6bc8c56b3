"""Every noun of the API; falcon finds the one that a path stands for."""

from collections.abc import Sequence

from placement_store.http.nouns.aggregates import Aggregates
from placement_store.http.nouns.allocation_candidates import Candidates
from placement_store.http.nouns.allocations import Allocations, AllocationsOfConsumer
from placement_store.http.nouns.inventories import Inventories, InventoryOfClass
from placement_store.http.nouns.provider_allocations import AllocationsOfProvider
from placement_store.http.nouns.provider_traits import ProviderTraits
from placement_store.http.nouns.provider_usages import ProviderUsages
from placement_store.http.nouns.reshaper import Reshaper
from placement_store.http.nouns.resource_classes import ResourceClass, ResourceClasses
from placement_store.http.nouns.resource_providers import ResourceProvider, ResourceProviders
from placement_store.http.nouns.root import Root
from placement_store.http.nouns.traits import Trait, Traits
from placement_store.http.nouns.usages import Usages
from placement_store.http.operations import Noun

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
