"""The help of the `moorage` command: its sub-commands in groups, and suggestions for misspelt ones."""

import argparse
import difflib
import functools
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from cliff._argparse import SmartHelpFormatter
from cliff.help import HelpCommand

if TYPE_CHECKING:
    from moorage.cli.shell import Shell

#: The groups of commands, by the first words of their names; the longest match counts.
_GROUPS: Mapping[str, Sequence[str]] = {
    "Services": ("scheduler", "conductor", "compute", "placement", "placement-api", "dashboard", "db", "cell"),
    "Servers": ("instance", "migration", "server-group"),
    "Hosts": ("host", "aggregate"),
    "Placement": ("resource", "trait", "allocation", "claim"),
    "Diagnosis": ("status", "service", "operation", "audit", "explain", "scheduler config"),
    "Tools": ("demo", "drill", "bench", "help", "complete"),
}
_OTHERS = "Others"
#: The least similarity at which a word counts as misspelt. Chosen by experiment.
_ALIKE = 0.6


class GroupedHelp(HelpCommand):
    """Print the help of a command, or list all commands."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        in_one_line(parser)
        parser.add_argument(
            "--man", metavar="DIRECTORY", type=Path, help="Write a manual page for each command to this directory"
        )
        return parser

    def get_epilog(self) -> str:
        """Return the end of the help, which is empty; cliff would search every installed package for it."""
        return ""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the help."""
        if parsed_args.man is not None:
            from moorage.cli import manual  # here, because it is rarely needed

            written = manual.write(cast("Shell", self.app), parsed_args.man)
            self.app.stdout.write(f"{len(written)} pages in {parsed_args.man}\n")
            return 0
        app = cast("Shell", self.app)
        if not parsed_args.cmd:
            print_commands(app)
            return 0
        names = [name for name, _ in app.command_manager]
        if not any(name.startswith(" ".join(parsed_args.cmd)) for name in names):
            try:
                app.command_manager.find_command(parsed_args.cmd)  # arguments may follow the name
            except ValueError:
                # cliff would list the commands that begin with the first word, or print a Python list.
                sys.stderr.write(f"moorage: {unknown_command(names, parsed_args.cmd)}\n")
                return 2
        return int(super().take_action(parsed_args))


class FilledParagraphs(SmartHelpFormatter):
    """Fills each paragraph of a description by itself; argparse would join them."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.split("\n\n"))


def print_commands(app: "Shell") -> None:
    """Print the options before a sub-command, and all sub-commands in groups, each with the first line of its help."""
    app.parser.print_help(app.stdout)
    described = {name: first_line(app.command_manager.commands[name].load()) for name, _ in app.command_manager}
    width = max(map(len, described))
    for title, names in grouped(described).items():
        app.stdout.write(f"\n{title}:\n")
        app.stdout.writelines(f"  {name:{width}}  {described[name]}\n" for name in names)


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of commands by group, in the order of the groups."""
    found: dict[str, list[str]] = {title: [] for title in (*_GROUPS, _OTHERS)}
    for name in sorted(names):
        fits = [
            (len(start), title)
            for title, starts in _GROUPS.items()
            for start in starts
            if f"{name} ".startswith(f"{start} ")
        ]
        found[max(fits)[1] if fits else _OTHERS].append(name)
    return {title: group for title, group in found.items() if group}


def unknown_command(names: Iterable[str], given: Sequence[str]) -> str:
    """Return one line about an unknown command: the commands that begin with these words, or a suggestion."""
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), given))
    asked, known = " ".join(words), list(names)
    if following := sorted(name.removeprefix(f"{asked} ") for name in known if name.startswith(f"{asked} ")):
        return f"{asked!r} needs a further word: {', '.join(following)}"
    # Compare as many words as possible first, because arguments may follow the name.
    for length in range(len(words), 0, -1):
        for meant in difflib.get_close_matches(" ".join(words[:length]), known, n=1, cutoff=_ALIKE):
            return f"there is no command {asked!r}; did you mean `moorage {meant}`?"
    return f"there is no command {asked!r}; `moorage help` lists them"


def in_one_line(parser: argparse.ArgumentParser) -> None:
    """Make a parser refuse arguments with one line that suggests an option."""
    parser.error = functools.partial(_refuse, parser)  # type: ignore[method-assign]


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    options = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001
    _, _, unknown = message.partition("unrecognized arguments: ")
    meant = [
        close
        for word in unknown.split()
        if word.startswith("--")
        for close in difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=_ALIKE)
    ]
    hint = f"; did you mean {' and '.join(meant)}?" if meant else f"; see `{parser.prog} --help`"
    sys.stderr.write(f"{parser.prog}: {message}{hint}\n")
    raise SystemExit(2)


def first_line(command: type) -> str:
    """Return the first line of the help of a command, without its full stop."""
    return str(command.__doc__ or "").strip().partition("\n")[0].rstrip(".")
