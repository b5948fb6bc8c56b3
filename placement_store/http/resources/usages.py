"""``/usages`` and ``/resource_providers/{uuid}/usages``: the allocations of a project or of a provider, summed."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from placement_store.http.operations import Call, DeclaredOperation, OperationResult, Resource
from placement_store.http.resources.resource_providers import ProviderScopedResource
from placement_store.http.schemas import NAME, Schema, Schemas, document, with_more
from placement_store.http.versions import v
from placement_store.providers import rows as providers
from placement_store.providers import usages
from placement_store.providers.usages import Sums

#: The values for all types together, and for consumers that have no type.
ALL, UNKNOWN = "all", "unknown"
_TYPE: Schema = {**NAME, "pattern": rf"^([A-Z0-9_]+|{ALL}|{UNKNOWN})\Z"}

_LIST_1_9 = document({"project_id": NAME, "user_id": NAME}, required=("project_id",))
_LIST_SCHEMAS = Schemas({"1.9": _LIST_1_9, "1.38": with_more(_LIST_1_9, {"consumer_type": _TYPE})})

_BY_TYPE_SINCE = v("1.38")


class UsagesResource(Resource):
    """The usages of a project, or of one user of it."""

    path = "/usages"

    @DeclaredOperation("placement:usages", since=v("1.9"), query=_LIST_SCHEMAS, target=("project_id", "user_id"))
    def on_get(self, call: Call) -> OperationResult:
        """Show sums by resource class and, from 1.38, by consumer type."""
        sent = call.last_values
        project_id, user_id = sent["project_id"], sent.get("user_id")
        found = self.store.read(
            lambda connection: usages.of_stored_types(connection, project_id, user_id, self.store.classes)
        )
        if call.version < _BY_TYPE_SINCE:
            shown: Mapping[str, Any] = _together(found.values()).resources
        else:
            shown = _by_type({name or UNKNOWN: sums for name, sums in found.items()}, sent.get("consumer_type"))
        return OperationResult(body={"usages": shown}, modified=time.time())


def _by_type(found: Mapping[str, Sums], sent: str | None) -> dict[str, Any]:
    if sent == ALL:
        found = {ALL: _together(found.values())} if found else {}
    return {
        name: {"consumer_count": sums.consumer_count, **sums.resources}
        for name, sums in sorted(found.items())
        if sent in (None, name)
    }


def _together(parts: Iterable[Sums]) -> Sums:
    consumer_count, resources = 0, Counter[str]()
    for part in parts:
        consumer_count += part.consumer_count
        resources.update(part.resources)
    return Sums(consumer_count, dict(sorted(resources.items())))


class ProviderUsagesResource(ProviderScopedResource):
    """The used amount of each inventory of a provider."""

    path = "/resource_providers/{uuid}/usages"

    @DeclaredOperation("placement:resource_providers:usages")
    def on_get(self, _call: Call, uuid: str) -> OperationResult:
        """Show the used amount of each inventory, zeros included."""
        provider, used = self.present(uuid)
        body = {"resource_provider_generation": provider.generation, "usages": dict(sorted(used.items()))}
        return OperationResult(body=body, modified=provider.updated_at)

    def part(self, connection: Connection, id_: int) -> dict[str, int]:
        """Read the used amounts of a provider."""
        rows = providers.inventories_of(connection, [id_]).get(id_, {})
        return {self.store.classes.name_of(number, connection): row.used for number, row in rows.items()}
