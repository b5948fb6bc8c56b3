"""Send valid and invalid requests, generated from the OpenAPI description: none may cause a server error.

`make test` sends a few requests of each kind. With FUZZ=long in the environment there are dozens, on both databases.
"""

import os
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.http.api import Api

from moorage import ids
from placement_store.http import openapi
from placement_store.http.resources import RESOURCES
from placement_store.http.schemas import GENERATION
from placement_store.http.versions import Version, v

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode

# Only a few of each, so that requests concern the same ones.
PROVIDERS = [ids.derived("fuzzed provider", number) for number in range(3)]
CONSUMERS = [ids.derived("fuzzed consumer", number) for number in range(3)]
UUIDS = st.one_of(st.sampled_from([*PROVIDERS, *CONSUMERS]), st.uuids().map(str))
CLASSES, TRAITS = (
    ["VCPU", "MEMORY_MB", "CUSTOM_FUZZED"],
    ["HW_CPU_X86_AVX2", "CUSTOM_FUZZED", "MISC_SHARES_VIA_AGGREGATE"],
)
schemathesis.openapi.format("uuid", UUIDS)

LONG = os.environ.get("FUZZ") == "long"
# The server refuses longer lines with an error of its own.
LONGEST_LINE = 4000

#: The newest version, and one from before most of what changed.
VERSIONS = [v("1.39"), v("1.11")]
OPERATIONS = [
    pytest.param(version, resource.path, method, id=f"{version} {method} {resource.path}")
    for version in VERSIONS
    for resource in RESOURCES
    for method in resource.methods(version)
]

amounts = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 9), min_size=1, max_size=3)
resources = amounts.map(lambda asked: ",".join(f"{name}:{amount}" for name, amount in asked.items()))
some_traits = st.lists(st.sampled_from([*TRAITS, *(f"!{name}" for name in TRAITS)]), min_size=1, max_size=3)
some_uuids = st.lists(UUIDS, min_size=1, max_size=3)
#: Values of query parameters that have a syntax of their own, which their schemas do not describe.
PARAMETERS: dict[str, st.SearchStrategy[str]] = {
    "resources": resources,
    "required": st.one_of(some_traits.map(",".join), some_traits.map(lambda names: "in:" + ",".join(names))),
    "member_of": st.one_of(UUIDS, some_uuids.map(lambda uuids: "in:" + ",".join(uuids)), UUIDS.map("!{}".format)),
    "in_tree": UUIDS,
    "root_required": some_traits.map(",".join),
    "same_subtree": st.sampled_from(["_A", "_A,_B", "1,_B"]),
    "name": st.one_of(st.sampled_from(["fuzzed", "in:CUSTOM_FUZZED,VCPU", "startswith:CUSTOM"]), st.text(max_size=20)),
    "associated": st.sampled_from(["true", "False", "maybe"]),
    "project_id": st.just("fuzzed"),
    "limit": st.sampled_from(["1", "3", "10"]),
}
suffixes = st.sampled_from(["", "", "1", "_A", "_B"])


@st.composite
def parameters(draw: Callable[..., Any], known: list[str]) -> dict[str, str]:
    """Draw well-formed parameters, from those that an operation knows."""
    drawn: dict[str, str] = {}
    for name in draw(st.lists(st.sampled_from(known), unique=True, max_size=3)) if known else []:
        grouped = name in ("resources", "required", "member_of", "in_tree")
        drawn[name + (draw(suffixes) if grouped else "")] = draw(PARAMETERS[name])
    if "resources" in known and draw(st.integers(0, 3)):
        drawn.setdefault("resources", draw(resources))
    if any("_" in name and name.startswith("resources") for name in drawn):
        drawn["group_policy"] = "none"
    return drawn


def knowing(schema: Any) -> Any:
    """Return a schema that allows only a few classes and names, and small generations, so that most of them exist."""
    if isinstance(schema, list):
        return [knowing(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "integer" and schema.get("maximum") == GENERATION["maximum"]:
        return {"enum": [0, 1, 2]}
    if str(schema.get("pattern", "")).startswith("^[A-Z0-9_]"):
        return {"enum": CLASSES}
    described = {name: knowing(one) for name, one in schema.items()}
    patterns = described.pop("patternProperties", {})
    for pattern, one in patterns.items():
        if pattern.startswith("^[A-Z0-9_]"):
            described["properties"] = dict.fromkeys(CLASSES, one)
        else:
            described["patternProperties"] = {pattern: one}
    return described


@cache
def whole(version: Version) -> Any:
    """Return all operations as the description has them."""
    return _without_tokens(openapi.describe(version))


@cache
def small(version: Version) -> Any:
    """Return all operations, limited to a few names, most of which exist."""
    document = knowing(openapi.describe(version))
    for operation in (operation for methods in document["paths"].values() for operation in methods.values()):
        for parameter in operation["parameters"]:
            if parameter.get("name") in ("name", "resource_class") and parameter["in"] == "path":
                parameter["schema"] = {"enum": [*CLASSES, *TRAITS]}
    return _without_tokens(document)


def _without_tokens(document: Any) -> Any:
    # Every request has a token; other tests send requests without one.
    del document["security"]
    return schemathesis.openapi.from_dict(document)


@pytest.fixture(scope="module")
def fuzzed(server: Api) -> Api:
    """A server with something in it."""
    server.empty()
    for path in ("/resource_classes/CUSTOM_FUZZED", "/traits/CUSTOM_FUZZED"):
        server.does("PUT", path)
    for number, uuid in enumerate(PROVIDERS):
        parent = PROVIDERS[0] if number == 1 else None
        server.store.provider(f"fuzzed {number}", uuid, parent=parent, VCPU=16, MEMORY_MB=64)
    return server


@pytest.mark.parametrize(("version", "path", "method"), OPERATIONS)
def test_no_request_causes_a_server_error(fuzzed: Api, version: Version, path: str, method: str) -> None:
    known = [name for name in PARAMETERS if name in _names(version, path, method)]
    any_, few = whole(version)[path][method], small(version)[path][method]
    good = st.one_of(few.as_strategy(), any_.as_strategy())
    bad = any_.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    # Fewer on the second database: the same code checks the requests before the database is used.
    few_examples = 4 if fuzzed.store.database.is_sqlite else 2

    @settings(
        max_examples=60 if LONG else few_examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        try:
            case = data.draw(st.one_of(good, good, bad))
        except schemathesis.errors.SchemathesisError:
            # An operation without parameters has no invalid requests.
            case = data.draw(good)
        if data.draw(st.booleans()):
            case.query = data.draw(parameters(known))
        roles = data.draw(st.sampled_from(["admin", "service"]))
        headers = {"X-Auth-Token": "admin", "X-Roles": roles, "OpenStack-API-Version": f"placement {version}"}
        reply = case.call(base_url=fuzzed.url, headers=headers)
        assert reply.status_code < 500, (case.as_curl_command(), reply.text)
        if reply.status_code >= 400 and len(str(reply.request.url)) < LONGEST_LINE:
            (error,) = reply.json()["errors"]
            assert error["status"] == reply.status_code

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ask()


def _names(version: Version, path: str, method: str) -> set[str]:
    (asked,) = (resource.operations[method] for resource in RESOURCES if resource.path == path)
    schema = asked.query.schema_at(version) or {}
    return {*schema.get("properties", {})} | {
        name for name in PARAMETERS for pattern in schema.get("patternProperties", {}) if pattern.startswith(f"^{name}")
    }


def test_the_store_is_sound_after_all_requests(fuzzed: Api) -> None:
    assert fuzzed.store.is_sound()
