"""The weigher for the newest hypervisor version, so that hosts that are to be upgraded become empty."""

from itertools import zip_longest
from typing import Any

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher

_ATTRIBUTE = "hypervisor_version"
#: The factor of each part of a version that is written as a number: three digits, as in 6001002 for 6.1.2.
_PART, _DIGITS = 1000, 3
_PARTS = 3


class HypervisorVersionWeigher(FormulaWeigher):
    """Weighs a host by the version that its driver reports, a number or a text with dots: the newer the better.

    A host without a valid version comes last.
    """

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the version as a number."""
        return hosts.number_from(_ATTRIBUTE, _as_number)


def _as_number(version: Any) -> float:
    """Return a version as a number that grows with it; 0 for an invalid one."""
    if isinstance(version, str):
        return _of_text(version)
    return float(version) if isinstance(version, int) and 0 < version < _PART ** (_PARTS + 1) else 0.0


def _of_text(version: str) -> float:
    parts = version.strip().split(".")
    if not all(part.isascii() and part.isdigit() for part in parts):
        return 0.0
    number = 0
    for part, _ in zip_longest(parts[:_PARTS], range(_PARTS), fillvalue="0"):
        # Python parses no text of thousands of digits.
        number = number * _PART + min(int(part.lstrip("0")[: _DIGITS + 1] or "0"), _PART - 1)
    return float(number)
