"""Test the `moorage` command itself: the modules that it loads, its help, its errors, and its lists."""

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cliff.show import ShowOne

from harness.waiting import wait_until
from moorage.cli import request_arguments
from moorage.cli.command import Configured, ListCommand, ShownAge, ShownLines, ShownUse, Table, shown
from moorage.cli.progress import Elapsed
from moorage.cli.shell import Shell, main
from moorage.errors import InvalidRequest, StoreUnavailable

_LOADED = """
import sys
from moorage.cli.shell import main
try:
    main({words!r})
finally:
    print(*sys.modules, file=sys.stderr)
"""

#: cliff sets this value once it has scanned all installed files. The command ends because its argument is missing.
_LOOKED = """
import contextlib, cliff.command
from moorage.cli.shell import main
with contextlib.suppress(SystemExit):
    main(["instance", "show"])
assert cliff.command._dists_by_mods is None
"""

#: Runs an entry point that is interrupted while it imports cliff.
_INTERRUPTED = """
import os, pkgutil, signal, sys
# A job in the background inherits that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, *_):
        if name == "cliff.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
pkgutil.resolve_name({entry_point!r})()
"""


def loaded(*words: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", _LOADED.format(words=list(words))], capture_output=True, text=True, check=True
    )
    return set(ran.stderr.split())


@pytest.mark.parametrize("words", [("--version",), ("help", "instance", "list")], ids=" ".join)
def test_a_command_does_not_import_the_services_of_others(words: tuple[str, ...]) -> None:
    modules = loaded(*words)

    assert "moorage.cli.shell" in modules
    assert modules.isdisjoint(
        {"conductor.service", "scheduler.service", "compute.service", "placement_store.schema", "harness", "alembic"}
    )


def test_a_command_does_not_scan_all_installed_files() -> None:
    subprocess.run([sys.executable, "-c", _LOOKED], capture_output=True, check=True)


def test_ctrl_c_during_the_imports_of_a_command_prints_nothing() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
    program = _INTERRUPTED.format(entry_point=project["project"]["scripts"]["moorage"])
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")


class SomeCommand(Configured):
    def take_action(self, parsed_args: object) -> None:
        pass


def test_the_help_on_a_command_names_the_package_that_provides_it_unless_it_is_ours() -> None:
    shell = Shell()
    [shell.command_manager.commands["theirs"]] = [
        one for one in entry_points(group="console_scripts") if one.name == "pytest"
    ]

    assert SomeCommand(shell, None, "theirs").get_epilog() == "This command is provided by the pytest plugin."
    assert SomeCommand(shell, None, "instance list").get_epilog() == ""


def test_all_commands_are_listed_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["help"]):
        with suppress(SystemExit):
            main(words)
        printed = capsys.readouterr().out
        titles = re.findall(r"^(\w+):$", printed, re.MULTILINE)
        assert [title for title in titles if title[0].isupper()] == [
            "Services", "Servers", "Hosts", "Placement", "Diagnosis", "Tools",
        ]  # fmt: skip
        assert re.search(r"^  instance list +List instances in the order of their requests$", printed, re.MULTILINE)


def test_the_help_of_a_command_keeps_its_paragraphs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "instance", "attach-resource"]) == 0
    assert re.search(r"\n\nExample: moorage [^\n]+\n[^\n]+ CUSTOM_PHYSNET_BLUE\n\nIf the", capsys.readouterr().out)


def test_an_unknown_command_is_refused_in_one_line_with_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = {}
    helps = ("help zzz", "help instance lst")
    for words in ("instance lst", "instnce list --project p", "agregate list", "server-group", "zzz", *helps):
        assert main(words.split()) == 2
        output[words] = capsys.readouterr().err

    assert (
        output["instance lst"] == "moorage: there is no command 'instance lst'; did you mean `moorage instance list`?\n"
    )
    assert "`moorage instance list`" in output["instnce list --project p"]
    assert "`moorage aggregate list`" in output["agregate list"]
    assert output["server-group"] == "moorage: 'server-group' needs a further word: create, delete, list, show\n"
    assert output["zzz"] == "moorage: there is no command 'zzz'; `moorage help` lists them\n"
    assert output["help zzz"] == output["zzz"]
    assert output["help instance lst"] == output["instance lst"]


def test_the_help_of_some_words_is_that_of_the_command_or_lists_the_commands_that_begin_with_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["help", "instance", "show", "an-argument"]) == 0
    assert capsys.readouterr().out.startswith("usage: moorage instance show")
    assert main(["help", "hos"]) == 0
    assert capsys.readouterr().out.startswith('Command "hos" matches:\n  host ')


#: Invalid numbers of seconds to wait.
INVALID_SECONDS = ("0", "nan", "inf", "1e300")


def test_wrong_arguments_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = {}
    commands = (
        *("instance list --projct p", "instance list --limit 0", "instance show", "--confg-file x status"),
        *("complete --shell nope", "help --mn x", "--config-file x --config-file y status"),
    )
    for words in (*commands, *(f"status --timeout {seconds}" for seconds in INVALID_SECONDS)):
        with pytest.raises(SystemExit) as ended:
            main(words.split())
        assert ended.value.code == 2
        output[words] = capsys.readouterr().err

    assert all(text.count("\n") == 1 for text in output.values())
    assert output["instance list --projct p"].endswith("did you mean --project?\n")
    assert "must be a whole number from 1" in output["instance list --limit 0"]
    assert "--config-file: may be given only once" in output["--config-file x --config-file y status"]
    assert all(
        "must be a number of seconds above 0" in output[f"status --timeout {seconds}"] for seconds in INVALID_SECONDS
    )
    assert "see `moorage instance show --help`" in output["instance show"]


def test_an_argument_that_is_not_utf8_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # Python decodes a byte that is not UTF-8 in an argument as half of a surrogate pair.
    assert main(["resource", "provider", "show", "h\udcfc1"]) == 2
    assert capsys.readouterr().err == "moorage: the argument 'h\\udcfc1' is not text in UTF-8\n"


class Listed(ListCommand):
    """List three things."""

    rows: ClassVar = [("one", None, ShownAge(59.96)), ("two", 2, ShownAge(7300.0)), ("three", 3, ShownAge(None))]

    def take_action(self, parsed_args: object) -> Table:
        return ("name", "number", "age"), [(*shown(row[:2]), row[2]) for row in self.rows]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    command = Listed(Shell(), None, "listed")
    command.run(command.get_parser("moorage listed").parse_args(list(words)))
    return capsys.readouterr().out


def test_null_is_empty_in_formats_without_null(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "-f", "value") == "one  60.0\ntwo 2 7300.0\nthree 3 \n"
    assert printed(capsys, "-f", "csv").splitlines()[1:] == ['"one","",60.0', '"two",2,7300.0', '"three",3,""']
    assert json.loads(printed(capsys, "-f", "json"))[0] == {"name": "one", "number": None, "age": 60.0}


class ShownOnce(Configured, ShowOne):
    """Show one thing whose name a user has chosen."""

    def take_action(self, parsed_args: object) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        return ("name", "parts", "host"), shown((NAME_OF_A_USER, [NAME_OF_A_USER], None))


NAME_OF_A_USER = 'web$(echo ran)`echo ran`\\"$HOME'


def test_a_shell_obeys_nothing_in_a_value_that_it_evaluates(capsys: pytest.CaptureFixture[str]) -> None:
    command = ShownOnce(Shell(), None, "shown")
    command.run(command.get_parser("moorage shown").parse_args(["-f", "shell"]))
    script = capsys.readouterr().out + 'printf \'%s\\n\' "$name" "$parts" "<$host>"'
    evaluated = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert evaluated.stdout.splitlines() == [NAME_OF_A_USER, str([NAME_OF_A_USER]), "<>"]


def test_a_table_obeys_no_control_characters_of_a_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a\x1b[2Jb\u202ec\x07 süd"
    monkeypatch.setattr(Listed, "rows", [(name, (name, name), ShownLines(name, [name, name]))])
    table = printed(capsys)
    assert table.count(r"a\x1b[2Jb\u202ec\x07 süd") == 5
    assert not {"\x1b", "\u202e", "\x07"} & set(table)
    assert json.loads(printed(capsys, "-f", "json"))[0] == {"name": name, "number": [name, name], "age": name}


def test_a_name_with_line_breaks_is_in_one_line_of_the_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a\nb\r\tc\x1b[2J\u2028d"
    monkeypatch.setattr(Listed, "rows", [(name, (name,), None)])
    assert printed(capsys, "-f", "value") == rf"a\nb\r\tc\x1b[2J\u2028d {(name,)} " + "\n"
    assert json.loads(printed(capsys, "-f", "json"))[0]["name"] == name
    monkeypatch.setitem(globals(), "NAME_OF_A_USER", name)
    command = ShownOnce(Shell(), None, "shown")
    command.run(command.get_parser("moorage shown").parse_args(["-f", "value", "-c", "name", "-c", "host"]))
    assert capsys.readouterr().out == r"a\nb\r\tc\x1b[2J\u2028d" + "\n\n"


@pytest.mark.parametrize("format_", ["csv", "yaml"])
def test_a_list_in_another_format_has_no_control_characters_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    name = "a\nb\r\tc\x1b[2J\u2028d"
    monkeypatch.setattr(Listed, "rows", [(name, (name,), None)])
    rows = printed(capsys, "-f", format_)
    assert r"\nb\r\t" in rows.replace("\\\\", "\\"), "the writer of CSV doubles backslashes"
    assert not {"\r", "\t", "\x1b", "\u2028"} & set(rows)
    if format_ == "csv":
        assert rows.count("\n") == 2


def test_a_shell_gets_a_name_with_line_breaks_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "NAME_OF_A_USER", "a\nb\x1b[2J$HOME")
    command = ShownOnce(Shell(), None, "shown")
    command.run(command.get_parser("moorage shown").parse_args(["-f", "shell", "-c", "name"]))
    script = capsys.readouterr().out
    assert script.count("\n") == 1
    evaluated = subprocess.run(["sh", "-c", f'{script}printf %s "$name"'], capture_output=True, text=True, check=True)
    assert evaluated.stdout == r"a\nb\x1b[2J$HOME"


def test_an_error_with_control_characters_of_a_name_is_printed_with_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell()
    shell.run(["help", "help"])
    capsys.readouterr()
    shell.LOG.error(InvalidRequest(path="a\x1b[2J", reason="b\rc"))
    assert r"invalid at a\x1b[2J: b\rc. (moorage.invalid_request)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["instance build --vcpus 1.5", "placement-api --port http", "resource provider trait set a --generation one"],
)
def test_a_wrong_number_is_refused_in_words(capsys: pytest.CaptureFixture[str], words: str) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    printed = capsys.readouterr().err
    assert f"{words.split()[-1]!r} is not a whole number" in printed


def test_an_age_has_a_unit_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = printed(capsys)
    assert "| 60 s |" in table
    assert "| 2 h  |" in table


def test_a_part_of_a_list_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "-f", "value", "-c", "name", "--limit", "2") == "one\ntwo\n"
    assert printed(capsys, "-f", "value", "-c", "name", "--marker", "one", "--limit", "1") == "two\n"
    with pytest.raises(InvalidRequest, match="four is not in the list"):
        printed(capsys, "--marker", "four")


def test_a_marker_that_is_in_the_list_more_than_once_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A host is listed once for each of its nodes. A script that uses the last line as the marker of the next part would
    # get the same part for ever.
    monkeypatch.setattr(Listed, "rows", [("one", number, ShownAge(1.0)) for number in range(3)])
    assert printed(capsys, "-f", "value", "-c", "number", "--limit", "1") == "0\n"
    with pytest.raises(InvalidRequest, match="one is in the list 3 times"):
        printed(capsys, "--limit", "1", "--marker", "one")


def test_a_list_is_sorted_with_missing_values_last(capsys: pytest.CaptureFixture[str]) -> None:
    def names(*words: str) -> list[str]:
        return printed(capsys, "-f", "value", "-c", "name", *words).split()

    assert names("--sort", "name") == ["one", "three", "two"]
    assert names("--sort", "number:desc") == ["three", "two", "one"]
    assert names("--sort", "age") == ["one", "two", "three"]
    assert names("--sort", "name:desc", "--limit", "1") == ["two"]
    for wrong in ("size", "name:down"):
        with pytest.raises(InvalidRequest, match=f"{wrong} is not one of name, number, age"):
            names("--sort", wrong)


def test_the_sort_options_of_cliff_are_those_of_the_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("one", 1, ShownUse(2, 16)), ("two", 2, ShownUse(1, 16)), ("three", 3, ShownUse(10, 16))]
    monkeypatch.setattr(Listed, "rows", rows)
    in_order = ("--limit", "2", "--sort-column", "age", "--sort-descending")
    assert printed(capsys, "-f", "value", "-c", "age", *in_order) == "10/16\n2/16\n"
    with pytest.raises(InvalidRequest, match="size:asc is not one of name, number, age"):
        printed(capsys, "--sort-column", "size")
    assert "--sort-" not in Listed(Shell(), None, "listed").get_parser("moorage listed").format_help()


def test_a_usage_is_text_in_formats_without_objects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("one", 1, ShownUse(3, 16)), ("two", 2, ShownUse(9, 10)), ("three", 3, ShownUse(0, 0))]
    monkeypatch.setattr(Listed, "rows", rows)
    assert "| 3/16 |" in printed(capsys)
    assert printed(capsys, "-f", "value", "-c", "age", "--sort", "age:desc") == "9/10\n3/16\n0/0\n"
    assert json.loads(printed(capsys, "-f", "json", "--limit", "1"))[0]["age"] == {"used": 3, "total": 16}


def test_objects_and_values_of_several_kinds_are_sorted_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("one", 1, ShownLines({"rack": "b"}, ["rack=b"])), ("two", 2, ShownLines({"rack": "a"}, ["rack=a"]))]
    monkeypatch.setattr(Listed, "rows", rows)
    assert printed(capsys, "-f", "value", "-c", "name", "--sort", "age") == "two\none\n"
    monkeypatch.setattr(Listed, "rows", [("one", "many", None), ("two", 2, None)])
    assert printed(capsys, "-f", "value", "-c", "name", "--sort", "number") == "two\none\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "is_shown"), [(Terminal, True), (io.StringIO, False)])
def test_a_long_command_shows_its_progress_only_on_a_terminal(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch, *, is_shown: bool
) -> None:
    error = stream()
    monkeypatch.setattr("moorage.cli.progress.sys.stderr", error)
    monkeypatch.setattr("moorage.cli.progress._PATIENCE", 0.05)
    monkeypatch.setenv("TERM", "xterm")

    def wait_for(text: str) -> None:
        if is_shown:
            wait_until(lambda: text in error.getvalue(), error.getvalue)
        else:
            time.sleep(0.5)

    with Elapsed("asking") as elapsed:
        wait_for("asking")
        elapsed.says("asking once more")
        wait_for("asking once more")
    assert ("asking once more" in error.getvalue()) is is_shown
    if not is_shown:
        assert error.getvalue() == ""


def test_a_short_command_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Terminal()
    monkeypatch.setattr("moorage.cli.progress.sys.stderr", error)
    with Elapsed("asking"):
        pass
    assert error.getvalue() == ""


def test_an_empty_list_says_so_only_as_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listed, "rows", [])
    command = Listed(Shell(), None, "listed")
    for words, out, err in (([], "", "nothing found\n"), (["-f", "json"], "[]", "")):
        command.run(command.get_parser("moorage listed").parse_args(words))
        output = capsys.readouterr()
        assert (output.out.strip(), output.err) == (out, err)


@pytest.mark.parametrize("format_", ["table", "value"])
def test_a_watched_list_is_shown_repeatedly_and_so_are_errors_which_are_apart_from_what_programs_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    away = StoreUnavailable(schema="main", reason="it is away")
    rounds: Iterator[list[tuple[Any, ...]] | Exception] = iter([Listed.rows[:1], away, Listed.rows[1:]])

    def take_action(_self: Listed, _parsed: object) -> Table:
        found = next(rounds)
        if isinstance(found, Exception):
            raise found
        return ("name", "number", "age"), found

    slept = iter([None, None])
    monkeypatch.setattr(Listed, "take_action", take_action)
    monkeypatch.setattr("moorage.cli.command.time.sleep", lambda _seconds: next(slept))
    with pytest.raises(StopIteration):
        printed(capsys, "-f", format_, "-c", "name", "--watch", "0.5")

    output = capsys.readouterr()
    notes, lists = (output.out, output.out) if format_ == "table" else (output.err, output.out)
    names = [name for line in lists.splitlines() if (name := line.strip("| ")) in ("one", "two", "three")]
    assert names == ["one", "two", "three"]
    assert notes.count("every 0.5 s") == 3
    assert notes.count("The database of main cannot be reached: it is away.") == 1
    assert (lists == "one\ntwo\nthree\n") is (format_ == "value")


def test_a_user_without_a_name_in_the_system_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1_999_999_999)
    parser = argparse.ArgumentParser()
    request_arguments.add_options(parser, size_required=False)
    assert parser.parse_args([]).user == "1999999999"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("placement-api --port 99999", "--port 99999"),
        ("placement-api --workers 0", "--workers 0"),
        ("dashboard --port -1", "--port -1"),
        ("scheduler --name a --metrics-port 70000", "--metrics-port 70000"),
    ],
)
def test_a_value_that_an_option_of_a_service_cannot_have_is_told_with_the_option(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, words: str, option: str
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = inproc://\n[database]\nconnection = sqlite:///{tmp_path}/m.sqlite\n")
    monkeypatch.setenv("MOORAGE_CONFIG", str(file))

    assert main(words.split()) == 1
    told = capfd.readouterr()
    # A service that has set up its log writes the sentence there.
    assert f"The configuration is wrong: {option}: Should be" in " ".join((told.out + told.err).split())


@pytest.mark.parametrize("name", ["dashboard", "placement-api"])
def test_the_help_names_the_option_of_the_configuration_that_has_each_default(name: str) -> None:
    [point] = entry_points(group="moorage.cli", name=name)
    options = point.load()(Shell(), None, name).get_parser(f"moorage {name}")._actions
    assert [one.dest for one in options if one.default is None and "(default: [" not in str(one.help)] == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_is_carried_out(closed: str) -> None:
    line = f'exec "$0" -m moorage.cli.shell help instance list {closed}'
    assert subprocess.run(["sh", "-c", line, sys.executable], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_state_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["instance", "list", "--state", "activ"])
    assert ended.value.code == 2
    assert "argument --state: " in capsys.readouterr().err
