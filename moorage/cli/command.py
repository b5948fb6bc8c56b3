"""The base class of all sub-commands of `moorage`, with configuration and clients; and the display of values."""

import argparse
import functools
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cliff.columns import FormattableColumn
from cliff.command import Command
from cliff.lister import Lister
from oslo_config import cfg

from moorage import errors
from moorage.cli import help as helps
from moorage.cli import progress, sorting
from moorage.cli.arguments import Argument, argument, count, positive, whole_number
from moorage.cli.clients import CheckedClient, Clients
from moorage.config import calls, options
from moorage.control_characters import escaped

if TYPE_CHECKING:
    from moorage.cli.shell import Shell

LOG = logging.getLogger(__name__)

#: The columns and the rows of a list, or the columns and the values of a single object.
Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
Record = tuple[tuple[str, ...], tuple[Any, ...]]


#: The output formats that are plain text. They have no null value, and cliff writes control characters there as they
#: are; JSON and YAML escape these themselves.
_PLAIN = frozenset({"csv", "value", "shell"})
#: What a shell obeys within double quotes. cliff escapes only the quotes, and users choose the names of instances.
_OBEYED = re.compile(r"([\\$`])")
#: The default of `--watch`. Arbitrary.
_WATCH_SECONDS = 2.0
#: Clears a terminal and moves the cursor to its top (ECMA-48: CUP, ED).
_CLEAR = "\033[H\033[2J"


def _plain(values: Iterable[Any], formatter: str) -> tuple[Any, ...]:
    """Return values for a format of plain text: empty instead of None, and in one line, with escapes.

    A line break would begin a row of its own, and a terminal obeys control characters.
    """
    for_shell = formatter == "shell"
    flat = (_machine(value) if for_shell else _flat(value) for value in values)
    plain = (escaped(value, kept="") if isinstance(value, str) else value for value in flat)
    blank = ("" if value is None else value for value in plain)
    return tuple(_OBEYED.sub(r"\\\1", str(value)) if for_shell else value for value in blank)


def _flat(value: Any) -> Any:
    return value.human_readable() if isinstance(value, ShownUse) else _machine(value)


def _machine(value: Any) -> Any:
    return value.machine_readable() if isinstance(value, FormattableColumn) else value


class Configured(Command):
    """A command with a configuration file; if it shows data, name this class before cliff's `Lister` or `ShowOne`."""

    app: "Shell"
    #: The arguments that a class adds to the arguments of its bases.
    arguments: Sequence[Argument] = ()
    #: The current activity of the command, shown on a terminal if it takes long.
    at: ClassVar[str | None] = None
    #: Whether the command changes nothing, so that no result is lost if its output is refused.
    only_reads = False
    #: Whether the exit status is 1 although the command raises no error, because what it shows is a failure.
    failed = False

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command, and show its current activity if it takes long."""
        with progress.Elapsed(self.at) as self.elapsed:
            return int(super().run(parsed_args) or self.failed)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser, without abbreviated options: a new option must not change what an old script does."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.allow_abbrev = False
        parser.formatter_class = helps.FilledParagraphs
        parser.register("type", int, whole_number)
        helps.in_one_line(parser)
        # Add the arguments of the bases first: common options come before a command's own.
        for kind in reversed(type(self).__mro__):
            for add in vars(kind).get("arguments", ()):
                add(parser)
        return parser

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Print the result of `take_action`; None is empty in csv, value and shell, and an empty table is reported."""
        self.elapsed.stop()
        if isinstance(self, Lister):
            data = list(data)
            if not data and parsed_args.formatter == "table":
                sys.stderr.write("nothing found\n")
                return 0
        # cliff refuses a list of columns that are all unknown, but the command may have changed something by now.
        if parsed_args.columns and not self.only_reads:
            asked, known = (
                {name.strip().lower().replace(" ", "_") for name in names}
                for names in (parsed_args.columns, column_names)
            )
            if not asked & known:
                LOG.warning("There is no column %s: all columns are shown", ", ".join(parsed_args.columns))
                parsed_args.columns = []
        if parsed_args.formatter in _PLAIN:
            plain = functools.partial(_plain, formatter=parsed_args.formatter)
            data = [plain(row) for row in data] if isinstance(self, Lister) else plain(data)
        return int(super().produce_output(parsed_args, column_names, data))  # type: ignore[misc]

    def get_epilog(self) -> str:
        """Return the end of the help: for a command of another package, the package's name.

        To find it, cliff searches every file of every installed package before each command, which takes half of a
        command's start-up time.
        """
        # A command may be constructed without the program.
        commands = self.app.command_manager.commands if self.app is not None else {}
        distribution = getattr(commands.get(self.cmd_name or ""), "dist", None)
        parts = [self._epilog or "", *(hook.obj.get_epilog() or "" for hook in self._hooks if hook.obj is not None)]
        if distribution is not None and distribution.name != "moorage":
            parts.append(f"This command is provided by the {distribution.name} plugin.")
        return "\n\n".join(filter(None, parts))

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration, read once.

        :raises ConfigurationError: it cannot be read, or has a wrong value.
        """
        conf = options.new(files=self._files())
        if self.app.options.log_file is not None:
            # The configuration of a service defines its log. The log file of the program's options replaces it.
            conf.set_override("log_file", str(Path(self.app.options.log_file).absolute()))
        return conf

    def override(self, group: str, name: str, value: object, given_as: str | None = None) -> None:
        """Replace the value of an option of the configuration by that of the command line, unless it is null.

        :param given_as: the option of the command line; by default it has the same name.
        :raises ConfigurationError: the option cannot have this value.
        """
        if value is None:
            return
        try:
            self.conf.set_override(name, value, group=group)
        except ValueError as fault:
            shown = given_as or f"--{name.replace('_', '-')}"
            raise errors.ConfigurationError(reason=f"{shown} {value}: {fault}") from fault

    @functools.cached_property
    def calling(self) -> cfg.ConfigOpts:
        """The part of the configuration that calls need, read once, without the bus library.

        :raises ConfigurationError: it cannot be read, or has a wrong value.
        """
        return calls.read(self._files())

    def _files(self) -> Sequence[Path]:
        return options.find_file(self.app.options.config_file)

    def client(self, topic: str) -> CheckedClient:
        """Return a client of a topic of the main bus; its calls raise ``NotServed`` if the topic has no server."""
        return self._clients.topic(topic)

    def clients(self, seconds: float) -> Clients:
        """Return clients for all parts of the cloud with a time-out in seconds; closed when the command ends."""
        clients = Clients(self.calling, seconds, whole=lambda: self.conf)
        self.app.closing.callback(clients.close)
        return clients

    @functools.cached_property
    def _clients(self) -> Clients:
        return self.clients(self.calling.rpc.call_timeout)


class ListCommand(Configured, Lister):
    """A command that prints a list, in whole or in part, once or repeatedly."""

    at = "asking"
    only_reads = True

    arguments: Sequence[Argument] = (
        argument("--limit", type=count, metavar="N", help="Maximum number of rows to list"),
        argument(
            "--marker", metavar="KEY", help="List only the rows after the one with this value in its first column"
        ),
        argument(
            "--sort",
            dest="sorted_by",
            action="append",
            default=[],
            metavar="COLUMN[:desc]",
            help="Sort by this column; repeat it to sort by further columns. Rows without a value come last",
        ),
        argument(
            "--watch",
            nargs="?",
            const=_WATCH_SECONDS,
            type=positive,
            metavar="SECONDS",
            help=f"Repeat the list at this interval until Ctrl-C (default: {_WATCH_SECONDS:g} seconds)",
        ),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser, whose help shows one way to sort."""
        parser = super().get_parser(prog_name)
        sorting.hide_options_of_cliff(parser)
        return parser

    def part(self, parsed_args: argparse.Namespace, number_of: Callable[[str], int]) -> tuple[int | None, int | None]:
        """Return after which number to read a list that is in the order of numbers, and how many rows; None means all.

        :param number_of: returns the number of the entry with a uuid.
        :raises InvalidRequest: no entry is named by `--marker`.
        """
        limit, marker = parsed_args.limit, parsed_args.marker
        if parsed_args.sorted_by or marker is None:
            return None, None if parsed_args.sorted_by else limit
        try:
            number = number_of(marker)
        except (errors.NotFound, errors.InvalidRequest):
            raise _not_listed(marker) from None
        # A conductor of a former release numbers nothing. Otherwise the row of the marker itself is the first one.
        return (number - 1, limit and limit + 1) if number else (None, None)

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Print the requested part of the list.

        :raises InvalidRequest: `--marker` does not name exactly one entry of the list, or `--sort` names no column.
        """
        rows = list(data)
        for column in reversed(parsed_args.sorted_by):
            rows = sorting.by_column(rows, column_names, column, _in_order)
        if parsed_args.marker is not None:
            keys = [str(_machine(row[0])) for row in rows]
            if parsed_args.marker not in keys:
                raise _not_listed(parsed_args.marker)
            if (times := keys.count(parsed_args.marker)) > 1:
                raise errors.InvalidRequest(
                    path="--marker", reason=f"{parsed_args.marker} is in the list {times} times and is ambiguous"
                )
            rows = rows[keys.index(parsed_args.marker) + 1 :]
        return super().produce_output(parsed_args, column_names, rows[: parsed_args.limit])

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command once, or until Ctrl-C; while a part of the cloud is unavailable, show that instead."""
        sorting.replace_options_of_cliff(parsed_args)
        if parsed_args.watch is None:
            return super().run(parsed_args)
        out = self.app.stdout
        # Programs read the other formats: standard output then has nothing but the lists.
        notes = out if parsed_args.formatter == "table" else self.app.stderr
        while True:
            if out.isatty():
                out.write(_CLEAR)
            notes.write(f"{time.strftime('%H:%M:%S %Z')}, every {parsed_args.watch:g} s\n")
            try:
                super().run(parsed_args)
            except errors.Unavailable as fault:
                notes.write(f"{fault}\n")
            out.flush()
            time.sleep(parsed_args.watch)


def _not_listed(marker: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(path="--marker", reason=f"{marker} is not in the list")


def _in_order(value: Any) -> Any:
    """Return the sort key of a value."""
    return value.share if isinstance(value, ShownUse) else _machine(value)


class ShownValue(FormattableColumn[Any]):
    """A value that a table shows as text; None is empty there, and a list is one line. Other formats keep the value."""

    def human_readable(self) -> str:
        """Return the text for a table."""
        if isinstance(self._value, list | tuple):
            return escaped(", ".join(str(part) for part in self._value))
        return "" if self._value is None else escaped(str(self._value))


class ShownAge(ShownValue):
    """A number of seconds, which a table shows with a unit; other formats keep the seconds."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(None if seconds is None else round(seconds, 1))

    def human_readable(self) -> str:
        """Return the text for a table, in the largest unit in which the value is at least two."""
        if self._value is None:
            return ""
        for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
            if abs(self._value) >= 2 * seconds:
                return f"{self._value / seconds:.0f} {unit}"
        return f"{self._value:g} s"


class ShownUse(ShownValue):
    """A used amount of a total: text in a table, and in other formats an object with ``used`` and ``total``."""

    def __init__(self, used: int, total: int) -> None:
        super().__init__({"used": used, "total": total})

    @property
    def share(self) -> float:
        """The used fraction of the total, from 0 to 1."""
        return float(self._value["used"] / self._value["total"]) if self._value["total"] else 0.0

    def human_readable(self) -> str:
        """Return the text for a table."""
        return f"{self._value['used']}/{self._value['total']}"


class ShownLines(FormattableColumn[Any]):
    """A value that a table shows as given lines; other formats keep the value."""

    def __init__(self, value: Any, lines: Sequence[str]) -> None:
        super().__init__(value)
        self._lines = lines

    def human_readable(self) -> str:
        """Return the text for a table."""
        return escaped("\n".join(self._lines))


def shown(values: Iterable[Any]) -> tuple[ShownValue, ...]:
    """Return the values of a row or a record for display."""
    return tuple(value if isinstance(value, ShownValue) else ShownValue(value) for value in values)
