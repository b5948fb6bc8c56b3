"""Schemas of the reshaper."""

from placement_store.http.schemas import GENERATION, UUID_PATTERN, Schema, Schemas, document
from placement_store.http.schemas.allocations import BY_CONSUMER
from placement_store.http.schemas.inventories import INVENTORIES

_RESHAPED: Schema = {
    "type": "object",
    "minProperties": 1,
    "patternProperties": {
        UUID_PATTERN: document(
            {"resource_provider_generation": GENERATION, "inventories": INVENTORIES},
            required=("resource_provider_generation", "inventories"),
        )
    },
    "additionalProperties": False,
}

#: What ``POST /reshaper`` takes.
RESHAPE = Schemas(
    {
        since: document({"inventories": _RESHAPED, "allocations": BY_CONSUMER[form]}, ("inventories", "allocations"))
        for since, form in {"1.30": "1.28", "1.34": "1.34", "1.38": "1.38"}.items()
    }
)
