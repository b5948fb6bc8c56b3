"""``/resource_providers/{uuid}/allocations``: the allocations of a provider."""

from typing import Any

from sqlalchemy import Connection

from moorage.messages import ListProviderAllocations
from moorage.model import ProviderAllocations
from placement_store.http.operations import Call, OperationResult, Resource, operation
from placement_store.http.versions import v
from placement_store.providers import outlines, usages

_GENERATION_SINCE = v("1.28")


class AllocationsOfProviderResource(Resource):
    """The allocations of one provider, by consumer."""

    path = "/resource_providers/{uuid}/allocations"

    @operation("placement:resource_providers:allocations:list")
    def on_get(self, call: Call, uuid: str) -> OperationResult:
        """List the allocations of a provider, by consumer."""

        def work(connection: Connection) -> tuple[float, ProviderAllocations]:
            modified = outlines.get(connection, uuid).updated_at
            return modified, usages.of_provider(connection, ListProviderAllocations(uuid=uuid), self.store.classes)

        modified, found = self.store.read(work)
        shown: dict[str, dict[str, Any]] = {}
        for consumer_uuid, held in found.allocations.items():
            shown[consumer_uuid] = {"resources": held.resources}
            if call.version >= _GENERATION_SINCE:
                shown[consumer_uuid]["consumer_generation"] = held.consumer_generation
        return OperationResult(
            body={"resource_provider_generation": found.generation, "allocations": shown}, modified=modified
        )
