"""The `moorage` command itself: what it loads to do what it is asked."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from moorage.cli.command import Configured
from moorage.cli.shell import Shell

_LOADED = """
import sys
from moorage.cli.shell import main
try:
    main({words!r})
finally:
    print(*sys.modules, file=sys.stderr)
"""

#: What cliff remembers once it has looked through all that is installed; the command ends for want of its argument.
_LOOKED = """
import contextlib, cliff.command
from moorage.cli.shell import main
with contextlib.suppress(SystemExit):
    main(["instance", "show"])
assert cliff.command._dists_by_mods is None
"""


def loaded(*words: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", _LOADED.format(words=list(words))], capture_output=True, text=True, check=True
    )
    return set(ran.stderr.split())


@pytest.mark.parametrize("words", [("--version",), ("help", "instance", "list")], ids=" ".join)
def test_no_command_waits_for_the_import_of_another_ones_service(words: tuple[str, ...]) -> None:
    modules = loaded(*words)

    assert "moorage.cli.shell" in modules
    assert modules.isdisjoint(
        {"conductor.service", "scheduler.service", "compute.service", "placement_store.schema", "harness", "alembic"}
    )


def test_no_command_waits_for_a_look_at_every_file_that_is_installed() -> None:
    subprocess.run([sys.executable, "-c", _LOOKED], capture_output=True, check=True)


class SomeCommand(Configured):
    def take_action(self, parsed_args: object) -> None:
        pass


def test_the_help_on_a_command_names_the_package_that_brings_it_unless_it_is_ours() -> None:
    shell = Shell()
    [shell.command_manager.commands["theirs"]] = [
        one for one in entry_points(group="console_scripts") if one.name == "pytest"
    ]

    assert SomeCommand(shell, None, "theirs").get_epilog() == "This command is provided by the pytest plugin."
    assert SomeCommand(shell, None, "instance list").get_epilog() == ""
