"""Test that each class of the product, private ones too, has a name of its own."""

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


def test_no_two_classes_of_the_product_have_the_same_name() -> None:
    found = defaultdict[str, list[str]](list)
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
