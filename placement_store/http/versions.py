"""Microversions: which of them a request asks for, and what is new in which."""

from collections.abc import Mapping
from typing import NamedTuple

import microversion_parse

from placement_store.http.refusals import RequestRefused

#: What the header calls this service.
SERVICE = "placement"
#: The header that asks for a version, and tells which one was used.
HEADER = "OpenStack-API-Version"


class Version(NamedTuple):
    """A microversion; they compare as pairs of numbers."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: Every version that is served: 1.0 to 1.39.
MIN, MAX = Version(1, 0), Version(1, 39)
_KNOWN = [str(Version(1, minor)) for minor in range(MAX.minor + 1)]


def v(text: str) -> Version:
    """Return the version that is written like this, such as ``1.14``."""
    major, _, minor = text.partition(".")
    return Version(int(major), int(minor))


def negotiate(headers: Mapping[str, str]) -> Version:
    """Return the version that a request's headers ask for: the lowest where they name none.

    :raises Refused: 406, with the lowest and the highest, for one that is not served; 400 for what is no version.
    """
    try:
        asked = microversion_parse.extract_version(dict(headers), SERVICE, _KNOWN)
    except ValueError as fault:
        raise RequestRefused(
            406,
            f"Microversion not served: {fault}",
            extra={"max_version": str(MAX), "min_version": str(MIN)},
        ) from fault
    except TypeError as fault:
        raise RequestRefused(400, f"Not a microversion: {fault}") from fault
    return Version(asked.major, asked.minor)
