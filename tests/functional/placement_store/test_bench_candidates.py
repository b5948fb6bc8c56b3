"""Test the command `moorage bench candidates`."""

import json

import pytest

from moorage.cli.shell import main


def test_the_benchmark_of_candidates_measures_every_shape_and_the_search_beats_the_cross_product(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "candidates", "--repeat", "3", "--candidates", "10", "-f", "json"]) == 0

    rows = {row["shape"]: row for row in json.loads(capsys.readouterr().out)}
    for devices, groups in ((8, 8), (16, 8), (64, 4)):
        assert rows[f"{devices} devices, {groups} groups"]["candidates"] == (1 if devices == groups else 10)
        assert rows[f"{devices} devices, {groups} groups, one too few"]["candidates"] == 0
    assert sum("3 levels" in shape for shape in rows) == 3
    assert rows["64 sharing pools"]["candidates"] == 10
    # Usually about thirty times; less on a busy machine.
    assert rows["8 devices, 5 groups"]["product_takes"] > 3
