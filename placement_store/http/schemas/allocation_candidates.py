"""Schemas of the query for allocation candidates; what its parameters say is taken apart elsewhere."""

from typing import Any

from placement_store.http.schemas import TEXT, Schema, Schemas, document, with_more

_LIMIT: Schema = {"type": "string", "pattern": r"^[1-9][0-9]*\Z"}
_POLICY: Schema = {"enum": ["none", "isolate"]}
_NUMBERED, _NAMED = "([1-9][0-9]*)?", "([a-zA-Z0-9_-]{1,64})?"


def _grouped(schema: Schema, suffix: str, *names: str) -> dict[str, Any]:
    return {**schema, "patternProperties": {rf"^{name}{suffix}\Z": TEXT for name in names}}


_LIST_1_10 = document({"resources": TEXT}, required=("resources",))
_LIST_1_16 = with_more(_LIST_1_10, {"limit": _LIMIT})
_LIST_1_17 = with_more(_LIST_1_16, {"required": TEXT})
_LIST_1_21 = with_more(_LIST_1_17, {"member_of": TEXT})
_WIDE_1_25 = document({"limit": _LIMIT, "group_policy": _POLICY})
_WIDE_1_35 = with_more(_WIDE_1_25, {"root_required": TEXT})
_WIDE_1_36 = with_more(_WIDE_1_35, {"same_subtree": TEXT})
_GROUP_1_31 = ("resources", "required", "member_of", "in_tree")

#: The parameters of ``GET /allocation_candidates``.
LIST = Schemas(
    {
        "1.10": _LIST_1_10,
        "1.16": _LIST_1_16,
        "1.17": _LIST_1_17,
        "1.21": _LIST_1_21,
        "1.25": _grouped(_WIDE_1_25, _NUMBERED, "resources", "required", "member_of"),
        "1.31": _grouped(_WIDE_1_25, _NUMBERED, *_GROUP_1_31),
        "1.33": _grouped(_WIDE_1_25, _NAMED, *_GROUP_1_31),
        "1.35": _grouped(_WIDE_1_35, _NAMED, *_GROUP_1_31),
        "1.36": _grouped(_WIDE_1_36, _NAMED, *_GROUP_1_31),
    }
)
