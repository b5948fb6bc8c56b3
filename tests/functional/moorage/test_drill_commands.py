"""The drills that need no servers, by their commands, and what a drill finds where a promise is not kept."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from harness.bench.cloud import BenchCloud
from harness.drills.orders import Server
from moorage.cli.shell import main

Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def drill(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a drill command in this process, which has imported all that it needs."""

    def run(*words: str) -> "CompletedProcess[str]":
        try:
            status: object = main(("drill", *words))
        except SystemExit as end:
            status = end.code
        assert isinstance(status, int)
        return CompletedProcess(words, status, *capsys.readouterr())

    return run


def test_the_list_has_what_each_drill_needs(drill: Run) -> None:
    rows = json.loads(drill("list", "-f", "json").stdout)
    needs = {row["drill"]: row["needs"] for row in rows}
    assert needs == {
        **dict.fromkeys(("race", "fallback", "conflict"), "nothing"),
        **dict.fromkeys(("reshape", "crash", "late", "silence", "partition", "age", "soak"), "processes"),
        "failover": "servers",
    }


@pytest.mark.parametrize(
    ("name", "urls", "reason"),
    [
        ("crash", [], "crash harms services, which must be processes: give --servers, or the URLs of both"),
        (
            "failover",
            ["--transport-url", "rabbit://nowhere/", "--database-url", "mysql+pymysql://nowhere/"],
            "failover kills servers, and so needs its own: give --servers",
        ),
    ],
)
def test_a_drill_is_refused_without_what_it_needs(drill: Run, name: str, urls: list[str], reason: str) -> None:
    done = drill("run", name, *urls)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


def test_a_drill_that_does_not_exist_is_refused_with_those_that_do(drill: Run) -> None:
    done = drill("run", "flood")
    assert done.returncode == 2
    assert "invalid choice: 'flood' (choose from 'race', 'fallback'" in done.stderr


@pytest.mark.parametrize("name", ["race", "fallback", "conflict"])
def test_a_drill_shows_what_it_has_counted_and_finds_nothing(drill: Run, name: str) -> None:
    done = drill("run", name, "--seconds", "1.5", "--clients", "4", "--seed", "3", "-f", "json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["drill"], figures["seed"], figures["findings"]) == (name, 3, [])
    assert figures.get("rounds") or figures.get("builds") or figures.get("claims")
    assert f"drill {name}, seed 3" in done.stderr
    assert "0 findings, seed 3" in done.stderr


def test_what_is_left_of_deleted_servers_is_found(drill: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "delete", lambda _self: None)
    monkeypatch.setattr("harness.drills.catalog._TIDY_SECONDS", 0.1)
    done = drill("run", "fallback", "--seconds", "1", "--clients", "1", "--seed", "3", "-f", "json")
    assert done.returncode == 1
    findings = json.loads(done.stdout)["findings"]
    assert any(found.startswith("guest of ") for found in findings), findings
    assert any("leaked" in found for found in findings), findings
    assert "FOUND: " in done.stderr


def test_a_race_after_which_somebody_holds_what_nobody_has_is_found(
    drill: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = BenchCloud.judge
    monkeypatch.setattr(BenchCloud, "judge", lambda self, living: judge(self, living[1:]))
    done = drill("run", "race", "--seconds", "1", "--seed", "3", "-f", "json")
    assert done.returncode == 1
    [found] = json.loads(done.stdout)["findings"]
    assert found.startswith("round 1: over-committed providers: 0; leaked allocations: ")
