"""Test that the operator's guide names every error of the code, and no other."""

import inspect
import re
from pathlib import Path

import pytest

from conductor.commands import operation
from moorage import errors

GUIDE = Path(__file__).parents[4] / "docs" / "operator" / "errors.md"
OURS = [kind for kind in errors.every_error() if kind.__module__ == errors.__name__]
GROUPS = [kind for kind in OURS if errors.MoorageError in kind.__bases__]


def paragraphs(kind: type[errors.MoorageError]) -> str:
    """Return the text of a class as it is in the guide, with the names of its fields in italics."""
    text = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    return re.sub(r"\{(\w+)\}", r"*\1*", text)


def table(group: type[errors.MoorageError]) -> str:
    rows = [f"| `{kind.code}` | `{kind.__name__}` | {paragraphs(kind)} |" for kind in OURS if issubclass(kind, group)]
    return "\n".join(["| code | error | what it says |", "|---|---|---|", *rows])


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_each_group_of_errors_stands_in_the_guide_as_it_is_in_the_code(group: type[errors.MoorageError]) -> None:
    if table(group) not in GUIDE.read_text():
        pytest.fail(f"{GUIDE.name} should have this table:\n{table(group)}", pytrace=False)


def test_the_guide_names_no_error_that_the_code_does_not_have() -> None:
    named = set(re.findall(r"^\| `(moorage\.[a-z_.]+)` \|", GUIDE.read_text(), re.MULTILINE))
    assert named <= {kind.code for kind in OURS}


def test_the_columns_that_the_guide_explains_are_those_of_the_list_of_operations() -> None:
    section = GUIDE.with_name("health.md").read_text().partition("`moorage operation list`\n\nEverything")[2]
    rows = re.findall(r"^\| (`.+?`) \|", section.partition("\n## ")[0], re.MULTILINE)
    named = {name for row in rows for name in re.findall("`([a-z_]+)`", row)}
    assert {"tries", "reason"} <= named <= set(operation._COLUMNS)
