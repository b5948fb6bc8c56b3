"""Test the command `moorage bench http`."""

import json

import pytest

from moorage.cli.shell import main


def test_the_benchmark_over_http_measures_candidates_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--providers", "20", "--requests", "10", "--clients", "2", "--workers", "1"]
    assert main(["bench", "http", *words, "-f", "json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    kinds = [*(f"candidates, limit={limit}" for limit in (1, 10, 1000)), "allocation write"]
    assert sorted((row["request"], row["clients"]) for row in rows) == sorted((k, n) for k in kinds for n in (1, 2))
    assert all(0 < row["p50_ms"] <= row["p99_ms"] and row["per_s"] > 0 for row in rows)
