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
from placement_store.http.resources.of_provider import ProviderScopedResource
from placement_store.http.schemas import resource_providers as schemas
from placement_store.http.versions import Version, v
from placement_store.providers import create as new_providers
from placement_store.providers import outlines
from placement_store.providers import tree as trees
from placement_store.providers.create import NewProvider
from placement_store.providers.outlines import Outline

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


class ResourceProvidersResource(Resource):
    """All providers."""

    path = "/resource_providers"

    @operation("placement:resource_providers:list", query=schemas.LIST, error_status=_BAD_NAME)
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

    @operation("placement:resource_providers:create", body=schemas.CREATE, error_status=_BAD_NAME)
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

    @operation("placement:resource_providers:update", body=schemas.UPDATE)
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
