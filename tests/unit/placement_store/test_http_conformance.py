"""Compare the compiled schemas of the HTTP API with what jsonschema finds, and measure what they cost."""

import json
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import jsonschema
import pytest
from support.moorage.executed_lines import executed_lines

from moorage import ids
from placement_store.http.operations import DeclaredOperation
from placement_store.http.phrases import Phrase
from placement_store.http.query import canonical_uuid
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.resources import RESOURCES, allocations, inventories
from placement_store.http.schemas import CompiledSchema, Schema
from placement_store.http.versions import v

FORMATS = jsonschema.FormatChecker(formats=())
FORMATS.checks("uuid")(lambda value: not isinstance(value, str) or canonical_uuid(value) is not None)

SCHEMAS = [
    pytest.param(schema, id=f"{method} {resource.path} {kind} {since}")
    for resource in RESOURCES
    for method, declared in resource.operations.items()
    for kind, schemas in (("query", declared.query), ("body", declared.body))
    for since, schema in schemas.by_version.items()
    if schema is not None
]
UUIDS = [ids.derived("conformance", number) for number in range(3)]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 1.5, 0.0, -0.5, 2**31 - 1, 2**31, 2.0**31, 2**63, 2**64, 1e39, 3e38),
    *("", "a", "A", "VCPU", "CUSTOM_A", "VCPU\n", "a ", " ", "a" * 200, "a" * 201, "A" * 255, "A" * 256, "é", "\0"),
    *(UUIDS[0], UUIDS[0].upper(), UUIDS[0].replace("-", ""), UUIDS[0] + "\n", UUIDS[0][:-1], "none", "10", "01"),
    *([], [1], ["A"], ["A", "A"], [UUIDS[0]], UUIDS, [*UUIDS, UUIDS[0]], ["A"] * 1024, ["A"] * 1025, [[]], [{}]),
    *({}, {"a": 1}, {"VCPU": 1}, {"VCPU": {}}, {UUIDS[0]: {}}, {"": [UUIDS[0]]}, {"_A": []}, {"A" * 256: 1}),
]
NAMES = ["", "a", "VCPU", "VCPU\n", "resources1", "required2", "member_of", "in_tree2", UUIDS[0], UUIDS[1].upper()]


def judge_of(schema: Schema) -> Any:
    return jsonschema.Draft202012Validator(schema, format_checker=FORMATS)


def value_of(schema: Schema, rng: random.Random) -> Any:
    """Make a value that mostly conforms to a schema."""
    if rng.random() < 0.03:
        return deepcopy(rng.choice(VALUES))
    if "anyOf" in schema or "enum" in schema:
        return rng.choice(schema["enum"]) if "enum" in schema else value_of(rng.choice(schema["anyOf"]), rng)
    if schema["type"] == "object":
        return {
            name: value_of(one, rng) if isinstance(one, dict) else deepcopy(rng.choice(VALUES))
            for name, one in members_of(schema, rng)
        }
    if schema["type"] == "array":
        return [value_of(schema["items"], rng) for _ in range(rng.randrange(3))]
    return rng.choice(valid_values(json.dumps(schema)))


@cache
def valid_values(schema: str) -> list[Any]:
    return [value for value in VALUES if judge_of(json.loads(schema)).is_valid(value)]


def members_of(schema: Schema, rng: random.Random) -> Iterator[tuple[str, Schema | None]]:
    for name, one in schema.get("properties", {}).items():
        if name in schema.get("required", ()) or rng.random() < 0.5:
            yield name, one
    for pattern, one in schema.get("patternProperties", {}).items():
        yield rng.choice([name for name in NAMES if re.search(pattern, name)]), one
    if rng.random() < 0.03:
        yield rng.choice(NAMES), None


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_value_conforms_if_and_only_if_jsonschema_finds_no_fault(schema: Schema) -> None:
    conforms, judge = CompiledSchema(schema).conforms, judge_of(schema)
    rng = random.Random(str(schema))
    verdicts = set()
    for value in [*VALUES, *(value_of(schema, rng) for _ in range(100))]:
        verdicts.add(judge.is_valid(value))
        assert conforms(value) is judge.is_valid(value), value
    assert verdicts == {True, False}


MANY = 5_000
OWNER = {"project_id": "p", "user_id": "u"}
AMOUNTS = {f"CUSTOM_{number}": 1 for number in range(MANY)}
CONSUMERS = {ids.derived("conformance", number): {"allocations": {}, **OWNER} for number in range(MANY)}
INVENTORIES = {name: {"total": 1} for name in AMOUNTS}


@pytest.mark.parametrize(
    ("declared", "body", "members"),
    [
        (allocations.AllocationsResource.operations["POST"], CONSUMERS, CONSUMERS),
        (
            allocations.AllocationsOfConsumerResource.operations["PUT"],
            {"allocations": {UUIDS[0]: {"resources": AMOUNTS}}, **OWNER},
            AMOUNTS,
        ),
        (
            inventories.InventoriesResource.operations["PUT"],
            {"resource_provider_generation": 0, "inventories": INVENTORIES},
            INVENTORIES,
        ),
    ],
    ids=["consumers", "classes", "inventories"],
)
def test_a_body_is_validated_with_a_part_of_the_lines_of_jsonschema_even_if_only_its_last_member_is_faulty(
    declared: DeclaredOperation, body: dict[str, Any], members: dict[str, Any]
) -> None:
    version = v("1.27")  # the last one without generations of consumers
    judge = judge_of(declared.body.schema_at(version) or {})

    def check() -> None:
        declared.body.check(version, body, Phrase.INVALID_JSON)

    def refuse() -> None:
        with pytest.raises(HTTPRefusal, match="lower case"):
            check()

    by_jsonschema = executed_lines(lambda: judge.is_valid(body))
    assert executed_lines(check) < 0.1 * by_jsonschema
    members["lower case"] = 1
    assert executed_lines(refuse) < 0.4 * by_jsonschema
