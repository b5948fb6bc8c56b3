"""Test that a command prints its result also where the encoding of its output lacks a character."""

import io
import sys

import pytest
from cliff.show import ShowOne

from moorage.cli.command import Configured
from moorage.cli.shell import WholeNames, main


class _Named(Configured, ShowOne):
    """Show a name."""

    def take_action(self, _parsed_args: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("name",), ("web-ä-├",)


@pytest.mark.parametrize(("encoding", "printed"), [("ascii", r"web-\xe4-\u251c"), ("latin-1", r"web-ä-\u251c")])
@pytest.mark.parametrize("form", ["table", "value", "shell"])
def test_a_character_that_the_output_lacks_is_escaped(
    monkeypatch: pytest.MonkeyPatch, form: str, encoding: str, printed: str
) -> None:
    monkeypatch.setattr(WholeNames, "find_command", lambda _self, argv: (_Named, "named", argv[1:]))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))

    assert main(["named", "-f", form]) == 0

    sys.stdout.flush()
    assert printed in written.getvalue().decode(encoding)
