"""Schemas of allocations: what consumers shall hold."""

from placement_store.http.schemas import (
    GENERATION,
    MAX_AMOUNT,
    RESOURCE_CLASS,
    UUID,
    UUID_PATTERN,
    Schema,
    Schemas,
    document,
    with_more,
)

_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
_RESOURCES: Schema = {
    "type": "object",
    "minProperties": 1,
    "patternProperties": {RESOURCE_CLASS["pattern"]: {"type": "integer", "minimum": 1, "maximum": MAX_AMOUNT}},
    "additionalProperties": False,
    "propertyNames": {"maxLength": 255},
}

# Before 1.12, a list.
_LIST: Schema = {
    "type": "array",
    "minItems": 1,
    "items": document(
        {"resource_provider": document({"uuid": UUID}, required=("uuid",)), "resources": _RESOURCES},
        required=("resource_provider", "resources"),
    ),
}
# Since then, by provider. Clients send back what they were shown, so there may be a generation that means nothing.
_BY_PROVIDER: Schema = {
    "type": "object",
    "patternProperties": {
        UUID_PATTERN: document({"generation": GENERATION, "resources": _RESOURCES}, required=("resources",))
    },
    "additionalProperties": False,
}
_SOME_BY_PROVIDER: Schema = {**_BY_PROVIDER, "minProperties": 1}

_OWNER = {"project_id": _NAME, "user_id": _NAME}
# Which provider serves which group of a request: taken, and of no account.
_MAPPINGS: Schema = {
    "type": "object",
    "patternProperties": {r"^[A-Za-z0-9_-]{0,64}\Z": {"type": "array", "minItems": 1, "items": UUID}},
    "additionalProperties": False,
}
_CONSUMER_GENERATION: Schema = {"anyOf": [GENERATION, {"type": "null"}]}

_PUT_1_0 = document({"allocations": _LIST}, required=("allocations",))
_PUT_1_8 = with_more(_PUT_1_0, _OWNER, required=tuple(_OWNER))
_PUT_1_12 = with_more(_PUT_1_8, {"allocations": _SOME_BY_PROVIDER})
_ONE_1_13 = with_more(_PUT_1_8, {"allocations": _BY_PROVIDER})
_ONE_1_28 = with_more(_ONE_1_13, {"consumer_generation": _CONSUMER_GENERATION}, required=("consumer_generation",))
_ONE_1_34 = with_more(_ONE_1_28, {"mappings": _MAPPINGS})
_ONE_1_38 = with_more(_ONE_1_34, {"consumer_type": RESOURCE_CLASS}, required=("consumer_type",))

#: What ``PUT /allocations/{consumer_uuid}`` takes.
PUT = Schemas(
    {"1.0": _PUT_1_0, "1.8": _PUT_1_8, "1.12": _PUT_1_12, "1.28": _ONE_1_28, "1.34": _ONE_1_34, "1.38": _ONE_1_38}
)


def _by_consumer(one: Schema) -> Schema:
    return {
        "type": "object",
        "patternProperties": {UUID_PATTERN: one},
        "additionalProperties": False,
    }


#: Allocations by consumer, as the reshaper takes them too.
BY_CONSUMER = {
    since: _by_consumer(one)
    for since, one in {"1.13": _ONE_1_13, "1.28": _ONE_1_28, "1.34": _ONE_1_34, "1.38": _ONE_1_38}.items()
}
#: What ``POST /allocations`` takes.
POST = Schemas({since: {**schema, "minProperties": 1} for since, schema in BY_CONSUMER.items()})
