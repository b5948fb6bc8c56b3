"""The base class of all sub-commands of `moorage`, with configuration and clients; and the display of values."""

import argparse
import functools
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, cast

from cliff.columns import FormattableColumn
from cliff.command import Command
from oslo_config import cfg

from moorage.bus.bus import Client
from moorage.cli.clients import Clients
from moorage.config import options

if TYPE_CHECKING:
    from moorage.cli.shell import Shell


#: The columns and the rows that a command lists, and the columns and the values of one thing that it shows.
Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
Record = tuple[tuple[str, ...], tuple[Any, ...]]
#: Adds one argument or several to a parser.
Argument = Callable[[Any], object]


def argument(*names: str, **options: Any) -> Argument:
    """Declare an argument of a command, with the parameters of ``add_argument``."""
    return methodcaller("add_argument", *names, **options)


def one_of(*alternatives: Argument) -> Argument:
    """Declare arguments of which at most one may be given."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for alternative in alternatives:
            alternative(group)

    return add


class Configured(Command):
    """A command with a configuration file; mixed in before a cliff command class."""

    #: The arguments that a class adds to those of its bases.
    arguments: Sequence[Argument] = ()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser, without abbreviated options: a new option must not change the meaning of an old script."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.allow_abbrev = False
        # Those of the bases first: an option that all commands of a kind have stands before their own.
        for kind in reversed(type(self).__mro__):
            for add in vars(kind).get("arguments", ()):
                add(parser)
        return parser

    def get_epilog(self) -> str:
        """Return the end of the help: for a command of another package, the package's name.

        cliff searches every file of every installed package for that, before each command: half of a command's start-up
        time.
        """
        # A command may be constructed without its program.
        commands = cast("Shell", self.app).command_manager.commands if self.app is not None else {}
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
        return options.new(files=options.find_file(self.app.options.config_file))

    def client(self, topic: str) -> Client:
        """Return a client of a topic of the main bus; its calls raise ``NotServed`` if the topic has no server."""
        return self._clients.topic(topic)

    def clients(self, seconds: float) -> Clients:
        """Return clients for all parts of the cloud with a time-out in seconds; closed when the command ends."""
        clients = Clients(self.conf, seconds)
        cast("Shell", self.app).closing.callback(clients.close)
        return clients

    @functools.cached_property
    def _clients(self) -> Clients:
        return self.clients(self.conf.rpc.call_timeout)


def positive(text: str) -> float:
    """Parse a positive number of seconds."""
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


class ShownValue(FormattableColumn[Any]):
    """A value that a table shows as text, null as empty and a list as one line, and other formats as it is."""

    def human_readable(self) -> str:
        """Return the text for a table."""
        if isinstance(self._value, list | tuple):
            return ", ".join(str(part) for part in self._value)
        return "" if self._value is None else str(self._value)


class ShownLines(FormattableColumn[Any]):
    """A value that a table shows as given lines, and other formats as it is."""

    def __init__(self, value: Any, lines: Sequence[str]) -> None:
        super().__init__(value)
        self._lines = lines

    def human_readable(self) -> str:
        """Return the text for a table."""
        return "\n".join(self._lines)


def shown(values: Iterable[Any]) -> tuple[ShownValue, ...]:
    """Return the values of a row or a record for display."""
    return tuple(ShownValue(value) for value in values)
