"""Imports the product with one line changed, in the process of a test run or of the simulation.

As a plug-in (``-p support.breaks.loading``) before pytest imports the first conftest; by :func:`load` for ``--load`` of
the simulation's command. The environment variable ``BREAK`` names the break.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from support.breaks.catalog import BREAKS
from support.breaks.description import Break

VARIABLE = "BREAK"


def load() -> None:
    """Import the module of the break that the environment names, with its line changed."""
    import_broken(BREAKS[os.environ[VARIABLE]])


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Import the module of the break before a conftest imports the product."""
    load()


def changed(one: Break, source: str) -> str:
    """Return the text of a break's module with the line changed."""
    assert "\n" not in one.line + one.broken, f"{one.name}: more than one line"
    assert source.count(one.line) == 1, f"{one.name}: {one.line!r} is {source.count(one.line)} times in {one.module}"
    return source.replace(one.line, one.broken)


class _Loader(SourceFileLoader):
    """Compiles the changed text, and ignores the cached bytecode of the file."""

    def __init__(self, one: Break, path: str) -> None:
        super().__init__(one.module, path)
        self._one = one

    def get_code(self, fullname: str) -> CodeType:
        return compile(changed(self._one, Path(self.path).read_text(encoding="utf-8")), self.path, "exec")


class _Finder(MetaPathFinder):
    """Finds the module of a break for every import of it: its own package may import it first."""

    def __init__(self, one: Break) -> None:
        self._one = one

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._one.module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(self._one, spec.origin)
        return spec


def import_broken(one: Break) -> None:
    """Import a module with one line of it changed, before anything else imports it."""
    assert one.module not in sys.modules, f"{one.module} is imported already"
    sys.meta_path.insert(0, _Finder(one))
    importlib.import_module(one.module)
