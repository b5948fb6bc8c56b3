"""Test the commands of drills that need no servers, and their findings when a promise is broken."""

import json
import sys

import pytest
from support.cli.commands import Run

from harness.bench.cloud import BenchCloud
from harness.drills.orders import Server

URLS = ["--transport-url", "rabbit://nowhere/", "--database-url", "mysql+pymysql://nowhere/"]


@pytest.fixture
def drill(here: Run) -> Run:
    return lambda *words: here("drill", *words)


def test_the_list_shows_the_needs_of_each_drill(drill: Run) -> None:
    rows = json.loads(drill("list", "-f", "json").stdout)
    needs = {row["drill"]: row["needs"] for row in rows}
    assert needs == {
        **dict.fromkeys(("race", "fallback", "conflict"), "nothing"),
        **dict.fromkeys(("reshape", "crash", "late", "silence", "partition", "age", "upgrade", "soak"), "processes"),
        "failover": "servers",
    }


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("crash", [], "crash harms services, which must be processes: give --servers, or the URLs of both"),
        ("failover", URLS, "failover kills servers, and so needs its own: give --servers"),
        ("upgrade", URLS, "upgrade needs another release: give --former"),
        ("upgrade", [*URLS, "--former", "/nowhere/python"], "--former /nowhere/python has no release of Moorage: "),
        ("upgrade", [*URLS, "--former", sys.executable], "has this release, and not another one"),
    ],
)
def test_a_drill_is_refused_without_what_it_needs(drill: Run, name: str, given: list[str], reason: str) -> None:
    done = drill("run", name, *given)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


def test_an_unknown_drill_is_refused_with_the_known_ones(drill: Run) -> None:
    done = drill("run", "flood")
    assert done.returncode == 2
    assert "invalid choice: 'flood' (choose from 'race', 'fallback'" in done.stderr


@pytest.mark.parametrize("name", ["race", "fallback", "conflict"])
def test_a_drill_shows_its_counts_and_finds_nothing(drill: Run, name: str) -> None:
    done = drill("run", name, "--seconds", "1.5", "--clients", "4", "--seed", "3", "-f", "json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["drill"], figures["seed"], figures["findings"]) == (name, 3, [])
    assert figures.get("rounds") or figures.get("builds") or figures.get("claims")
    assert f"drill {name}, seed 3" in done.stderr
    assert "0 findings, seed 3" in done.stderr


def test_a_drill_finds_remains_of_servers_that_were_not_deleted(drill: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "delete", lambda _self: None)
    monkeypatch.setattr("harness.drills.workload._TIDY_SECONDS", 0.1)
    done = drill("run", "fallback", "--seconds", "1", "--clients", "1", "--seed", "3", "-f", "json")
    assert done.returncode == 1
    findings = json.loads(done.stdout)["findings"]
    assert any(found.startswith("guest of ") for found in findings), findings
    assert any("leaked" in found for found in findings), findings
    assert "FOUND: " in done.stderr


def test_a_drill_finds_allocations_of_an_unknown_server_after_a_race(
    drill: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = BenchCloud.judge
    monkeypatch.setattr(BenchCloud, "judge", lambda self, living: judge(self, living[1:]))
    done = drill("run", "race", "--seconds", "1", "--seed", "3", "-f", "json")
    assert done.returncode == 1
    [found] = json.loads(done.stdout)["findings"]
    assert found.startswith("round 1: over-committed providers: 0; leaked allocations: ")
