"""Test that the OpenAPI description agrees with the code."""

from pathlib import Path

import pytest

from placement_store.http import openapi
from placement_store.http.resources import RESOURCES
from placement_store.http.versions import MAX, Version, v

DOCUMENT = Path(__file__).parents[3] / "docs" / "placement-api.openapi.json"


def test_the_document_in_the_repository_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == openapi.text(), "run: python -m placement_store.http.openapi > " + str(DOCUMENT)


@pytest.mark.parametrize("version", [v("1.0"), v("1.12"), MAX])
def test_each_operation_of_a_version_is_described_with_its_body(version: Version) -> None:
    paths = openapi.describe(version)["paths"]
    assert {path: {method.upper() for method in found} for path, found in paths.items()} == {
        resource.path: set(resource.methods(version)) for resource in RESOURCES if resource.methods(version)
    }
    for resource in RESOURCES:
        for method in resource.methods(version):
            asked, described = resource.operations[method], paths[resource.path][method.lower()]
            body = asked.body.schema_at(version) if asked.body else None
            assert ("requestBody" in described) == (body is not None)
            assert described["summary"]
            for status in ("4XX", "5XX"):
                content = described["responses"][status]["content"]
                assert content == {"application/json": {"schema": {"$ref": "#/components/schemas/Errors"}}}


def test_patterns_use_the_syntax_of_json_schema() -> None:
    assert r"\\Z" not in openapi.text()
    assert "^[A-Z0-9_]+$" in openapi.text()
