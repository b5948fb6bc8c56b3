"""Schemas of resource classes."""

from placement_store.http.schemas import CUSTOM_NAME, Schemas, document

_NAMED = document({"name": CUSTOM_NAME}, required=("name",))

#: What ``POST /resource_classes`` takes.
CREATE = Schemas({"1.2": _NAMED})
#: What ``PUT /resource_classes/{name}`` takes: the new name, until a class was created by it.
UPDATE = Schemas({"1.2": _NAMED, "1.7": None})
