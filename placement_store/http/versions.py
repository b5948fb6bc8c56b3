"""Negotiate microversions."""

from collections.abc import Mapping

from microversion_parse import Version, extract_version
from microversion_parse import parse_version_string as v

from placement_store.http.phrases import Phrase
from placement_store.http.refusals import HTTPRefusal

__all__ = ["HEADER", "MAX", "MIN", "SERVICE", "Version", "negotiate", "v"]

#: The service type in the header.
SERVICE = "placement"
#: The header with the version, of a request and of its response.
HEADER = "OpenStack-API-Version"


#: The range that is served.
MIN, MAX = Version(1, 0), Version(1, 39)
_KNOWN = [str(Version(1, minor)) for minor in range(MAX.minor + 1)]


def negotiate(headers: Mapping[str, str]) -> Version:
    """Return the version that a request's headers name; the lowest if they name none.

    :raises HTTPRefusal: 406, with the range served, for a version that is not served; 400 for a malformed one.
    """
    try:
        return extract_version(dict(headers), SERVICE, _KNOWN)
    except ValueError as fault:
        raise HTTPRefusal(
            406, Phrase.BAD_VERSION.about(reason=fault), extra={"max_version": str(MAX), "min_version": str(MIN)}
        ) from fault
    except TypeError as fault:
        raise HTTPRefusal(400, Phrase.BAD_VERSION.about(reason=fault)) from fault
