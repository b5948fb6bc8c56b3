"""Test the arguments of the simulation's command, and the command that it prints for a replay."""

import re
import shlex

import pytest

from harness.simulation import command, forks
from harness.simulation.history import Outcome
from harness.simulation.story import draw


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--jobs", "0"), ("--jobs", "-1"), ("--histories", "0"), ("--operations", "0"), ("--most", "0")),
        *(("--after", "-1"), ("--after", "1"), ("--shrink", "-1"), ("--jobs", "two")),
        *(("--histories", "1" + "0" * 12), ("--jobs", "1000001"), ("--seed", "\udcff")),
    ],
)
def test_a_number_with_which_no_history_could_be_run_is_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parsed([option, value], "today")
    assert ended.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("named", ["nosuch:x", "os", "os:nosuch", "os:sep", "", ":x", ".os:fork", "\udcff:x"])
def test_a_function_to_load_that_does_not_exist_is_refused_with_the_reason(
    named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.load(named)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"--load {named!r} is not MODULE:FUNCTION: ")


@pytest.mark.parametrize(
    "given", [(), ("--operations", "20"), ("--seed", "it's"), ("--load", "module:function", "--operations", "7")]
)
def test_the_printed_command_replays_the_story_that_broke_a_promise(
    given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = command.parsed([*given, "--histories", "3", "--as-it-is"], "today")
    monkeypatch.setattr(forks, "prepare", lambda: None)
    monkeypatch.setattr(forks, "outcomes", lambda stories, _jobs: ((story, Outcome("promise 1")) for story in stories))
    assert command.main(asked) == 1
    printed = re.search(r"again: python -m harness\.simulation (.*)", capsys.readouterr().out)
    assert printed is not None
    again = command.parsed(shlex.split(printed[1]), "another day")
    assert (again.histories, again.load) == (1, asked.load)
    assert draw(again.seed, again.operations) == draw(f"{asked.seed}/0", asked.operations)
