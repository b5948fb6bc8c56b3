"""Checks of the class of a plug-in, and of its constructor."""

import copy
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from moorage.plugin import Filter, RequestFilter, Weigher
from moorage.testing.builders import settings_of
from moorage.testing.describe import require

P = TypeVar("P", Filter, Weigher, RequestFilter)

#: A reason follows the name of a host: "host7 is in another rack".
_REASON_BEGINS = frozenset({"is", "has", "was", "does"})


def check_reason(kind: type[Filter]) -> None:
    """Check the reason of a filter.

    :raises AssertionError: it does not follow the name of a host.
    """
    reason = kind.reason
    is_reason = isinstance(reason, str) and reason != Filter.reason and reason.split(" ")[0] in _REASON_BEGINS
    words = f"the reason of {kind.__name__} is {reason!r}: it follows a host's name, as 'is in another rack' does"
    require(is_reason, words)


def check_multiplier(kind: type[Weigher]) -> None:
    """Check the default multiplier of a weigher.

    :raises AssertionError: it is not a finite number.
    """
    one: Any = kind.default_multiplier
    is_finite = isinstance(one, int | float) and abs(one) <= sys.float_info.max
    require(is_finite, f"{kind.__name__} has the default multiplier {one!r}, which is no finite number")


@contextmanager
def constructed(kind: type[P], settings: Mapping[str, Any] | None) -> Iterator[tuple[P, P]]:
    """Yield two plug-ins of a class, and check afterwards that their settings are unchanged.

    :raises AssertionError: the class or its constructor has a fault, or its settings or attributes have changed.
    """
    given = settings_of(kind, **settings or {})
    for option in kind.options:
        require(bool(option.help), f"the option {option.name} of {kind.__name__} has no help")
    keys = getattr(kind, "numeric_metadata", ())
    require(not isinstance(keys, str), f"{kind.__name__} has the text {keys!r} instead of a list as numeric_metadata")
    require(isinstance(keys, Collection), f"{kind.__name__} has {keys!r} as numeric_metadata, which is no list")
    for key in keys:
        require(isinstance(key, str), f"{kind.__name__} names {key!r} as a key of metadata, which is no text")
    before = copy.deepcopy(given)
    on_classes = _kept_on_classes(kind)
    try:
        plugins = kind(given), kind(copy.deepcopy(given))
    except (Exception, SystemExit) as fault:  # an author's class may raise anything
        raise AssertionError(f"{kind.__name__} cannot be constructed: {type(fault).__name__}: {fault}") from fault
    yield plugins
    for name, value in _kept_on_classes(kind).items():
        require(
            name in on_classes and _same(on_classes[name], value),
            f"{kind.__name__} has changed {name}, which all schedulers' threads share: it keeps state on its class",
        )
    require(given == before, f"{kind.__name__} has changed its settings: {before} have become {given}")


def _kept_on_classes(kind: type) -> dict[str, Any]:
    """Return a plug-in's class attributes by class and name, as copies if they can be copied."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith(("moorage.", "builtins", "abc")):
            continue
        for name, value in vars(base).items():
            if name.startswith(("__", "_abc_")) or callable(value) or hasattr(type(value), "__get__"):
                continue
            try:
                copied = copy.deepcopy(value)
            except Exception:  # noqa: BLE001 - for instance a lock
                copied = value
            # A value that does not equal its copy is compared by identity.
            found[f"{base.__name__}.{name}"] = copied if _same(copied, value) else value
    return found


def _same(before: Any, after: Any) -> bool:
    try:
        return before is after or bool(before == after)
    except Exception:  # noqa: BLE001 - values that cannot be compared, such as arrays, are compared by their text
        return repr(before) == repr(after)
