"""``/resource_providers/{uuid}/usages``: the usages of a provider."""

from sqlalchemy import Connection

from placement_store.http.operations import Call, OperationResult, operation
from placement_store.http.resources.resource_providers import ProviderScopedResource
from placement_store.providers import outlines
from placement_store.providers import rows as providers
from placement_store.providers.outlines import Outline


class ProviderUsagesResource(ProviderScopedResource):
    """The used amount of each inventory of a provider."""

    path = "/resource_providers/{uuid}/usages"

    @operation("placement:resource_providers:usages")
    def on_get(self, _call: Call, uuid: str) -> OperationResult:
        """Show the used amount of each inventory, zeros included."""

        def work(connection: Connection) -> tuple[Outline, dict[str, int]]:
            provider = outlines.get(connection, uuid)
            rows = providers.inventories_of(connection, [provider.id]).get(provider.id, {})
            return provider, {self.store.classes.name_of(n, connection): row.used for n, row in rows.items()}

        provider, used = self.store.read(work)
        body = {"resource_provider_generation": provider.generation, "usages": dict(sorted(used.items()))}
        return OperationResult(body=body, modified=provider.updated_at)
