"""A command that needs an extra says which, and starts nothing."""

import subprocess
import sys

import pytest

#: Python takes a module of which it has noted that it is none for one that is not installed.
_RUN = "import sys; sys.modules['pifpaf'] = None; from moorage.cli.shell import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    "command", ["demo", *(f"bench {name}" for name in ("select", "build", "claims", "echo", "http"))]
)
def test_private_servers_without_their_extra_are_refused_with_its_name(command: str) -> None:
    run = [sys.executable, "-c", _RUN, *command.split(), "--servers"]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines() == [
        "The configuration is wrong: --servers needs pifpaf, which is not installed: pip install 'moorage[servers]'."
    ]
