"""Test the command `moorage bench http`."""

import json
import subprocess
import sys


def test_the_benchmark_over_http_measures_candidates_and_writes() -> None:
    words = ["bench", "http", "--providers", "20", "--requests", "10", "--clients", "2", "--workers", "1", "-f", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "moorage.cli.shell", *words], text=True, capture_output=True, check=False, timeout=180
    )

    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    kinds = [*(f"candidates, limit={limit}" for limit in (1, 10, 1000)), "allocation write"]
    assert sorted((row["request"], row["clients"]) for row in rows) == sorted((k, n) for k in kinds for n in (1, 2))
    assert all(0 < row["p50_ms"] <= row["p99_ms"] and row["per_s"] > 0 for row in rows)
