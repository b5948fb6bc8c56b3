"""``/resource_providers/{uuid}/traits``: the traits of a provider."""

from collections.abc import Sequence

from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import SetTraits
from placement_store.http.operations import Call, OperationResult, operation
from placement_store.http.refusals import UNDEFINED
from placement_store.http.resources.resource_providers import ProviderScopedResource
from placement_store.http.schemas import GENERATION, Schema, Schemas, document
from placement_store.providers import outlines, traits
from placement_store.providers.outlines import Outline

_TRAIT: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[A-Z0-9_]+\Z"}

#: What ``PUT /resource_providers/{uuid}/traits`` takes.
_REPLACE_SCHEMAS = Schemas(
    {
        "1.6": document(
            {
                "traits": {"type": "array", "items": _TRAIT, "uniqueItems": True, "maxItems": 1024},
                "resource_provider_generation": GENERATION,
            },
            required=("traits", "resource_provider_generation"),
        )
    }
)


class ProviderTraitsResource(ProviderScopedResource):
    """The traits of a provider."""

    path = "/resource_providers/{uuid}/traits"

    @operation("placement:resource_providers:traits:list", since="1.6")
    def on_get(self, _call: Call, uuid: str) -> OperationResult:
        """List the traits of a provider."""
        return _shown(*self.store.read(lambda connection: _held(connection, uuid)))

    @operation(
        "placement:resource_providers:traits:update",
        since="1.6",
        body=_REPLACE_SCHEMAS,
        error_status={errors.TraitNotFound: (400, UNDEFINED)},
    )
    def on_put(self, call: Call, uuid: str) -> OperationResult:
        """Replace the traits of a provider."""
        message = SetTraits(
            request_id=ids.fresh(),
            uuid=uuid,
            traits=tuple(call.body["traits"]),
            generation=int(call.body["resource_provider_generation"]),
        )
        return _shown(*self._held_after(message))

    @operation("placement:resource_providers:traits:delete", since="1.6")
    def on_delete(self, _call: Call, uuid: str) -> OperationResult:
        """Remove all traits from a provider."""
        self._held_after(SetTraits(request_id=ids.fresh(), uuid=uuid, traits=()))
        return OperationResult(204)

    def _held_after(self, message: SetTraits) -> tuple[Outline, Sequence[str]]:
        def work(connection: Connection) -> tuple[Outline, Sequence[str]]:
            traits.set_traits(connection, message)
            return _held(connection, message.uuid)

        return self.store.write(work)


def _held(connection: Connection, uuid: str) -> tuple[Outline, Sequence[str]]:
    provider = outlines.get(connection, uuid)
    return provider, traits.of(connection, [provider.id]).get(provider.id, [])


def _shown(provider: Outline, held: Sequence[str]) -> OperationResult:
    body = {"traits": held, "resource_provider_generation": provider.generation}
    return OperationResult(body=body, modified=provider.updated_at)
