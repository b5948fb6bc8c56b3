"""The command line of a compute agent, up to the point where it serves."""

import argparse

import pytest

from compute.commands import Compute
from moorage.cli.shell import Shell


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    return Compute(Shell(), None).get_parser("moorage compute")


def test_an_agent_needs_a_cell(parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args([])

    assert "--cell" in capsys.readouterr().err


def test_the_agents_name_and_its_fake_hosts_are_optional(parser: argparse.ArgumentParser) -> None:
    bare = parser.parse_args(["--cell", "cell1"])
    full = parser.parse_args(["--cell", "cell1", "--agent", "a", "--fake-hosts", "10"])

    assert (bare.cell, bare.agent, bare.fake_hosts) == ("cell1", None, None)
    assert (full.agent, full.fake_hosts) == ("a", 10)


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5", ""])
def test_an_invalid_number_of_hosts_is_refused(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["--cell", "cell1", f"--fake-hosts={number}"])

    assert "is not a number of hosts" in capsys.readouterr().err


def test_options_are_not_abbreviated(parser: argparse.ArgumentParser) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["--cel", "cell1"])
