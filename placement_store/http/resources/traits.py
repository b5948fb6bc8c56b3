"""``/traits``: the names of traits."""

import time
from typing import Any

from placement_store.http.operations import Call, OperationResult, Resource, operation
from placement_store.http.query import Query
from placement_store.http.refusals import RequestRefused
from placement_store.http.resources.names import NamedResource, require_custom
from placement_store.http.schemas import TEXT, Schemas, document

#: The parameters of ``GET /traits``.
_LIST_SCHEMAS = Schemas({"1.6": document({"name": TEXT, "associated": TEXT})})


class TraitsResource(Resource):
    """All traits."""

    path = "/traits"

    @operation("placement:traits:list", since="1.6", query=_LIST_SCHEMAS)
    def on_get(self, call: Call) -> OperationResult:
        """List the traits, or those that match all parameters of the query."""
        wanted = _wanted(call.query)
        found = self.store.read(lambda connection: self.store.traits.listed(connection, **wanted))
        return OperationResult(body={"traits": found}, modified=time.time())


class TraitResource(NamedResource):
    """One trait."""

    path = "/traits/{name}"

    @operation("placement:traits:show", since="1.6")
    def on_get(self, _call: Call, name: str) -> OperationResult:
        """Check that a trait exists."""
        self._require(self.store.traits, name)
        return OperationResult(204, modified=time.time())

    @operation("placement:traits:update", since="1.6")
    def on_put(self, _call: Call, name: str) -> OperationResult:
        """Create a custom trait unless it exists."""
        require_custom(name)
        created = self._created(self.store.traits, name)
        return OperationResult(201 if created else 204, location=f"/traits/{name}", modified=time.time())

    @operation("placement:traits:delete", since="1.6")
    def on_delete(self, _call: Call, name: str) -> OperationResult:
        """Delete a custom trait that no provider has."""
        self._delete(self.store.traits, name)
        return OperationResult(204)


def _wanted(parameters: Query) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if (name := parameters.last("name")) is not None:
        how, _, value = name.partition(":")
        if how == "in":
            wanted["names"] = value.split(",")
        elif how == "startswith":
            wanted["starting_with"] = value
        else:
            raise RequestRefused(
                400, "Invalid query string parameters: name: expected in:NAME[,NAME...] or startswith:PREFIX"
            )
    if (associated := parameters.last("associated")) is not None:
        if associated.lower() not in ("true", "false"):
            raise RequestRefused(400, "Invalid query string parameters: associated: expected true or false")
        wanted["associated"] = associated.lower() == "true"
    return wanted
