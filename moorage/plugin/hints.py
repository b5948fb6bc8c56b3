"""What the hints of a request say: each is a text, and whoever reads one reads it in the same way."""

import re
from collections.abc import Collection

import msgspec

from moorage import errors
from moorage.model import RequestSpec

#: Keep the server off, or put it with, servers that are placed already (Nova's names).
DIFFERENT_HOST, SAME_HOST = "different_host", "same_host"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def path_of(hint: str) -> str:
    """Return where a hint stands in a request spec, as an error about it says."""
    return f"$.scheduler_hints.{hint}"


def instances_named(request: RequestSpec, hint: str) -> frozenset[str]:
    """Return the uuids of the servers that a hint names: a JSON list, or a list with commas; of an absent hint none.

    :raises InvalidRequest: it is no such list, or something in it is no uuid.
    """
    text = request.scheduler_hints.get(hint, "").strip()
    listed = _json_list(text, hint) if text.startswith("[") else text.split(",")
    uuids = frozenset(uuid for each in listed if (uuid := each.strip().lower()))
    for uuid in uuids:
        if not _UUID.fullmatch(uuid):
            raise errors.InvalidRequest(path=path_of(hint), reason=f"{uuid[:60]!r} is no uuid")
    return uuids


def neighbours_named(request: RequestSpec) -> frozenset[str]:
    """Return the uuids of all servers that the hints name whose places a decision must know.

    :raises InvalidRequest: a hint is no list of uuids.
    """
    return instances_named(request, SAME_HOST) | instances_named(request, DIFFERENT_HOST)


def _json_list(text: str, hint: str) -> Collection[str]:
    try:
        return msgspec.json.decode(text, type=list[str])
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise errors.InvalidRequest(path=path_of(hint), reason=f"it is no JSON list of texts: {fault}") from fault
