"""Arguments of commands: declarations that a command lists, and functions that parse their values."""

import argparse
import math
import threading
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import msgspec

from moorage import ids

#: Adds one argument or several to a parser.
Argument = Callable[[Any], object]


def argument(*names: str, repeated: bool = False, **options: Any) -> Argument:
    """Declare an argument of a command, with the parameters of ``add_argument``; one that is repeated is a list."""
    if repeated:
        options |= {"action": "append", "default": [], "help": f"{options['help']}; may be repeated"}
    return methodcaller("add_argument", *names, **options)


def one_of(*alternatives: Argument) -> Argument:
    """Declare mutually exclusive arguments."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for alternative in alternatives:
            alternative(group)

    return add


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


def positive(text: str) -> float:
    """Parse a positive number of seconds for which a thread can wait."""
    seconds = _number(text)
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, up to {threading.TIMEOUT_MAX:.0f}")
    return seconds


def not_negative(text: str) -> float:
    """Parse a number of seconds that may be 0; a wait of ``nan`` seconds would never end."""
    seconds = _number(text)
    if not 0 <= seconds <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0 to {threading.TIMEOUT_MAX:.0f}")
    return seconds


def converted(value: Any, kind: Any, refusal: str) -> Any:
    """Convert a value to ``kind``, for instance a text to a number in some range.

    :raises ArgumentTypeError: the value is not of this kind; the text of the error is ``refusal``.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise argparse.ArgumentTypeError(refusal) from None


def canonical_uuid(text: str) -> str:
    """Parse a uuid in any spelling; return its canonical form."""
    if (uuid := ids.canonical(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a uuid")
    return uuid


def whole_number(text: str) -> int:
    """Parse a whole number; the error of ``int`` would name a type of Python."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number_from(least: int, most: int = 1_000_000) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range."""

    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        if number > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}")
        return number

    parse.__name__ = "number"
    return parse


def count(text: str) -> int:
    """Parse a number of entries."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError("must be a whole number from 1")
    return int(text)


def _number(text: str) -> float:
    """Parse a number; a text that is none is ``nan``, which is in no range."""
    try:
        return float(text)
    except ValueError:
        return math.nan
