"""Store isolated request groups: the providers of each suffixed group of a consumer; no two groups may share one.

They are stored with the claim as a JSON document, by suffix, and only for requests with ``group_policy=isolate``. A
reshape reads them to keep the groups apart: allocations alone do not name their groups.
"""

from collections.abc import Collection, Mapping

import msgspec

from moorage.model import UNSUFFIXED

#: By suffix, the uuids of providers.
Groups = Mapping[str, Collection[str]]


def suffixed(mappings: Groups) -> Groups:
    """Return the mappings of suffixed groups; the unsuffixed group may share providers with any other."""
    return {suffix: uuids for suffix, uuids in mappings.items() if suffix != UNSUFFIXED}


def encoded(groups: Groups) -> bytes | None:
    """Return the document of groups; null if there are none."""
    return msgspec.json.encode(groups, order="sorted") if groups else None


def decoded(document: bytes | None) -> dict[str, tuple[str, ...]]:
    """Return the groups of a document."""
    return {} if document is None else msgspec.json.decode(document, type=dict[str, tuple[str, ...]])


def with_changes(document: bytes | None, changes: Groups) -> bytes | None:
    """Return the document with these groups replaced; a group whose change names no provider is removed."""
    return encoded({suffix: uuids for suffix, uuids in {**decoded(document), **changes}.items() if uuids})


def after_a_reshape(document: bytes, moved: Mapping[str, Collection[str]], emptied: Collection[str]) -> bytes | None:
    """Return the document after a reshape has moved amounts.

    :param moved: by provider uuid, the providers to which amounts of it were moved.
    :param emptied: the providers of the tree on which the consumer has no allocations any more.
    """
    return encoded(
        {
            suffix: sorted({place for uuid in uuids for place in ({uuid} - set(emptied)) | set(moved.get(uuid, ()))})
            for suffix, uuids in decoded(document).items()
        }
    )
