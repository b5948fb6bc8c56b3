"""The `moorage` command: one program with sub-commands from all packages."""

import argparse
import contextlib
import functools
import io
import logging
import os
import sys
from collections.abc import MutableMapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from moorage.cli import lazy  # noqa: F401 - first: the imports below load the modules that it defers

# isort: split
from cliff.app import App
from cliff.command import Command
from cliff.commandmanager import CommandManager

from moorage import failpoints
from moorage.cli import completion
from moorage.cli import help as helps
from moorage.config import options
from moorage.control_characters import escaped
from moorage.errors import MoorageError

#: The loggers whose warnings a command does not print, because it also raises the error. Services do.
_REPEATING = frozenset({"moorage.db.database", "stevedore.named"})


@functools.cache
def _entry_points(namespace: str) -> Sequence[metadata.EntryPoint]:
    """Return the commands of a namespace, from the metadata of all installed packages, read once."""
    return tuple(metadata.entry_points(group=namespace))


class _Once(argparse.Action):
    """Stores the value of an option that may be given once: a second one would replace the first in silence."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, _option_string: str | None = None) -> None:
        """Store the value.

        :raises ArgumentError: the option was given before.
        """
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "may be given only once")
        setattr(namespace, self.dest, values)


class WholeNames(CommandManager):
    """Finds sub-commands only by their full names: an abbreviation must never start a daemon."""

    def load_commands(self, namespace: str) -> None:
        """Register the commands of a namespace; a command is imported when it is run.

        cliff would import all commands to find one, which takes two seconds at every command.
        """
        self.group_list.append(namespace)
        for entry_point in _entry_points(namespace):
            self.commands[entry_point.name.replace("_", " ")] = entry_point

    def find_command(self, argv: list[str]) -> tuple[type[Command], str, list[str]]:
        """Return the class, the name and the remaining arguments of the sub-command at the start of ``argv``.

        :raises ValueError: there is no such sub-command.
        """
        for length in range(len(argv), 0, -1):
            name = " ".join(argv[:length])
            if name in self.commands:
                return self.commands[name].load(), name, argv[length:]
        raise ValueError(f"Unknown command {argv!r}")


class _WithCodes(logging.LoggerAdapter[logging.Logger]):
    """Logs errors with their codes, by which the documentation lists them."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the message, with the code if it is an error of Moorage."""
        return msg.with_code if isinstance(msg, MoorageError) else msg, kwargs


class _Escaping(logging.Formatter):
    """Formats messages with escaped control characters: they contain names, and a terminal would obey them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message of a record, followed by its traceback."""
        return escaped(super().format(record))


class Shell(App):
    """The program: parses the options before the sub-command, and closes what the sub-command has opened."""

    NAME = "moorage"
    # cliff logs here the error that ends a command or a service.
    LOG = _WithCodes(App.LOG)  # type: ignore[assignment]
    # Log warnings and errors, and more with each -v. For a daemon's log the configuration applies instead.
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self) -> None:
        super().__init__(
            description="Moorage: find hosts for servers and claim their resources.",
            version=metadata.version("moorage"),
            command_manager=WholeNames("moorage.cli"),
            deferred_help=True,  # so that --help after a sub-command shows its help
        )
        self.closing = contextlib.ExitStack()
        self.command_manager.add_command("help", helps.GroupedHelp)
        self.command_manager.add_command("complete", completion.Complete)

    def build_option_parser(
        self, description: str | None, version: str | None, argparse_kwargs: dict[str, Any] | None = None
    ) -> argparse.ArgumentParser:
        """Return the parser of the options before the sub-command."""
        parser: argparse.ArgumentParser = super().build_option_parser(
            description, version, {"allow_abbrev": False, **(argparse_kwargs or {})}
        )
        parser.add_argument(
            "--config-file",
            metavar="FILE",
            action=_Once,
            help=f"Configuration file (default: $MOORAGE_CONFIG, else {options.DEFAULT_FILE})",
        )
        helps.in_one_line(parser)
        return parser

    def configure_logging(self) -> None:
        """Log to the terminal; log warnings that repeat a command's error only with -v."""
        super().configure_logging()
        terminal = logging.getLogger().handlers[-1]
        terminal.setFormatter(_Escaping(self.CONSOLE_MESSAGE_FORMAT))
        if self.options.verbose_level == self.DEFAULT_VERBOSE_LEVEL:
            logging.getLogger("amqp").setLevel(logging.ERROR)
            terminal.addFilter(lambda record: record.name not in _REPEATING or record.levelno > logging.WARNING)

    def initialize_app(self, argv: list[str]) -> None:
        """Arm the failpoints of the environment, if any.

        :raises ConfigurationError: the failpoints cannot be parsed.
        """
        super().initialize_app(argv)
        failpoints.switch_on(os.environ.get(failpoints.VARIABLE, ""))

    def print_help_if_requested(self) -> None:
        """Print all commands in groups for `--help` before any sub-command, and exit."""
        if self.options.deferred_help:
            helps.print_commands(self)
            raise SystemExit(0)

    def run_subcommand(self, argv: list[str]) -> int:
        """Run a sub-command; refuse an unknown one in one line with a suggestion."""
        if argv[0].startswith("-"):
            self.parser.error(f"unrecognized arguments: {argv[0]}")
        try:
            self.command_manager.find_command(argv)
        except ValueError:
            names = [name for name, _ in self.command_manager]
            sys.stderr.write(f"moorage: {helps.unknown_command(names, argv)}\n")
            return 2
        return int(super().run_subcommand(argv))

    def interact(self) -> NoReturn:
        """Print the usage and exit, because no sub-command was given; there is no interactive shell.

        :raises SystemExit: always.
        """
        self.parser.print_usage(sys.stderr)
        sys.stderr.write("moorage: no command was given; `moorage help` lists them\n")
        raise SystemExit(2)

    def clean_up(self, cmd: Command, result: int, err: BaseException | None) -> None:
        """Close the connections that the sub-command has opened."""
        self.closing.close()
        super().clean_up(cmd, result, err)


def _open_closed_streams() -> None:
    """Open the null device for streams that the caller has closed; a file opened later would get their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the process ends


def _escape_what_cannot_be_written() -> None:
    """Escape characters that the locale lacks, as standard error does: a command fails only after it has acted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command in ``argv``; return the exit status."""
    _open_closed_streams()
    _escape_what_cannot_be_written()
    words = list(sys.argv[1:] if argv is None else argv)
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            sys.stderr.write(f"moorage: the argument {word!r} is not text in UTF-8\n")
            return 2
    return int(Shell().run(words))


if __name__ == "__main__":
    sys.exit(main())
