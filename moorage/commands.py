"""What every sub-command of `moorage` has: its own configuration, and a bus that is closed behind it."""

import argparse
import functools
from typing import TYPE_CHECKING, cast

from cliff.command import Command
from oslo_config import cfg

from moorage import options
from moorage.bus import Bus, Client

if TYPE_CHECKING:
    from moorage.shell import Shell


class Configured(Command):
    """A command that works by the configuration file; mixed in before a cliff command class."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser; options are named in full, so that a new one never changes what an old script means."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.allow_abbrev = False
        return parser

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration, read once.

        :raises ConfigurationError: it cannot be read, or a value is wrong.
        """
        return options.new(files=options.find_file(self.app.options.config_file))

    def client(self, topic: str) -> Client:
        """Return a client of a topic of the main bus."""
        return self._bus.client(topic)

    @functools.cached_property
    def _bus(self) -> Bus:
        bus = Bus(self.conf)
        cast("Shell", self.app).closing.callback(bus.close)
        return bus
