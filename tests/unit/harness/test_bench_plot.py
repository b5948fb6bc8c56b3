"""Test `moorage bench plot`: the lines of runs, and the picture with them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.bench import plot
from moorage import errors
from moorage.cli.shell import main


def run(**figures: Any) -> dict[str, Any]:
    return {
        "hosts": 100,
        "clients": 1,
        "claims_per_s": 50.0,
        "calls_per_s": 50.0,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
    } | figures


def test_runs_are_drawn_against_the_value_in_which_they_differ() -> None:
    shown = plot.picture([run(hosts=1000, p50_ms=3.0), run(hosts=100)])
    assert (shown.axis, shown.rate) == ("hosts", "claims_per_s")
    [line] = shown.lines
    assert (line.label, line.at) == ("", [100, 1000])
    assert line.values == {"claims_per_s": [50.0, 50.0], "p50_ms": [1.0, 3.0], "p99_ms": [2.0, 2.0]}


def test_runs_that_differ_in_two_values_make_a_line_for_each_value_of_the_other() -> None:
    runs = [run(hosts=hosts, clients=clients) for hosts in (100, 1000) for clients in (1, 8)]
    by_hosts, by_clients = plot.picture(runs), plot.picture(runs, "clients")
    assert [(line.label, line.at) for line in by_hosts.lines] == [
        ("clients 1", [100, 1000]),
        ("clients 8", [100, 1000]),
    ]
    assert [(line.label, line.at) for line in by_clients.lines] == [("hosts 100", [1, 8]), ("hosts 1000", [1, 8])]


def test_the_median_of_repeated_runs_is_drawn() -> None:
    runs = [run(claims_per_s=rate) for rate in (10.0, 90.0, 40.0)] + [run(hosts=1000)]
    [line] = plot.picture(runs).lines
    assert line.values["claims_per_s"] == [40.0, 50.0]


def decided(**figures: Any) -> dict[str, Any]:
    return {"hosts": 100, "occupancy": None, "decisions_per_s": 9.0, "p50_ms": 1.0, "p99_ms": 2.0} | figures


@pytest.mark.parametrize(
    ("runs", "axis", "reason"),
    [
        ([run(), run()], None, "there is nothing to draw against"),
        ([run(), decided()], None, "the runs measure different things: claims_per_s, decisions_per_s"),
        ([decided(occupancy=50.0), decided()], None, "a run has no number of occupancy"),
        ([run(), run(hosts=1000)], "schedulers", "a run has no number of schedulers"),
    ],
)
def test_runs_that_cannot_be_drawn_are_refused(runs: list[dict[str, Any]], axis: str | None, reason: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=reason):
        plot.picture(runs, axis)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read"), ("{", "is no JSON"), ("[]", "is no result of"), ('{"p50_ms": 1}', "is no result of")],
)
def test_a_file_without_figures_is_refused(content: str | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(errors.ConfigurationError, match=reason):
        plot.read(file)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for hosts in (100, 1000):
        (tmp_path / f"{hosts}.json").write_text(json.dumps(run(hosts=hosts)))
    return [str(tmp_path / f"{hosts}.json") for hosts in (100, 1000)]


def test_the_command_writes_a_picture(files: list[str], tmp_path: Path) -> None:
    assert main(["bench", "plot", *files, "--output", str(tmp_path / "rate.png")]) == 0
    assert (tmp_path / "rate.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_an_error_in_one_sentence(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "plot", *files, "--output", str(tmp_path / "missing" / "rate.png")]) != 0
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "plot", *files, "--output", "rate.svg"])
    assert "must end in .png" in capsys.readouterr().err


def test_without_matplotlib_the_error_names_the_extra_to_install(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", "plot", *files, "--output", str(tmp_path / "rate.png")]) != 0
    assert "which is not installed: pip install 'moorage[bench]'" in capsys.readouterr().err
