"""Schemas of traits, and of those of providers."""

from placement_store.http.schemas import GENERATION, TEXT, Schema, Schemas, document

_TRAIT: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[A-Z0-9_]+\Z"}

#: What ``PUT /resource_providers/{uuid}/traits`` takes.
REPLACE = Schemas(
    {
        "1.6": document(
            {
                "traits": {"type": "array", "items": _TRAIT, "uniqueItems": True, "maxItems": 1024},
                "resource_provider_generation": GENERATION,
            },
            required=("traits", "resource_provider_generation"),
        )
    }
)
#: The parameters of ``GET /traits``.
LIST = Schemas({"1.6": document({"name": TEXT, "associated": TEXT})})
