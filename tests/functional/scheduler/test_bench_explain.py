"""Test the output of `moorage bench explain` on a few hosts; the figures themselves are not tested."""

import json

import pytest

from moorage.cli.shell import main


def test_the_output_has_the_times_of_decisions_with_and_without_an_explanation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "explain", "--hosts", "12", "--repeat", "2", "-f", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["request"] for row in rows] == ["finds a host", "finds no room", "finds nothing in its zone"]
    for row in rows:
        assert row["hosts"] == 12
        assert row["filters"] >= 8
        assert row["weighers"] >= 5
        assert row["decision_ms"] > 0


@pytest.mark.parametrize("hosts", ["1", "2"])
def test_too_few_hosts_end_the_run_with_an_error(hosts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "explain", "--hosts", hosts, "--repeat", "2"]) != 0
    printed = capsys.readouterr().err
    assert "there is no host left" in printed
    assert "give more --hosts" in printed
