"""Schemas of the aggregates of providers."""

from placement_store.http.schemas import GENERATION, UUID, Schema, Schemas, document

_UUIDS: Schema = {"type": "array", "items": UUID, "uniqueItems": True, "maxItems": 1024}

#: What ``PUT /resource_providers/{uuid}/aggregates`` takes.
REPLACE = Schemas(
    {
        "1.1": _UUIDS,
        "1.19": document(
            {"aggregates": _UUIDS, "resource_provider_generation": GENERATION},
            required=("aggregates", "resource_provider_generation"),
        ),
    }
)
