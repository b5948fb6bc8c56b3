"""Test that a command which needs a missing extra names it."""

import sys

import pytest

from moorage.cli.shell import main


@pytest.mark.parametrize(
    "command", ["demo", *(f"bench {name}" for name in ("select", "build", "claims", "echo", "http"))]
)
def test_private_servers_without_their_extra_are_refused_with_the_name_of_the_extra(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # For an import, a module that is None in this dictionary is not installed.
    monkeypatch.setitem(sys.modules, "pifpaf", None)
    monkeypatch.delitem(sys.modules, "harness.servers", raising=False)

    assert main([*command.split(), "--servers"]) == 1

    printed = capsys.readouterr()
    reason = "--servers needs pifpaf, which is not installed: pip install 'moorage[servers]'"
    assert (printed.out, printed.err.strip().splitlines()) == (
        "",
        [f"The configuration is wrong: {reason}. (moorage.configuration)"],
    )
