"""Test the catalogue of deliberate breaks: each changes one line, and names existing tests that notice it."""

import ast
import os
from collections import Counter
from pathlib import Path

import pytest
from support.breaks import loading
from support.breaks.catalog import BREAKS
from support.breaks.trials import fails_tests

ROOT = Path(__file__).parents[3]
PROMISES = range(1, 13)
#: Quick breaks of different packages, tried in every run; the long form tries all, with servers.
QUICK = ("destroyed_attempts_are_started", "boundless_memory")
LONG = os.environ.get("DRILLS") == "long"


def by_name(names: tuple[str, ...] | dict[str, object]) -> pytest.MarkDecorator:
    marked = [pytest.param(name, marks=[pytest.mark.servers] * BREAKS[name].needs_servers) for name in names]
    return pytest.mark.parametrize("name", marked)


def test_each_promise_has_at_least_two_breaks() -> None:
    count = Counter(one.promise for one in BREAKS.values())
    assert count.keys() == {*PROMISES}
    assert min(count.values()) >= 2


@pytest.mark.parametrize("name", BREAKS)
def test_the_line_of_a_break_is_once_in_its_module_and_changed_to_another_that_compiles(name: str) -> None:
    one = BREAKS[name]
    path = (ROOT / one.module.replace(".", "/")).with_suffix(".py")
    whole = path.read_text(encoding="utf-8")
    source = loading.changed(one, whole)
    assert source != whole
    compile(source, path, "exec")


@pytest.mark.parametrize("name", BREAKS)
def test_the_tests_that_have_to_notice_a_break_exist(name: str) -> None:
    assert BREAKS[name].tests
    for test in BREAKS[name].tests:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_the_table_in_the_docs_has_each_break_with_its_tests() -> None:
    rows = [line for line in (ROOT / "docs" / "breaks.md").read_text(encoding="utf-8").splitlines() if "| `" in line]
    documented = {row.split("|")[2].strip(" `"): row for row in rows}
    assert [*documented] == [*BREAKS]
    for name, one in BREAKS.items():
        assert documented[name].startswith(f"| {one.promise} |")
        assert one.lost in documented[name]
        assert all(f"`{test.rpartition('::')[2]}`" in documented[name] for test in one.tests), name


@by_name({**BREAKS} if LONG else QUICK)
def test_a_break_is_noticed_by_each_of_its_tests(name: str) -> None:
    assert fails_tests(BREAKS[name])
