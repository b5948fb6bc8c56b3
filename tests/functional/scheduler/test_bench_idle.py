"""`moorage bench idle` in one process: what it shows, on a few hosts."""

import json

import pytest

from moorage.cli.shell import main


def test_a_cloud_at_rest_is_measured_by_process(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--hosts", "6", "--cells", "2", "--settle", "0.1", "--seconds", "1"]
    assert main(["bench", "idle", *words, "-f", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["hosts"] == 6
    assert figures["seconds"] >= 1
    assert figures["cpu_percent"] == figures["cpu_percent_by_process"]["all"] >= 0
    assert figures["rss_mb"]["all"] > 0
