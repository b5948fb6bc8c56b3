"""`moorage bench explain`: what it shows, on a few hosts; how fast anything is, is not for a test to say."""

import json

import pytest

from moorage.cli.shell import main


def test_explanations_are_measured_beside_what_they_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "explain", "--hosts", "12", "--repeat", "2", "-f", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["request"] for row in rows] == ["finds a host", "finds no room", "finds nothing in its zone"]
    for row in rows:
        assert row["hosts"] == 12
        assert row["filters"] >= 8
        assert row["weighers"] >= 5
        assert row["decision_ms"] > 0
