"""List the API's resources, one module each: falcon routes each request by their paths."""

from collections.abc import Sequence

from placement_store.http.operations import Resource
from placement_store.http.resources.aggregates import AggregatesResource
from placement_store.http.resources.allocation_candidates import CandidatesResource
from placement_store.http.resources.allocations import AllocationsOfConsumerResource, AllocationsResource
from placement_store.http.resources.inventories import InventoriesResource, InventoryOfClassResource
from placement_store.http.resources.provider_allocations import AllocationsOfProviderResource
from placement_store.http.resources.provider_traits import ProviderTraitsResource
from placement_store.http.resources.provider_usages import ProviderUsagesResource
from placement_store.http.resources.reshaper import ReshaperResource
from placement_store.http.resources.resource_classes import ResourceClassesResource, ResourceClassResource
from placement_store.http.resources.resource_providers import ResourceProviderResource, ResourceProvidersResource
from placement_store.http.resources.root import RootResource
from placement_store.http.resources.traits import TraitResource, TraitsResource
from placement_store.http.resources.usages import UsagesResource

RESOURCES: Sequence[type[Resource]] = [
    RootResource,
    ResourceProvidersResource,
    ResourceProviderResource,
    InventoriesResource,
    InventoryOfClassResource,
    ProviderUsagesResource,
    AggregatesResource,
    ProviderTraitsResource,
    TraitsResource,
    TraitResource,
    ResourceClassesResource,
    ResourceClassResource,
    AllocationsOfProviderResource,
    AllocationsResource,
    AllocationsOfConsumerResource,
    UsagesResource,
    CandidatesResource,
    ReshaperResource,
]

__all__ = ["RESOURCES"]
