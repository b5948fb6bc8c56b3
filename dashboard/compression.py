"""Whether an answer may be compressed."""

import re

import falcon

_REFUSED = re.compile(r"q=0(\.0*)?")


def accepts_gzip(request: falcon.Request) -> bool:
    """Return whether a client accepts a compressed answer: it names gzip, and not with a quality of 0."""
    codings = (request.get_header("Accept-Encoding") or "").replace(" ", "").lower().split(",")
    parted = (coding.partition(";") for coding in codings)
    return any(name == "gzip" and not _REFUSED.fullmatch(quality) for name, _, quality in parted)
