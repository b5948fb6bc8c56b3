"""``/resource_providers/{uuid}/aggregates``: the aggregates of a provider."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import SetAggregates
from placement_store.db import change_feed
from placement_store.http.operations import Call, DeclaredOperation, OperationResult
from placement_store.http.phrases import Phrase
from placement_store.http.query import canonical_uuid
from placement_store.http.refusals import CONCURRENT_UPDATE, ErrorAnswer
from placement_store.http.resources.resource_providers import ProviderScopedResource
from placement_store.http.schemas import GENERATION, UUID, Schema, Schemas, document
from placement_store.http.versions import v
from placement_store.providers import aggregates
from placement_store.providers import rows as providers
from placement_store.providers.outlines import Outline

_UUIDS: Schema = {"type": "array", "items": UUID, "uniqueItems": True, "maxItems": 1024}

_REPLACE_SCHEMAS = Schemas(
    {
        "1.1": _UUIDS,
        "1.19": document(
            {"aggregates": _UUIDS, "resource_provider_generation": GENERATION},
            required=("aggregates", "resource_provider_generation"),
        ),
    }
)

_GENERATIONS_SINCE = v("1.19")


class AggregatesResource(ProviderScopedResource):
    """The aggregates of a provider."""

    path = "/resource_providers/{uuid}/aggregates"

    @DeclaredOperation("placement:resource_providers:aggregates:list", since=v("1.1"))
    def on_get(self, call: Call, uuid: str) -> OperationResult:
        """List the aggregates of a provider, from 1.19 with its generation."""
        return _shown(call, *self.present(uuid))

    @DeclaredOperation(
        "placement:resource_providers:aggregates:update",
        since=v("1.1"),
        body=_REPLACE_SCHEMAS,
        answers={errors.ProviderGenerationConflict: ErrorAnswer(409, CONCURRENT_UPDATE, (Phrase.UPDATE_GENERATION,))},
    )
    def on_put(self, call: Call, uuid: str) -> OperationResult:
        """Replace the aggregates of a provider; before 1.19 its generation is neither compared nor bumped."""
        by_generation = call.version >= _GENERATIONS_SINCE
        sent = call.body["aggregates"] if by_generation else call.body
        wanted = tuple(dict.fromkeys(str(canonical_uuid(one)) for one in sent))
        if by_generation:
            generation = int(call.body["resource_provider_generation"])
            message = SetAggregates(request_id=ids.fresh(), uuid=uuid, aggregates=wanted, generation=generation)
            provider, held = self.after(message)
        else:
            provider, held = self.store.once_without_id(partial(self._replace_silently, uuid=uuid, wanted=wanted))
        # In the order in which they were sent; then the aggregates that a node has through its host, which stay.
        return _shown(call, provider, [*wanted, *(one for one in held if one not in wanted)])

    def part(self, connection: Connection, id_: int) -> Sequence[str]:
        """Read the aggregates of a provider."""
        return sorted(aggregates.of(connection, [id_]).get(id_, ()))

    def _replace_silently(
        self, connection: Connection, uuid: str, wanted: Sequence[str]
    ) -> tuple[Outline, Sequence[str]]:
        """Replace the aggregates of a provider without bumping its generation, for a client from before 1.19.

        Such a client does not compare generations here, and continues to use the one that it has.
        """
        id_ = providers.lock_at(connection, uuid, None)
        aggregates.replace(connection, {id_: wanted})
        providers.bump_generations(connection, [id_], by=0)
        change_feed.record(connection, provider_ids=[id_])
        return self.read(connection, uuid)


def _shown(call: Call, provider: Outline, held: Sequence[str]) -> OperationResult:
    body: dict[str, Any] = {"aggregates": held}
    if call.version >= _GENERATIONS_SINCE:
        body["resource_provider_generation"] = provider.generation
    return OperationResult(body=body, modified=provider.updated_at)
