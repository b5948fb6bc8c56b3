"""Test the output of `moorage bench decide` on a few hosts; the figures themselves are not tested."""

import json

import pytest

from moorage.cli.shell import main


def test_the_output_has_the_times_of_decisions_and_of_loading_the_view(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ["--hosts", "12", "--occupancy", "50", "--groups", "0.5", "--nested"]
    words = [*shape, "--repeat", "20", "--per-request", "2"]
    assert main(["bench", "decide", *words, "-f", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    measured = [figures[name] for name in ("hosts", "decisions", "per_request", "occupancy", "groups", "nested")]
    assert measured == [12, 20, 2, 50.0, 0.5, True]
    assert (figures["traits"], figures["devices"], figures["pool"]) == (0, 0, False)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert figures["decisions_per_s"] == pytest.approx(1000 / figures["p50_ms"], rel=0.05)
    assert figures["load_s"] > 0
    assert figures["rss_mb"] > 0


def test_hosts_have_the_requested_traits_devices_and_pool(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--hosts", "2", "--repeat", "2", "--traits", "80", "--devices", "5", "--pool", "--per-request", "8"]
    assert main(["bench", "decide", *words, "-f", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["traits"], figures["devices"], figures["pool"]) == (80, 5, True)


def test_full_hosts_end_the_run_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decide", "--hosts", "3", "--occupancy", "100", "--repeat", "2"]) != 0
    assert "after 0 decisions there is no host left" in capsys.readouterr().err


def test_decisions_see_the_claims_before_them(capsys: pytest.CaptureFixture[str]) -> None:
    # Two hosts with room for 256 instances each, of which half is used.
    words = ["bench", "decide", "--hosts", "2", "--occupancy", "50", "--repeat", "30", "--per-request", "16"]
    assert main(words) != 0
    assert "after 16 decisions there is no host left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--occupancy", "101"], "must be between 0 and 100"),
        (["--groups", "30"], "must be between 0 and 1"),
        (["--hosts", "0"], "must be at least 1"),
    ],
)
def test_invalid_values_are_refused_with_the_reason(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "decide", *words])
    assert sentence in capsys.readouterr().err


def test_groups_need_a_host_for_each_member(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decide", "--hosts", "9", "--groups", "0.1"]) != 0
    assert "--groups makes groups of 10, each member on a host of its own" in capsys.readouterr().err
