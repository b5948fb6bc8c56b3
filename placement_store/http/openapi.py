"""Generate the OpenAPI document of the API, from its resources and the schemas that validate its requests.

``python -m placement_store.http.openapi > docs/placement-api.openapi.json`` writes the description of the newest
microversion.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from placement_store.http import versions
from placement_store.http.operations import DeclaredOperation, Resource
from placement_store.http.resources import RESOURCES
from placement_store.http.schemas import Schema
from placement_store.http.versions import MAX, Version

_OPENAPI = "3.1.0"
_JSON = "application/json"
_ERRORS: Schema = {
    "type": "object",
    "required": ["errors"],
    "properties": {
        "errors": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["status", "title", "detail", "request_id"],
                "properties": {
                    "status": {"type": "integer"},
                    "title": {"type": "string"},
                    "detail": {"type": "string"},
                    "request_id": {"type": "string"},
                    "code": {"type": "string", "description": "The code of the error, from microversion 1.23."},
                },
            },
        }
    },
}
_WITH_ERRORS: Schema = {"content": {_JSON: {"schema": {"$ref": "#/components/schemas/Errors"}}}}


def describe(version: Version = MAX) -> dict[str, Any]:
    """Build the OpenAPI document of one microversion."""
    found = {resource.path: _path(resource, version) for resource in RESOURCES}
    return {
        "openapi": _OPENAPI,
        "info": {
            "title": "Placement",
            "version": str(version),
            "description": "The Placement API of Moorage. This file is generated; the server also has the schemas of "
            "older microversions.",
        },
        "components": {
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
            "schemas": {"Errors": _ERRORS},
            "parameters": {
                "Version": {
                    "name": versions.HEADER,
                    "in": "header",
                    "required": True,
                    "schema": {"const": f"{versions.SERVICE} {version}"},
                }
            },
        },
        "security": [{"token": []}],
        "paths": {path: described for path, described in found.items() if described},
    }


def _path(resource: type[Resource], version: Version) -> dict[str, Any]:
    return {
        method.lower(): _operation(resource, method, declared, version)
        for method, declared in resource.operations.items()
        if declared.since <= version
    }


def _operation(resource: type[Resource], method: str, declared: DeclaredOperation, version: Version) -> dict[str, Any]:
    work: Callable[..., None] = getattr(resource, f"on_{method.lower()}")
    described: dict[str, Any] = {
        "operationId": f"{method.lower()}_{resource.__name__.removesuffix('Resource')}",
        "summary": (work.__doc__ or "").partition("\n")[0],
        "description": f"From microversion {declared.since}. Policy: {declared.rule or 'open to everybody'}.",
        "parameters": [
            {"$ref": "#/components/parameters/Version"},
            *_in_path(resource.path),
            *_in_query(declared.query.schema_at(version)),
        ],
        "responses": {
            "2XX": {"description": "The request was carried out."},
            "4XX": {"description": "The request was refused.", **_WITH_ERRORS},
            "5XX": {"description": "The request failed, or the service is not available.", **_WITH_ERRORS},
        },
    }
    if declared.rule is None:
        described["security"] = []
    if (body := declared.body.schema_at(version)) is not None:
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": _portable(body)}}}
    return described


def _in_path(path: str) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", path):
        schema = {"type": "string", "format": "uuid"} if name.endswith("uuid") else {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(schema: Schema | None) -> Iterator[dict[str, Any]]:
    if schema is None:
        return
    required = schema.get("required", ())
    for name, one in schema.get("properties", {}).items():
        yield {"name": name, "in": "query", "required": name in required, "schema": _portable(one)}
    if patterns := schema.get("patternProperties"):
        # Each property is a query parameter.
        groups = {"type": "object", "patternProperties": patterns, "additionalProperties": False}
        yield {"name": "groups", "in": "query", "style": "form", "explode": True, "schema": _portable(groups)}


def _portable(schema: Any) -> Any:
    r"""Translate the patterns of a schema from Python's to those of JSON Schema: ``\Z`` becomes ``$``."""
    if isinstance(schema, Mapping):
        return {_portable(name): _portable(one) for name, one in schema.items()}
    if isinstance(schema, list | tuple):
        return [_portable(one) for one in schema]
    return schema.replace(r"\Z", "$") if isinstance(schema, str) else schema


def text() -> str:
    """Return the document of the newest microversion, as ``docs`` keeps it."""
    return json.dumps(describe(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
