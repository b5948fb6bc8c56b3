"""Schemas of inventories."""

from placement_store.http.schemas import GENERATION, MAX_AMOUNT, RESOURCE_CLASS, Schema, Schemas, document, with_more

_AMOUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_AMOUNT}

#: One inventory. Clients send back what they were shown, so it may have a generation that means nothing.
INVENTORY = document(
    {
        "resource_provider_generation": GENERATION,
        "total": _AMOUNT,
        "reserved": {"type": "integer", "minimum": 0, "maximum": MAX_AMOUNT},
        "min_unit": _AMOUNT,
        "max_unit": _AMOUNT,
        "step_size": _AMOUNT,
        # The largest of MySQL's single-precision numbers, as in the published API.
        "allocation_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 3.40282e38},
    },
    required=("total",),
)
#: Inventories by resource class.
INVENTORIES: Schema = {
    "type": "object",
    "patternProperties": {RESOURCE_CLASS["pattern"]: INVENTORY},
    "additionalProperties": False,
    "propertyNames": {"maxLength": 255},
}

#: What ``POST /resource_providers/{uuid}/inventories`` takes.
CREATE = Schemas({"1.0": with_more(INVENTORY, {"resource_class": RESOURCE_CLASS}, required=("resource_class",))})
#: What ``PUT /resource_providers/{uuid}/inventories`` takes.
REPLACE = Schemas(
    {
        "1.0": document(
            {"resource_provider_generation": GENERATION, "inventories": INVENTORIES},
            required=("resource_provider_generation", "inventories"),
        )
    }
)
#: What ``PUT /resource_providers/{uuid}/inventories/{resource_class}`` takes.
UPDATE = Schemas({"1.0": with_more(INVENTORY, {}, required=("resource_provider_generation",))})
