"""The `moorage` command itself: what it loads to do what it is asked."""

import subprocess
import sys

import pytest

_LOADED = """
import sys
from moorage.shell import main
try:
    main({words!r})
finally:
    print(*sys.modules, file=sys.stderr)
"""


def loaded(*words: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", _LOADED.format(words=list(words))], capture_output=True, text=True, check=True
    )
    return set(ran.stderr.split())


@pytest.mark.parametrize("words", [("--version",), ("help", "instance", "list")], ids=" ".join)
def test_no_command_waits_for_the_import_of_another_ones_service(words: tuple[str, ...]) -> None:
    modules = loaded(*words)

    assert "moorage.shell" in modules
    assert modules.isdisjoint(
        {"conductor.service", "scheduler.service", "compute.service", "placement_store.schema", "harness", "alembic"}
    )
