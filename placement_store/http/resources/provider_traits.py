"""``/resource_providers/{uuid}/traits``: the traits of a provider."""

from collections.abc import Sequence

from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import SetTraits
from placement_store.http.operations import Answer, Call, operation
from placement_store.http.refusals import UNDEFINED
from placement_store.http.resources.of_provider import OfProvider
from placement_store.http.schemas import traits as schemas
from placement_store.providers import outlines, traits
from placement_store.providers.outlines import Outline


class ProviderTraits(OfProvider):
    """The traits of a provider."""

    path = "/resource_providers/{uuid}/traits"

    @operation("placement:resource_providers:traits:list", since="1.6")
    def on_get(self, _call: Call, uuid: str) -> Answer:
        """Return them."""
        return _shown(*self.store.read(lambda connection: _held(connection, uuid)))

    @operation(
        "placement:resource_providers:traits:update",
        since="1.6",
        body=schemas.REPLACE,
        told={errors.TraitNotFound: (400, UNDEFINED)},
    )
    def on_put(self, call: Call, uuid: str) -> Answer:
        """Replace them."""
        message = SetTraits(
            request_id=ids.fresh(),
            uuid=uuid,
            traits=tuple(call.body["traits"]),
            generation=int(call.body["resource_provider_generation"]),
        )
        return _shown(*self._held_after(message))

    @operation("placement:resource_providers:traits:delete", since="1.6")
    def on_delete(self, _call: Call, uuid: str) -> Answer:
        """Take them all away."""
        self._held_after(SetTraits(request_id=ids.fresh(), uuid=uuid, traits=()))
        return Answer(204)

    def _held_after(self, message: SetTraits) -> tuple[Outline, Sequence[str]]:
        def work(connection: Connection) -> tuple[Outline, Sequence[str]]:
            traits.set_traits(connection, message)
            return _held(connection, message.uuid)

        return self.store.write(work)


def _held(connection: Connection, uuid: str) -> tuple[Outline, Sequence[str]]:
    provider = outlines.get(connection, uuid)
    return provider, traits.of(connection, [provider.id]).get(provider.id, [])


def _shown(provider: Outline, held: Sequence[str]) -> Answer:
    body = {"traits": held, "resource_provider_generation": provider.generation}
    return Answer(body=body, modified=provider.updated_at)
