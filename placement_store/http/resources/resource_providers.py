"""``/resource_providers``: providers, and their places in trees."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType
from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import (
    DeleteResourceProvider,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
    UpdateResourceProvider,
)
from placement_store.db import change_feed
from placement_store.dispatcher import Dispatcher
from placement_store.http import query
from placement_store.http.errors import ErrorAnswers
from placement_store.http.operations import Call, DeclaredOperation, OperationResult, Resource
from placement_store.http.phrases import Phrase, before
from placement_store.http.refusals import DUPLICATE_NAME, PROVIDER_IN_USE, ErrorAnswer, HTTPRefusal
from placement_store.http.schemas import TEXT, UUID, Schema, Schemas, document, with_more
from placement_store.http.versions import v
from placement_store.providers import create as new_providers
from placement_store.providers import outlines
from placement_store.providers import tree as trees
from placement_store.providers.create import NewProvider
from placement_store.providers.outlines import Outline

# MySQL treats a name that ends with a blank as equal to the one without.
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S\Z"}
_PARENT: Schema = {"anyOf": [UUID, {"type": "null"}]}
_WITH_PARENT = {"parent_provider_uuid": _PARENT}

_CREATE = document({"name": _NAME, "uuid": UUID}, required=("name",))
_UPDATE = document({"name": _NAME}, required=("name",))

_CREATE_SCHEMAS = Schemas({"1.0": _CREATE, "1.14": with_more(_CREATE, _WITH_PARENT)})
_UPDATE_SCHEMAS = Schemas({"1.0": _UPDATE, "1.14": with_more(_UPDATE, _WITH_PARENT)})

_LIST_1_0 = document({"name": TEXT, "uuid": UUID})
_LIST_1_3 = with_more(_LIST_1_0, {"member_of": TEXT})
_LIST_1_4 = with_more(_LIST_1_3, {"resources": TEXT})
_LIST_1_14 = with_more(_LIST_1_4, {"in_tree": UUID})
_LIST_1_18 = with_more(_LIST_1_14, {"required": TEXT})
#: The parameters of ``GET /resource_providers``; they are parsed in :mod:`placement_store.http.query`.
_LIST_SCHEMAS = Schemas({"1.0": _LIST_1_0, "1.3": _LIST_1_3, "1.4": _LIST_1_4, "1.14": _LIST_1_14, "1.18": _LIST_1_18})

_LIST_ANSWERS: ErrorAnswers = {
    errors.ResourceClassNotFound: ErrorAnswer(400, phrases=(Phrase.BAD_CLASS, Phrase.NO_CLASS)),
    errors.TraitNotFound: ErrorAnswer(400, phrases=(Phrase.NO_TRAIT,)),
}
_UPDATE_ANSWERS: ErrorAnswers = {errors.ProviderInUse: ErrorAnswer(409, PROVIDER_IN_USE)}
_DELETE_ANSWERS: ErrorAnswers = {errors.ProviderNotFound: ErrorAnswer(404, phrases=(Phrase.NO_PROVIDER_TO_DELETE,))}

_TREES_SINCE, _BODY_OF_CREATED_SINCE, _FREE_TREES_SINCE = v("1.14"), v("1.20"), v("1.37")
#: The links of a provider, with the first version of each.
_LINKS = {"inventories": v("1.0"), "usages": v("1.0"), "aggregates": v("1.1"), "traits": v("1.6")}
_LINKS["allocations"] = v("1.11")


def path_of(uuid: str) -> str:
    """Return the path of a provider, below the root of the API."""
    return f"/resource_providers/{uuid}"


def represented(provider: Outline, call: Call) -> dict[str, Any]:
    """Represent a provider in the version of ``call``."""
    href = call.root + path_of(provider.uuid)
    rels = [rel for rel, since in _LINKS.items() if call.version >= since]
    shown: dict[str, Any] = {
        "uuid": provider.uuid,
        "name": provider.name,
        "generation": provider.generation,
        "links": [{"rel": "self", "href": href}, *({"rel": rel, "href": f"{href}/{rel}"} for rel in rels)],
    }
    if call.version >= _TREES_SINCE:
        shown |= {"parent_provider_uuid": provider.parent_uuid, "root_provider_uuid": provider.root_uuid}
    return shown


@contextmanager
def providers_first(store: Dispatcher, named: Mapping[str, int | None]) -> Iterator[None]:
    """Report a missing provider or a stale generation before any other fault, as the published API does.

    :param named: the generations that the request names, by the provider's uuid; null if it names none.
    :raises ProviderGenerationConflict: a provider is at another one, and there is another fault.
    :raises ProviderNotFound: the provider does not exist, and there is another fault.
    """
    try:
        yield
    except (errors.CallerError, errors.InvalidInventory, errors.ConsumerGenerationConflict, HTTPRefusal):
        for uuid, generation in named.items():
            found = store.read(partial(outlines.get, uuid=uuid)).generation
            if generation not in (None, found):
                raise errors.ProviderGenerationConflict(provider_uuid=uuid, named=generation, found=found) from None
        raise


class ProviderScopedResource(Resource):
    """A resource whose path names a provider by its ``uuid``."""

    def require_path(self, **path: str) -> None:
        """Check that the provider exists.

        :raises ProviderNotFound: it does not.
        """
        self.store.read(lambda connection: outlines.get(connection, path["uuid"]))

    def part(self, connection: Connection, id_: int) -> Any:  # noqa: ARG002
        """Read the part of a provider that the resource is about, by the provider's id."""
        return None

    def read(self, connection: Connection, uuid: str) -> tuple[Outline, Any]:
        """Read a provider and its part, each by one statement.

        :raises ProviderNotFound: there is none.
        """
        provider = outlines.get(connection, uuid)
        return provider, self.part(connection, provider.id)

    def present(self, uuid: str) -> tuple[Outline, Any]:
        """Read a provider and its part in a transaction."""
        return self.store.read(lambda connection: self.read(connection, uuid))

    def after(self, message: SetAggregates | SetInventories | SetInventory | SetTraits) -> tuple[Outline, Any]:
        """Make a change, and return the provider and its part after it."""

        def work(connection: Connection) -> tuple[Outline, Any]:
            self.store.run(message, connection)
            return self.read(connection, message.uuid)

        return self.store.once_without_id(work)


class ResourceProvidersResource(Resource):
    """All providers."""

    path = "/resource_providers"

    @DeclaredOperation("placement:resource_providers:list", query=_LIST_SCHEMAS, answers=_LIST_ANSWERS)
    def on_get(self, call: Call) -> OperationResult:
        """List the providers that match all parameters of the query."""
        sent = call.last_values
        # An empty name is no condition.
        name, uuid = sent.get("name") or None, sent.get("uuid")
        # Requirements that each provider must meet by itself.
        has_group = not sent.keys() <= {"name", "uuid"}
        group = query.group(call.query, "", call.version) if has_group else None
        try:
            found = self.store.read(
                lambda connection: outlines.listed(
                    connection, name=name, uuid=None if uuid is None else query.canonical_uuid(uuid), group=group
                )
            )
        except errors.InvalidRequest:
            # A trait is both required and forbidden: no provider matches.
            found = []
        modified = max((provider.updated_at for provider in found), default=time.time())
        return OperationResult(
            body={"resource_providers": [represented(one, call) for one in found]}, modified=modified
        )

    @DeclaredOperation("placement:resource_providers:create", body=_CREATE_SCHEMAS)
    def on_post(self, call: Call) -> OperationResult:
        """Create a provider; from 1.20, return it."""
        uuid = query.canonical_uuid(call.body["uuid"]) if "uuid" in call.body else ids.fresh()
        parent = call.body.get("parent_provider_uuid")
        new = NewProvider(str(uuid), call.body["name"], parent and query.canonical_uuid(parent))

        if new.parent_uuid == new.uuid:
            phrases = [Phrase.PROVIDER_NOT_CREATED, Phrase.OWN_PARENT]
            raise HTTPRefusal(400, before("It is the provider itself.", phrases, name=new.name, uuid=new.uuid))

        def work(connection: Connection) -> Outline:
            change_feed.record(connection, provider_ids=new_providers.create(connection, [new]).values())
            return outlines.get(connection, new.uuid)

        try:
            created = self.store.once_without_id(work)
        except errors.AlreadyExists as fault:
            phrase = Phrase.PROVIDER_UUID_TAKEN if fault.name == new.uuid else Phrase.PROVIDER_NAME_TAKEN
            raise HTTPRefusal(409, before(str(fault), [phrase], name=fault.name), DUPLICATE_NAME) from fault
        except errors.ProviderNotFound as fault:
            phrases = [Phrase.PROVIDER_NOT_CREATED, Phrase.NO_PARENT]
            raise HTTPRefusal(400, before(str(fault), phrases, name=new.name, uuid=new.uuid)) from fault
        if call.version < _BODY_OF_CREATED_SINCE:
            return OperationResult(201, location=path_of(new.uuid))
        return OperationResult(200, represented(created, call), location=path_of(new.uuid), modified=created.updated_at)


class ResourceProviderResource(ProviderScopedResource):
    """One provider."""

    path = "/resource_providers/{uuid}"

    @DeclaredOperation("placement:resource_providers:show")
    def on_get(self, call: Call, uuid: str) -> OperationResult:
        """Show a provider."""
        provider, _ = self.present(uuid)
        return OperationResult(body=represented(provider, call), modified=provider.updated_at)

    @DeclaredOperation("placement:resource_providers:update", body=_UPDATE_SCHEMAS, answers=_UPDATE_ANSWERS)
    def on_put(self, call: Call, uuid: str) -> OperationResult:
        """Rename a provider and, from 1.14, set its first parent; from 1.37, change or remove its parent."""
        parent: str | UnsetType | None = call.body.get("parent_provider_uuid", UNSET)
        if isinstance(parent, str):
            parent = query.canonical_uuid(parent)
        message = UpdateResourceProvider(
            request_id=ids.fresh(), uuid=uuid, name=call.body["name"], parent_provider_uuid=parent
        )

        def work(connection: Connection) -> Outline:
            # A missing provider is answered with 404, a missing parent is not.
            outlines.get(connection, uuid)
            try:
                trees.update(connection, message, may_leave_parent=call.version >= _FREE_TREES_SINCE)
            except (errors.ProviderNotFound, errors.InvalidRequest) as fault:
                phrases = [Phrase.PROVIDER_NOT_SAVED, _of_parent(fault, parent)]
                raise HTTPRefusal(400, before(str(fault), phrases, uuid=uuid)) from fault
            return outlines.get(connection, uuid)

        provider = self.store.once_without_id(work)
        return OperationResult(body=represented(provider, call), modified=provider.updated_at)

    @DeclaredOperation("placement:resource_providers:delete", answers=_DELETE_ANSWERS)
    def on_delete(self, _call: Call, uuid: str) -> OperationResult:
        """Delete a provider with its inventories, traits and aggregates."""
        message = DeleteResourceProvider(request_id=ids.fresh(), uuid=uuid)
        self.store.once_without_id(partial(self.store.run, message))
        return OperationResult(204)


def _of_parent(fault: errors.CallerError, parent: str | UnsetType | None) -> Phrase:
    """Return the phrase for a parent that a provider cannot have."""
    if isinstance(fault, errors.ProviderNotFound):
        return Phrase.NO_PARENT
    if parent is None:
        return Phrase.UNPARENTING
    return Phrase.LOOP if "itself" in str(fault) else Phrase.REPARENTING
