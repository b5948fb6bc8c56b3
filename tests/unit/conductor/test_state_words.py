"""Test that the conductor's code names only known states: the type check covers neither `in` tuples nor SQL."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import conductor
from moorage.model.states import AttemptState, InstanceState, MigrationState, OperationState

STATES = {state for kind in (InstanceState, AttemptState, MigrationState, OperationState) for state in get_args(kind)}


def is_state(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "state"


def compared(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that are compared with a state or passed as one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(is_state, [node.left, *node.comparators])):
            yield from [node.left, *node.comparators]
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and is_state(node.func.value):
                yield from node.args
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "state")


def words(tree: ast.AST) -> list[str]:
    return [
        constant.value
        for given in compared(tree)
        for constant in ast.walk(given)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    ]


def test_the_code_names_only_known_states() -> None:
    found: set[str] = set()
    for path in Path(conductor.__path__[0]).rglob("*.py"):
        found.update(words(ast.parse(path.read_text())))
    assert {"pending", "deleted", "held", "placing"} <= found <= STATES


def test_a_misspelt_state_is_found_in_tuples_and_in_statements() -> None:
    assert words(ast.parse('instance.state in ("actve",)')) == ["actve"]
    assert words(ast.parse('select(t).where(t.c.state.in_(("dn",)), t.c.state == "pend")')) == ["dn", "pend"]
