"""Test that each command on a page exists and takes the options that the page gives it, and that the help groups it."""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from moorage.cli.completion import Complete
from moorage.cli.help import GroupedHelp, grouped
from moorage.cli.shell import Shell

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/operator").glob("*.md")])
#: Commands between backquotes may be broken over two lines; in a block each line is one.
INLINE = re.compile(r"(?<!`)`(moorage [^`]+)`(?!`)")
BLOCK = re.compile(r"^(?:    |\$ |    \$ )?(moorage [a-z].*(?:\\\n.*)*)", re.MULTILINE)


def texts(page: Path) -> Iterator[str]:
    """The commands of a page, each on one line; a table's cell ends one."""
    source = page.read_text()
    for fence in re.findall(r"^ *```(?:sh|)\n(.*?)^ *```", source, re.MULTILINE | re.DOTALL):
        yield from BLOCK.findall(fence)
    outside = re.sub(r"^ *```.*?^ *```", "", source, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"^ {4,}(?:\$ )?(moorage [a-z].*(?:\\\n.*)*)", outside, re.MULTILINE)
    yield from INLINE.findall(outside)


@cache
def parsers() -> dict[str, set[str]]:
    """Each command with the options that it takes."""
    shell = Shell()
    found = {}
    for point in metadata.entry_points(group="moorage.cli"):
        name = point.name.replace("_", " ")
        found[name] = options(point.load()(shell, None, cmd_name=name).get_parser(f"moorage {name}"))
    for name, kind in (("help", GroupedHelp), ("complete", Complete)):
        found[name] = options(kind(shell, None, cmd_name=name).get_parser(f"moorage {name}"))
    return found


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {word for action in parser._actions for word in action.option_strings}


def faults(text: str) -> Iterator[str]:
    words = text.replace("\\\n", " ").split("#")[0].split("|")[0].split()[1:]
    while words and words[0].startswith("--"):  # options of the command itself, each with a value
        if words[0] not in options(Shell().parser):
            yield f"moorage has no {words[0]}"
        words = words[1 if words[0] in ("--help", "--version") else 2 :]
    ends = [count for count in range(len(words), 0, -1) if " ".join(words[:count]) in parsers()]
    if not ends:
        # The beginning of several, as `moorage resource provider ...`, names them all.
        begun = " ".join(word for word in words if re.fullmatch(r"[a-z-]+", word))
        if words and not any(name.startswith(begun) for name in parsers()):
            yield f"there is no command: moorage {begun}"
        return
    taken = parsers()[" ".join(words[: ends[0]])]
    for word in words[ends[0] :]:
        option = re.match(r"\[?(--?[a-z][a-z-]*)", word)
        if option and option[1] not in taken:
            yield f"moorage {' '.join(words[: ends[0]])} has no {option[1]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_on_a_page_exists_and_takes_its_options(page: Path) -> None:
    assert [fault for text in texts(page) for fault in faults(text)] == []


def test_commands_are_found_on_the_pages() -> None:
    assert sum(1 for page in PAGES for _ in texts(page)) > 200


def test_a_command_that_does_not_exist_and_an_unknown_option_are_found() -> None:
    assert list(faults("moorage hosts list")) == ["there is no command: moorage hosts list"]
    assert list(faults("moorage host list --colour red")) == ["moorage host list has no --colour"]
    assert list(faults("moorage host set NAME --forced-down")) == []


def test_the_help_has_a_group_for_each_of_our_commands() -> None:
    assert "Others" not in grouped(parsers())


def test_the_pages_name_every_list_that_can_be_shown_in_parts() -> None:
    for page in (ROOT / "README.md", ROOT / "docs/running.md"):
        named = re.findall(r"lists of ([\w\s,]+?)\s(?:take|are)\s", page.read_text())
        words = {f"{word.removesuffix('s')} list" for one in named for word in re.findall(r"\w+", one) if word != "and"}
        assert words == {name for name, taken in parsers().items() if "--marker" in taken and name.endswith(" list")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_advises_to_change_one_field_by_a_command_that_resets_the_others(page: Path) -> None:
    wrong = [
        text
        for text in re.split(r"\n(?=\n| *- |\|)", page.read_text())
        if re.search("allocation_ratio|reserved", text) and "inventory class set" in text
    ]
    assert wrong == []


def test_each_tool_of_oslo_policy_that_a_page_names_prints_the_rules() -> None:
    pattern = re.compile(r"`(oslopolicy-[a-z-]+) --namespace (\S+)`")
    named = {found for page in PAGES for found in pattern.findall(page.read_text())}
    assert named
    for tool, namespace in sorted(named):
        words = [str(Path(sys.executable).with_name(tool)), "--namespace", namespace]
        printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert '"placement:reshaper:reshape": "rule:service_api"' in printed
