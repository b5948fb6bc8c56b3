"""Imports the product with one line changed, in the process of a test run or of the simulation.

As a plug-in (``-p support.breaks.loading``) before pytest imports the first conftest; by :func:`load` for ``--load`` of
the simulation's command. The environment variable ``BREAK`` names the break.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from support.breaks.catalog import BREAKS
from support.breaks.description import Break

VARIABLE = "BREAK"


def load() -> None:
    """Import the module of the break that the environment names, with its line changed."""
    import_broken(BREAKS[os.environ[VARIABLE]])


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Import it before a conftest imports the product."""
    load()


def source_of(module: str) -> tuple[str, str]:
    """Return the path and the text of a module of the product, without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    return spec.origin, Path(spec.origin).read_text(encoding="utf-8")


def broken_source(one: Break) -> tuple[str, str]:
    """Return the path of a break's module and its text with the line changed."""
    path, source = source_of(one.module)
    assert "\n" not in one.line + one.broken, f"{one.name}: more than one line"
    assert source.count(one.line) == 1, f"{one.name}: {one.line!r} is {source.count(one.line)} times in {one.module}"
    return path, source.replace(one.line, one.broken)


def import_broken(one: Break) -> None:
    """Import a module with one line of it changed, before anything else imports it."""
    path, source = broken_source(one)
    assert one.module not in sys.modules, f"{one.module} is imported already"
    spec = importlib.util.find_spec(one.module)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[one.module] = made
    exec(compile(source, path, "exec"), made.__dict__)
    parent, _, name = one.module.rpartition(".")
    setattr(sys.modules[parent], name, made)
