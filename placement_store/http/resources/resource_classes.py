"""``/resource_classes``: the names of resource classes."""

import time
from typing import Any

from moorage import errors
from placement_store.allocations import class_renaming
from placement_store.http.errors import ErrorAnswers
from placement_store.http.operations import Call, DeclaredOperation, OperationResult
from placement_store.http.phrases import Phrase, before
from placement_store.http.refusals import ErrorAnswer, HTTPRefusal
from placement_store.http.resources.names import NamedResource
from placement_store.http.schemas import CUSTOM_NAME, Schemas, document
from placement_store.http.versions import v

_NAMED = document({"name": CUSTOM_NAME}, required=("name",))

_CREATE_SCHEMAS = Schemas({"1.2": _NAMED})
#: The body of ``PUT /resource_classes/{name}``: the new name, before 1.7.
_UPDATE_SCHEMAS = Schemas({"1.2": _NAMED, "1.7": None})

_CREATED_BY_PUT_SINCE = v("1.7")
#: Only a duplicate name of a provider has an error code of its own.
_CREATE_ANSWERS: ErrorAnswers = {errors.AlreadyExists: ErrorAnswer(409, phrases=(Phrase.CLASS_TAKEN,))}
_UPDATE_ANSWERS: ErrorAnswers = {errors.AlreadyExists: ErrorAnswer(409, phrases=(Phrase.NEW_NAME_TAKEN,))}
_DELETE_ANSWERS: ErrorAnswers = {errors.NameInUse: ErrorAnswer(409, phrases=(Phrase.CLASS_IN_USE,))}


def _path_of(name: str) -> str:
    return f"/resource_classes/{name}"


def _represented(name: str, call: Call) -> dict[str, Any]:
    return {"name": name, "links": [{"rel": "self", "href": call.root + _path_of(name)}]}


class ResourceClassesResource(NamedResource):
    """All resource classes."""

    path = "/resource_classes"

    @DeclaredOperation("placement:resource_classes:list", since=v("1.2"))
    def on_get(self, call: Call) -> OperationResult:
        """List the resource classes."""
        found = self.store.read(self.store.classes.listed)
        return OperationResult(
            body={"resource_classes": [_represented(name, call) for name in found]}, modified=time.time()
        )

    @DeclaredOperation(
        "placement:resource_classes:create", since=v("1.2"), body=_CREATE_SCHEMAS, answers=_CREATE_ANSWERS
    )
    def on_post(self, call: Call) -> OperationResult:
        """Create a custom resource class; 409 if it exists."""
        name = call.body["name"]
        if not self._created(self.store.classes, name):
            raise errors.AlreadyExists(kind="resource class", name=name)
        return OperationResult(201, location=_path_of(name))


class ResourceClassResource(NamedResource):
    """One resource class."""

    path = "/resource_classes/{name}"

    @DeclaredOperation("placement:resource_classes:show", since=v("1.2"))
    def on_get(self, call: Call, name: str) -> OperationResult:
        """Show a resource class."""
        self._require(self.store.classes, name)
        return OperationResult(body=_represented(name, call), modified=time.time())

    @DeclaredOperation(
        "placement:resource_classes:update", since=v("1.2"), body=_UPDATE_SCHEMAS, answers=_UPDATE_ANSWERS
    )
    def on_put(self, call: Call, name: str) -> OperationResult:
        """Create a custom resource class unless it exists; before 1.7, rename it."""
        if call.version < _CREATED_BY_PUT_SINCE:
            new = call.body["name"]
            if new == name:
                self._require(self.store.classes, name)
                return OperationResult(body=_represented(new, call))
            try:
                self.store.once_without_id(lambda connection: class_renaming.rename(connection, name, new))
            except errors.InvalidRequest as fault:
                raise HTTPRefusal(400, before(str(fault), [Phrase.STANDARD_CLASS_RENAMED], name=name)) from fault
            self.store.classes.forget()
            return OperationResult(body=_represented(new, call))
        _CREATE_SCHEMAS.check(call.version, {"name": name}, Phrase.INVALID_JSON)
        created = self._created(self.store.classes, name)
        return OperationResult(201 if created else 204, location=_path_of(name))

    @DeclaredOperation("placement:resource_classes:delete", since=v("1.2"), answers=_DELETE_ANSWERS)
    def on_delete(self, _call: Call, name: str) -> OperationResult:
        """Delete a custom resource class of which there is no inventory."""
        self._delete(self.store.classes, name, Phrase.STANDARD_CLASS)
        return OperationResult(204)
