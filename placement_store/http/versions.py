"""Negotiate microversions."""

from collections.abc import Mapping
from typing import NamedTuple

import microversion_parse

from placement_store.http.phrases import Phrase
from placement_store.http.refusals import HTTPRefusal

#: The service type in the header.
SERVICE = "placement"
#: The header with the version, of a request and of its response.
HEADER = "OpenStack-API-Version"


class Version(NamedTuple):
    """A microversion; they compare as pairs of numbers."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: The range that is served.
MIN, MAX = Version(1, 0), Version(1, 39)
_KNOWN = [str(Version(1, minor)) for minor in range(MAX.minor + 1)]


def v(text: str) -> Version:
    """Parse a version, such as ``1.14``."""
    major, _, minor = text.partition(".")
    return Version(int(major), int(minor))


def negotiate(headers: Mapping[str, str]) -> Version:
    """Return the version that a request's headers name; the lowest if they name none.

    :raises HTTPRefusal: 406, with the range served, for a version that is not served; 400 for a malformed one.
    """
    try:
        negotiated = microversion_parse.extract_version(dict(headers), SERVICE, _KNOWN)
    except ValueError as fault:
        raise HTTPRefusal(
            406, Phrase.BAD_VERSION.about(reason=fault), extra={"max_version": str(MAX), "min_version": str(MIN)}
        ) from fault
    except TypeError as fault:
        raise HTTPRefusal(400, Phrase.BAD_VERSION.about(reason=fault)) from fault
    return Version(negotiated.major, negotiated.minor)
