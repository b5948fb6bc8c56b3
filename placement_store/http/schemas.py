"""Validate bodies and queries by JSON schemas, each of which applies from a microversion on.

fastjsonschema decides whether a value conforms, in less than a microsecond for each member; jsonschema takes many times
as long, so it only explains what does not conform.
"""

import bisect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import fastjsonschema
import jsonschema
import jsonschema.validators

from placement_store.http.phrases import Phrase
from placement_store.http.query import canonical_uuid
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.versions import Version, v

#: The faults of a value among which the one to report is chosen: a body may have millions.
_MOST_FAULTS = 1000

#: A JSON schema.
Schema = Mapping[str, Any]


def _unique_strings(
    _validator: object, wanted: bool, value: object, _schema: object
) -> Iterator[jsonschema.ValidationError]:
    """Find equal strings in a list; ``items`` refuses everything else.

    jsonschema compares each pair of items that cannot be sorted, such as objects: minutes for a body of ordinary size.
    """
    if wanted and isinstance(value, list):
        strings = [one for one in value if isinstance(one, str)]
        if len(set(strings)) < len(strings):
            yield jsonschema.ValidationError(f"{value!r} has non-unique elements")


def _nonconforming_items(
    validator: Any, items: Schema, value: object, schema: Schema
) -> Iterator[jsonschema.ValidationError]:
    """Find the faults of items, but of no more than a list may have: ``maxItems`` refuses a longer one."""
    if isinstance(value, list):
        compiled = _compiled(json.dumps(items))
        for place, item in enumerate(value[: schema.get("maxItems")]):
            if not compiled.conforms(item):
                yield from validator.descend(item, items, path=place)


def _nonconforming_members(keyword: str) -> Callable[..., Iterator[jsonschema.ValidationError]]:
    """Return a check by a keyword that looks only at the members of an object that do not conform to it."""

    def find(validator: Any, rule: Schema, value: object, schema: Schema) -> Iterator[jsonschema.ValidationError]:
        if isinstance(value, dict):
            compiled = _compiled(json.dumps({"type": "object", keyword: rule}))
            faulty = {name: member for name, member in value.items() if not compiled.conforms({name: member})}
            yield from _Published.VALIDATORS[keyword](validator, rule, faulty, schema)

    return find


_Published = jsonschema.validators.validator_for({})
_Validator = jsonschema.validators.extend(
    _Published,
    {
        "uniqueItems": _unique_strings,
        "items": _nonconforming_items,
        **{keyword: _nonconforming_members(keyword) for keyword in ("patternProperties", "propertyNames")},
    },
)


def _is_uuid(value: object) -> bool:
    """Return whether a text is a uuid in any spelling: with or without hyphens, in capitals or not."""
    return not isinstance(value, str) or canonical_uuid(value) is not None


_FORMATS = jsonschema.FormatChecker(formats=())
_FORMATS.checks("uuid")(_is_uuid)


class CompiledSchema:
    """A schema that is compiled to Python when it is first needed, which takes ten milliseconds."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def conforms(self, value: object) -> bool:
        """Return whether a value conforms to the schema."""
        try:
            self._validate(value)
        except fastjsonschema.JsonSchemaValueException:
            return False
        return True

    @cached_property
    def _validate(self) -> Callable[[object], object]:
        validate: Callable[[object], object] = fastjsonschema.compile(
            dict(self._schema), formats={"uuid": _is_uuid}, use_default=False, detailed_exceptions=False
        )
        return validate


@cache
def _compiled(text: str) -> CompiledSchema:
    """Return a part of a schema, which is given as JSON."""
    return CompiledSchema(json.loads(text))


class Schemas:
    """The schemas of one body or one query, by the first version of each; null for versions that send none.

    ``Schemas({"1.0": LIST, "1.4": {**LIST, ...}})`` validates a request of version 1.3 by the first of the two.
    """

    def __init__(self, by_version: Mapping[str, Schema | None]) -> None:
        self.by_version = {v(text): schema for text, schema in by_version.items()}
        self._since = sorted(self.by_version)
        # The first is for versions before all of them.
        self._schemas = [None, *(self.by_version[since] for since in self._since)]
        self._compiled = [None if schema is None else _checked(schema) for schema in self._schemas]

    def schema_at(self, version: Version) -> Schema | None:
        """Return the schema of a version; null if it sends no body or query."""
        return self._schemas[bisect.bisect_right(self._since, version)]

    def check(self, version: Version, value: object, phrase: Phrase) -> None:
        """Validate ``value``; the detail of a refusal begins with ``phrase``.

        :raises HTTPRefusal: 400, with the path and the reason of the fault.
        """
        compiled = self._compiled[bisect.bisect_right(self._since, version)]
        if compiled is None or compiled.conforms(value):
            return
        try:
            faults = _Validator(self.schema_at(version), format_checker=_FORMATS).iter_errors(value)
            fault: Any = jsonschema.exceptions.best_match(itertools.islice(faults, _MOST_FAULTS))
        except RecursionError as deep:
            raise HTTPRefusal(400, f"{phrase.about()} It is nested too deeply.") from deep
        where = "".join(f"[{part!r}]" for part in list(fault.absolute_schema_path)[:-1])
        reason = f"{_shortened(fault.message)}, at {fault.json_path[:200]}."
        detail = f"{phrase.about()} {reason} {Phrase.FAILED_RULE.about(rule=fault.validator)}{where}."
        # Patterns as the published API has them.
        raise HTTPRefusal(400, detail.replace(r"\\Z", "$"))


def _shortened(message: str) -> str:
    """Return a message without its middle if it is long: it begins with the value and ends with the fault."""
    return message if len(message) <= 500 else f"{message[:200]} ... {message[-300:]}"


def _checked(schema: Schema) -> CompiledSchema:
    _Validator.check_schema(schema)
    return CompiledSchema(schema)


def document(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Build the schema of an object with these properties and no others."""
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


def with_more(schema: Schema, properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Extend the schema of an object by further properties."""
    return {
        **schema,
        "properties": {**schema["properties"], **properties},
        "required": [*schema.get("required", []), *required],
    }


def by_key(pattern: str, schema: Schema, *, some: bool = False, short: bool = False) -> dict[str, Any]:
    """Build the schema of an object whose keys match a pattern.

    :param some: whether it has at least one key.
    :param short: whether its keys are names, which have at most 255 characters.
    """
    return {
        "type": "object",
        **({"minProperties": 1} if some else {}),
        "patternProperties": {pattern: schema},
        "additionalProperties": False,
        **({"propertyNames": {"maxLength": 255}} if short else {}),
    }


#: The largest amount, as in the store.
MAX_AMOUNT = 2**31 - 1

UUID: Schema = {"type": "string", "format": "uuid"}
#: The same for the keys of an object.
UUID_PATTERN = r"^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\Z"
# No minimum: a generation below 0 does not exist, so a request that names one gets a conflict.
GENERATION: Schema = {"type": "integer", "maximum": 2**63 - 1}
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
RESOURCE_CLASS: Schema = {**NAME, "pattern": r"^[A-Z0-9_]+\Z"}
CUSTOM_NAME: Schema = {**NAME, "pattern": r"^CUSTOM_[A-Z0-9_]+\Z"}
TEXT: Schema = {"type": "string"}
