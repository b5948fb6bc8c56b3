"""``/traits`` and ``/resource_providers/{uuid}/traits``: the names of traits, and the traits of a provider."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import SetTraits
from placement_store.http.operations import Call, DeclaredOperation, OperationResult, Resource
from placement_store.http.phrases import Phrase, before
from placement_store.http.refusals import CONCURRENT_UPDATE, ErrorAnswer, HTTPRefusal
from placement_store.http.resources.names import NamedResource
from placement_store.http.resources.resource_providers import ProviderScopedResource, providers_first
from placement_store.http.schemas import GENERATION, NAME, TEXT, Schemas, document
from placement_store.http.versions import v
from placement_store.providers import traits
from placement_store.providers.outlines import Outline

_LIST_SCHEMAS = Schemas({"1.6": document({"name": TEXT, "associated": TEXT})})


class TraitsResource(Resource):
    """All traits."""

    path = "/traits"

    @DeclaredOperation("placement:traits:list", since=v("1.6"), query=_LIST_SCHEMAS)
    def on_get(self, call: Call) -> OperationResult:
        """List the traits, or those that match all parameters of the query."""
        wanted = _wanted(call.last_values)
        found = self.store.read(lambda connection: self.store.traits.listed(connection, **wanted))
        return OperationResult(body={"traits": found}, modified=time.time())


class TraitResource(NamedResource):
    """One trait."""

    path = "/traits/{name}"

    @DeclaredOperation("placement:traits:show", since=v("1.6"), for_any_accept=True)
    def on_get(self, _call: Call, name: str) -> OperationResult:
        """Check that a trait exists."""
        self._require(self.store.traits, name)
        return OperationResult(204, modified=time.time())

    @DeclaredOperation("placement:traits:update", since=v("1.6"))
    def on_put(self, _call: Call, name: str) -> OperationResult:
        """Create a custom trait unless it exists."""
        _require_custom(name)
        created = self._created(self.store.traits, name)
        return OperationResult(201 if created else 204, location=f"/traits/{name}", modified=time.time())

    @DeclaredOperation(
        "placement:traits:delete",
        since=v("1.6"),
        answers={errors.NameInUse: ErrorAnswer(409, phrases=(Phrase.TRAIT_IN_USE,))},
    )
    def on_delete(self, _call: Call, name: str) -> OperationResult:
        """Delete a custom trait that no provider has."""
        self._delete(self.store.traits, name, Phrase.STANDARD_TRAIT)
        return OperationResult(204)


_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+")
_LONGEST = 255


def _require_custom(name: str) -> None:
    if not _CUSTOM.fullmatch(name) or len(name) > _LONGEST:
        sentence = f"{name[:_LONGEST]!r} is not the name of a custom trait: CUSTOM_, followed by A-Z, 0-9 and _."
        raise HTTPRefusal(400, before(sentence, [Phrase.INVALID_TRAIT]))


def _wanted(sent: Mapping[str, str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if (name := sent.get("name")) is not None:
        how, colon, value = name.partition(":")
        if not colon:
            expected = "Expected in:NAME[,NAME...] or startswith:PREFIX."
            phrases = [Phrase.BAD_NAME_PARAMETER, Phrase.GOT]
            raise HTTPRefusal(400, before(expected, phrases, sent=f'"{name}"'))
        if how == "in":
            wanted["names"] = value.split(",")
        elif how == "startswith":
            wanted["starting_with"] = value
    if (associated := sent.get("associated")) is not None:
        if associated.lower() not in ("true", "false"):
            raise HTTPRefusal(400, Phrase.BAD_ASSOCIATED.about())
        wanted["associated"] = associated.lower() == "true"
    return wanted


_REPLACE_SCHEMAS = Schemas(
    {
        "1.6": document(
            {"traits": {"type": "array", "items": NAME, "maxItems": 1024}, "resource_provider_generation": GENERATION},
            required=("traits", "resource_provider_generation"),
        )
    }
)


class ProviderTraitsResource(ProviderScopedResource):
    """The traits of a provider."""

    path = "/resource_providers/{uuid}/traits"

    def require_path(self, **_path: str) -> None:
        """Check nothing: here a bad body takes precedence over a missing provider, as in the published API."""

    @DeclaredOperation("placement:resource_providers:traits:list", since=v("1.6"))
    def on_get(self, _call: Call, uuid: str) -> OperationResult:
        """List the traits of a provider."""
        return _shown(*self.present(uuid))

    @DeclaredOperation(
        "placement:resource_providers:traits:update",
        since=v("1.6"),
        body=_REPLACE_SCHEMAS,
        answers={
            errors.TraitNotFound: ErrorAnswer(400, phrases=(Phrase.NO_SUCH_TRAIT,)),
            errors.ProviderGenerationConflict: ErrorAnswer(409, CONCURRENT_UPDATE, (Phrase.UPDATE_GENERATION,)),
        },
    )
    def on_put(self, call: Call, uuid: str) -> OperationResult:
        """Replace the traits of a provider."""
        generation = int(call.body["resource_provider_generation"])
        named = tuple(dict.fromkeys(call.body["traits"]))
        with providers_first(self.store, {uuid: generation}):
            message = SetTraits(request_id=ids.fresh(), uuid=uuid, traits=named, generation=generation)
            return _shown(*self.after(message))

    @DeclaredOperation("placement:resource_providers:traits:delete", since=v("1.6"))
    def on_delete(self, _call: Call, uuid: str) -> OperationResult:
        """Remove all traits from a provider."""
        self.after(SetTraits(request_id=ids.fresh(), uuid=uuid, traits=()))
        return OperationResult(204)

    def part(self, connection: Connection, id_: int) -> Sequence[str]:
        """Read the traits of a provider."""
        return sorted(traits.of(connection, [id_]).get(id_, ()))


def _shown(provider: Outline, held: Sequence[str]) -> OperationResult:
    body = {"traits": held, "resource_provider_generation": provider.generation}
    return OperationResult(body=body, modified=provider.updated_at)
