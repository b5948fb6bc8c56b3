"""Repeatable options whose values have keys, as `--hint KEY=VALUE`."""

import argparse
from collections.abc import Callable
from typing import Any

from moorage.cli.command import Argument, argument


def keyed(name: str, *, type: Callable[[str], tuple[Any, ...]], metavar: str, help: str) -> Argument:  # noqa: A002
    """Declare a repeatable option whose values begin with a key, and of which each key may be given once.

    :param type: returns a tuple, of which all but the last part are the key.
    """
    return argument(name, type=type, action=_OncePerKey, default=[], metavar=metavar, help=f"{help}; may be repeated")


class _OncePerKey(argparse.Action):
    """Collects the values; a second one for a key would replace the first in silence."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        """Add a value to a new list: the old one may be the default.

        :raises ArgumentError: there is one for this key already.
        """
        before = getattr(namespace, self.dest)
        if any(value[:-1] == values[:-1] for value in before):
            raise argparse.ArgumentError(self, f"{':'.join(values[:-1])} is given twice")
        setattr(namespace, self.dest, [*before, values])
