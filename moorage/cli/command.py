"""What every sub-command of `moorage` has: its own configuration, and a bus that is closed behind it."""

import argparse
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from cliff.columns import FormattableColumn
from cliff.command import Command
from oslo_config import cfg

from moorage.bus.bus import Client
from moorage.cli.clients import Clients
from moorage.config import options

if TYPE_CHECKING:
    from moorage.cli.shell import Shell


class Configured(Command):
    """A command that works by the configuration file; mixed in before a cliff command class."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser; options are named in full, so that a new one never changes what an old script means."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.allow_abbrev = False
        return parser

    def get_epilog(self) -> str:
        """Return what the help ends with: for a command of somebody else's package, which one that is.

        cliff looks through every file of every package that is installed for that, before each command is run: half of
        what a command costs until it begins.
        """
        # A command may be made without the program that it is one of.
        commands = cast("Shell", self.app).command_manager.commands if self.app is not None else {}
        distribution = getattr(commands.get(self.cmd_name or ""), "dist", None)
        parts = [self._epilog or "", *(hook.obj.get_epilog() or "" for hook in self._hooks if hook.obj is not None)]
        if distribution is not None and distribution.name != "moorage":
            parts.append(f"This command is provided by the {distribution.name} plugin.")
        return "\n\n".join(filter(None, parts))

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration, read once.

        :raises ConfigurationError: it cannot be read, or a value is wrong.
        """
        return options.new(files=options.find_file(self.app.options.config_file))

    def client(self, topic: str) -> Client:
        """Return a client of a topic of the main bus; asked where nobody serves it, it raises ``NotServed``."""
        return self._clients.topic(topic)

    def clients(self, seconds: float) -> Clients:
        """Return clients of every part of the cloud, closed when the command ends; each waits so many seconds."""
        clients = Clients(self.conf, seconds)
        cast("Shell", self.app).closing.callback(clients.close)
        return clients

    @functools.cached_property
    def _clients(self) -> Clients:
        return self.clients(self.conf.rpc.call_timeout)


def positive(text: str) -> float:
    """Return a number of seconds that was typed."""
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


class ShownValue(FormattableColumn[Any]):
    """A value for people and machines: a table shows null as nothing, and a list as one line."""

    def human_readable(self) -> str:
        """Return what a table shows."""
        if isinstance(self._value, list | tuple):
            return ", ".join(str(part) for part in self._value)
        return "" if self._value is None else str(self._value)


class ShownLines(FormattableColumn[Any]):
    """A value that a table shows as lines of its own, and other formats as it is."""

    def __init__(self, value: Any, lines: Sequence[str]) -> None:
        super().__init__(value)
        self._lines = lines

    def human_readable(self) -> str:
        """Return what a table shows."""
        return "\n".join(self._lines)


def shown(values: Iterable[Any]) -> tuple[ShownValue, ...]:
    """Return a row, or the values of one thing, as they are to be shown."""
    return tuple(ShownValue(value) for value in values)
