"""Parsing of the scheduler hints of a request, which are texts."""

import re
from collections.abc import Collection

import msgspec

from moorage import errors
from moorage.model import RequestSpec

#: Place the server on another host than existing servers, or on the same (Nova's names).
DIFFERENT_HOST, SAME_HOST = "different_host", "same_host"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def path_of(hint: str) -> str:
    """Return the path of a hint in a request spec, for errors."""
    return f"$.scheduler_hints.{hint}"


def instances_named(request: RequestSpec, hint: str) -> frozenset[str]:
    """Parse the uuids of servers in a hint: a JSON list, or a list with commas; empty if the hint is absent.

    :raises InvalidRequest: the hint is not such a list, or contains something else than uuids.
    """
    text = request.scheduler_hints.get(hint, "").strip()
    listed = _json_list(text, hint) if text.startswith("[") else text.split(",")
    uuids = frozenset(uuid for each in listed if (uuid := each.strip().lower()))
    for uuid in uuids:
        if not _UUID.fullmatch(uuid):
            raise errors.InvalidRequest(path=path_of(hint), reason=f"{uuid[:60]!r} is not a uuid")
    return uuids


def neighbours_named(request: RequestSpec) -> frozenset[str]:
    """Return the uuids of all servers in the hints whose hosts a decision needs.

    :raises InvalidRequest: a hint is not a list of uuids.
    """
    return instances_named(request, SAME_HOST) | instances_named(request, DIFFERENT_HOST)


def _json_list(text: str, hint: str) -> Collection[str]:
    try:
        return msgspec.json.decode(text, type=list[str])
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise errors.InvalidRequest(path=path_of(hint), reason=f"it is no JSON list of texts: {fault}") from fault
