"""List the API's resources: falcon routes each request by their paths; the root, the version document, is here."""

import time
from collections.abc import Sequence

from placement_store.http.operations import Call, DeclaredOperation, OperationResult, Resource
from placement_store.http.resources.aggregates import AggregatesResource
from placement_store.http.resources.allocation_candidates import CandidatesResource
from placement_store.http.resources.allocations import (
    AllocationsOfConsumerResource,
    AllocationsOfProviderResource,
    AllocationsResource,
)
from placement_store.http.resources.inventories import InventoriesResource, InventoryOfClassResource
from placement_store.http.resources.reshaper import ReshaperResource
from placement_store.http.resources.resource_classes import ResourceClassesResource, ResourceClassResource
from placement_store.http.resources.resource_providers import ResourceProviderResource, ResourceProvidersResource
from placement_store.http.resources.traits import ProviderTraitsResource, TraitResource, TraitsResource
from placement_store.http.resources.usages import ProviderUsagesResource, UsagesResource
from placement_store.http.versions import MAX, MIN


class RootResource(Resource):
    """The version document."""

    path = "/"

    @DeclaredOperation(None, for_any_accept=True)
    def on_get(self, _call: Call) -> OperationResult:
        """Show the range of microversions."""
        version = {
            "id": f"v{MIN}",
            "max_version": str(MAX),
            "min_version": str(MIN),
            "status": "CURRENT",
            "links": [{"rel": "self", "href": ""}],
        }
        return OperationResult(body={"versions": [version]}, modified=time.time())


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
