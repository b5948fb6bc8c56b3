"""Attributes of fake hosts for filters and weighers, chosen by options."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from oslo_config import cfg

from compute.fake.behaviour import chance
from moorage import errors
from moorage.model import Name

_TO = ".."


class FakeAttributes:
    """The attributes of every host of a fake driver.

    :param options: the group ``[fake_driver]``.
    :raises ConfigurationError: one of them is not valid; the text names it.
    """

    def __init__(self, options: cfg.ConfigOpts.GroupAttr) -> None:
        self._seed = options.seed
        self._metrics = dict(_metrics(options.metrics))
        self._configured = list(_parsed(options.attributes))

    def of(self, host: str) -> dict[str, Any]:
        """Return the attributes of a host: the same at every start."""
        found: dict[str, Any] = {}
        if self._metrics:
            found["metrics"] = {name: self._measured(name, host) for name in self._metrics}
        for of_host, attributes in self._configured:
            if of_host in (None, host):
                found |= attributes
        return found

    def _measured(self, name: str, host: str) -> float:
        low, high = self._metrics[name]
        # Rounding may lift the sum above the bound.
        return min(low + (high - low) * chance(self._seed, name, host), high)


def _parsed(texts: Iterable[str]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Parse each text into a host, or None for all hosts, and its attributes."""
    for text in texts:
        before, brace, behind = text.partition("{")
        host, colon, rest = before.rpartition(":")
        try:
            if rest.strip() or bool(colon) != bool(host.strip()):
                raise ValueError("before the object may stand a host's name with a colon, and nothing else")
            attributes = msgspec.json.decode(brace + behind, type=dict[Name, Any])
        except ValueError as fault:
            raise errors.ConfigurationError(reason=f"[fake_driver] attributes {text!r:.200}: {fault}") from fault
        yield host.strip() or None, attributes


def _metrics(texts: Iterable[str]) -> Iterator[tuple[str, tuple[float, float]]]:
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        low, to, high = value.partition(_TO)
        try:
            bounds = float(low), float(high if to else low)
        except ValueError:
            bounds = math.nan, math.nan
        is_name = name and not any(each.isspace() or each == ":" for each in name)
        if not (is_name and equals and math.isfinite(bounds[1] - bounds[0]) and bounds[0] <= bounds[1]):
            raise errors.ConfigurationError(
                reason=f"[fake_driver] metrics {text!r:.200}: it is NAME=NUMBER or NAME=SMALLEST..LARGEST, for all "
                'hosts; for one of them, write `HOST: {"metrics": {…}}` in attributes'
            )
        yield name, bounds
