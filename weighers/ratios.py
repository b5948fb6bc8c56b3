"""Parse settings with a ratio for each name, as in ``cpu.percent=-1.0, io_pressure=0.5``."""

import math
from collections.abc import Mapping, Sequence

from moorage import errors
from moorage.plugin import measured


def ratios(option: str, settings: Sequence[str]) -> Mapping[str, float]:
    """Return the ratios by name.

    :param option: the option's name, for errors.
    :raises ConfigurationError: one of them has no name or no number, or a name is given twice.
    """
    found: dict[str, float] = {}
    for setting in settings:
        name, _, text = (part.strip() for part in setting.partition("="))
        ratio = measured(text)
        if not name or math.isnan(ratio):
            raise errors.ConfigurationError(reason=f"[weighers] {option}: {setting!r} is not NAME=NUMBER")
        if name in found:
            raise errors.ConfigurationError(reason=f"[weighers] {option}: {name} is given twice")
        found[name] = ratio
    return found
