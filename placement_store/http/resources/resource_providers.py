"""``/resource_providers``: providers as such, and the trees that they stand in."""

import time
from typing import Any

from msgspec import UNSET, UnsetType
from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import UpdateResourceProvider
from moorage.model import ResourceGroup
from placement_store.db import change_feed
from placement_store.http import query
from placement_store.http.errors import ErrorStatuses
from placement_store.http.operations import Call, OperationResult, Resource, operation
from placement_store.http.query import Query
from placement_store.http.refusals import UNDEFINED
from placement_store.http.schemas import TEXT, UUID, Schema, Schemas, document, with_more
from placement_store.http.versions import Version, v
from placement_store.providers import create as new_providers
from placement_store.providers import outlines
from placement_store.providers import tree as trees
from placement_store.providers.create import NewProvider
from placement_store.providers.outlines import Outline

# A name that ends with a blank is taken by MySQL for the one without.
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S\Z"}
_PARENT: Schema = {"anyOf": [UUID, {"type": "null"}]}
_WITH_PARENT = {"parent_provider_uuid": _PARENT}

_CREATE = document({"name": _NAME, "uuid": UUID}, required=("name",))
_UPDATE = document({"name": _NAME}, required=("name",))

#: What ``POST /resource_providers`` takes.
_CREATE_SCHEMAS = Schemas({"1.0": _CREATE, "1.14": with_more(_CREATE, _WITH_PARENT)})
#: What ``PUT /resource_providers/{uuid}`` takes.
_UPDATE_SCHEMAS = Schemas({"1.0": _UPDATE, "1.14": with_more(_UPDATE, _WITH_PARENT)})

_LIST_1_0 = document({"name": TEXT, "uuid": UUID})
_LIST_1_3 = with_more(_LIST_1_0, {"member_of": TEXT})
_LIST_1_4 = with_more(_LIST_1_3, {"resources": TEXT})
_LIST_1_14 = with_more(_LIST_1_4, {"in_tree": UUID})
_LIST_1_18 = with_more(_LIST_1_14, {"required": TEXT})
#: The parameters of ``GET /resource_providers``; what they say is taken apart in :mod:`placement_store.http.query`.
_LIST_SCHEMAS = Schemas({"1.0": _LIST_1_0, "1.3": _LIST_1_3, "1.4": _LIST_1_4, "1.14": _LIST_1_14, "1.18": _LIST_1_18})

_TREES_SINCE, _BODY_OF_CREATED_SINCE, _FREE_TREES_SINCE = v("1.14"), v("1.20"), v("1.37")
#: What a provider's document links to, by the version that brought it.
_LINKS = {"inventories": v("1.0"), "usages": v("1.0"), "aggregates": v("1.1"), "traits": v("1.6")}
_LINKS["allocations"] = v("1.11")
#: A parent, class or trait that is named and not there is a fault of the request, not of its path.
_BAD_NAME: ErrorStatuses = {errors.NotFound: (400, UNDEFINED)}


def path_of(uuid: str) -> str:
    """Return the path of a provider, below the root of the API."""
    return f"/resource_providers/{uuid}"


def represented(provider: Outline, call: Call) -> dict[str, Any]:
    """Return a provider as the version of ``call`` shows it."""
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


class ProviderScopedResource(Resource):
    """A resource whose path names a provider by its ``uuid``."""

    def look_up(self, **path: str) -> None:
        """Check that the provider exists.

        :raises ProviderNotFound: it does not.
        """
        self.store.read(lambda connection: outlines.get(connection, path["uuid"]))


class ResourceProvidersResource(Resource):
    """All providers."""

    path = "/resource_providers"

    @operation("placement:resource_providers:list", query=_LIST_SCHEMAS, error_status=_BAD_NAME)
    def on_get(self, call: Call) -> OperationResult:
        """Return the providers of which everything is true that the query says."""
        name, uuid = call.query.last("name"), call.query.last("uuid")
        group = asked_of_each(call.query, call.version)
        found = self.store.read(
            lambda connection: outlines.listed(
                connection, name=name, uuid=None if uuid is None else query.uuid_of("uuid", uuid), group=group
            )
        )
        modified = max((provider.updated_at for provider in found), default=time.time())
        return OperationResult(
            body={"resource_providers": [represented(one, call) for one in found]}, modified=modified
        )

    @operation("placement:resource_providers:create", body=_CREATE_SCHEMAS, error_status=_BAD_NAME)
    def on_post(self, call: Call) -> OperationResult:
        """Create a provider; return it from 1.20."""
        uuid = query.canonical_uuid(call.body["uuid"]) if "uuid" in call.body else ids.fresh()
        parent = call.body.get("parent_provider_uuid")
        new = NewProvider(str(uuid), call.body["name"], parent and query.canonical_uuid(parent))

        def work(connection: Connection) -> Outline:
            change_feed.record(connection, provider_ids=new_providers.create(connection, [new]).values())
            return outlines.get(connection, new.uuid)

        created = self.store.write(work)
        if call.version < _BODY_OF_CREATED_SINCE:
            return OperationResult(201, location=path_of(new.uuid))
        return OperationResult(200, represented(created, call), location=path_of(new.uuid), modified=created.updated_at)


class ResourceProviderResource(ProviderScopedResource):
    """One provider."""

    path = "/resource_providers/{uuid}"

    @operation("placement:resource_providers:show")
    def on_get(self, call: Call, uuid: str) -> OperationResult:
        """Return it."""
        provider = self.store.read(lambda connection: outlines.get(connection, uuid))
        return OperationResult(body=represented(provider, call), modified=provider.updated_at)

    @operation("placement:resource_providers:update", body=_UPDATE_SCHEMAS)
    def on_put(self, call: Call, uuid: str) -> OperationResult:
        """Rename it and, from 1.14, give it a parent; from 1.37 also another one or none."""
        parent: str | UnsetType | None = call.body.get("parent_provider_uuid", UNSET)
        if isinstance(parent, str):
            parent = query.canonical_uuid(parent)
        message = UpdateResourceProvider(
            request_id=ids.fresh(), uuid=uuid, name=call.body["name"], parent_provider_uuid=parent
        )

        def work(connection: Connection) -> Outline:
            # Not there at all is another answer than a parent that is not there.
            outlines.get(connection, uuid)
            try:
                trees.update(connection, message, may_leave_parent=call.version >= _FREE_TREES_SINCE)
            except errors.ProviderNotFound as fault:
                raise errors.InvalidRequest(path="$.parent_provider_uuid", reason=str(fault)) from fault
            return outlines.get(connection, uuid)

        provider = self.store.write(work)
        return OperationResult(body=represented(provider, call), modified=provider.updated_at)

    @operation("placement:resource_providers:delete")
    def on_delete(self, _call: Call, uuid: str) -> OperationResult:
        """Delete it, with all that it has."""
        self.store.write(lambda connection: trees.delete(connection, uuid))
        return OperationResult(204)


def asked_of_each(asked: Query, version: Version) -> ResourceGroup | None:
    """Return what a query asks of each provider for itself; nothing where it asks nothing.

    :raises Refused: 400, a parameter is not of its form.
    """
    if not set(asked.names).difference({"name", "uuid"}):
        return None
    amounts, tree = asked.last("resources"), asked.last("in_tree")
    traits = query.traits("required", asked.all("required"), version)
    aggregates = query.aggregates("member_of", asked.all("member_of"), version)
    return ResourceGroup(
        resources={} if amounts is None else query.resources("resources", amounts),
        required=traits.required,
        any_of=traits.any_of,
        forbidden=traits.forbidden,
        member_of=aggregates.member_of,
        not_member_of=aggregates.not_member_of,
        in_tree=None if tree is None else query.uuid_of("in_tree", tree),
    )
