"""Schemas of the usages of projects."""

from placement_store.http.schemas import Schema, Schemas, document, with_more

_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
#: What stands for all types together, and for consumers from before types were known.
ALL, UNKNOWN = "all", "unknown"
_TYPE: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": rf"^([A-Z0-9_]+|{ALL}|{UNKNOWN})\Z"}

_LIST_1_9 = document({"project_id": _NAME, "user_id": _NAME}, required=("project_id",))
#: The parameters of ``GET /usages``.
LIST = Schemas({"1.9": _LIST_1_9, "1.38": with_more(_LIST_1_9, {"consumer_type": _TYPE})})
