"""Schemas of resource providers."""

from placement_store.http.schemas import TEXT, UUID, Schema, Schemas, document, with_more

# A name that ends with a blank is taken by MySQL for the one without.
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S\Z"}
_PARENT: Schema = {"anyOf": [UUID, {"type": "null"}]}
_WITH_PARENT = {"parent_provider_uuid": _PARENT}

_CREATE = document({"name": _NAME, "uuid": UUID}, required=("name",))
_UPDATE = document({"name": _NAME}, required=("name",))

#: What ``POST /resource_providers`` takes.
CREATE = Schemas({"1.0": _CREATE, "1.14": with_more(_CREATE, _WITH_PARENT)})
#: What ``PUT /resource_providers/{uuid}`` takes.
UPDATE = Schemas({"1.0": _UPDATE, "1.14": with_more(_UPDATE, _WITH_PARENT)})

_LIST_1_0 = document({"name": TEXT, "uuid": UUID})
_LIST_1_3 = with_more(_LIST_1_0, {"member_of": TEXT})
_LIST_1_4 = with_more(_LIST_1_3, {"resources": TEXT})
_LIST_1_14 = with_more(_LIST_1_4, {"in_tree": UUID})
_LIST_1_18 = with_more(_LIST_1_14, {"required": TEXT})
#: The parameters of ``GET /resource_providers``; what they say is taken apart in :mod:`placement_store.http.query`.
LIST = Schemas({"1.0": _LIST_1_0, "1.3": _LIST_1_3, "1.4": _LIST_1_4, "1.14": _LIST_1_14, "1.18": _LIST_1_18})
