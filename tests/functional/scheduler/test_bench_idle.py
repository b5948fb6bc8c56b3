"""Test the output of `moorage bench idle` in one process, on a few hosts."""

import json

import pytest

from moorage.cli.shell import main


def test_the_output_has_the_processor_and_memory_use_of_each_process(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--hosts", "6", "--cells", "2", "--settle", "0.1", "--seconds", "1"]
    assert main(["bench", "idle", *words, "-f", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["hosts"] == 6
    assert figures["seconds"] >= 1
    assert figures["cpu_percent"] == figures["cpu_percent_by_process"]["all"] >= 0
    assert figures["rss_mb"]["all"] > 0
