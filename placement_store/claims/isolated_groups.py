"""Isolated request groups: the providers on which each suffixed group of a consumer is, of which no two may share one.

They are kept with the claim as a document, by suffix, and only where the request says ``group_policy=isolate``. So a
reshape, which else knows amounts alone, can keep them apart.
"""

from collections.abc import Collection, Mapping

import msgspec

from moorage.model import UNSUFFIXED

#: By suffix, the uuids of providers.
Groups = Mapping[str, Collection[str]]


def suffixed(mappings: Groups) -> Groups:
    """Return the mappings of suffixed groups; the unsuffixed one may share the providers of any."""
    return {suffix: uuids for suffix, uuids in mappings.items() if suffix != UNSUFFIXED}


def encoded(groups: Groups) -> bytes | None:
    """Return groups as they are kept; null if there are none."""
    return msgspec.json.encode(groups, order="sorted") if groups else None


def decoded(document: bytes | None) -> dict[str, tuple[str, ...]]:
    """Return the groups that are kept."""
    return {} if document is None else msgspec.json.decode(document, type=dict[str, tuple[str, ...]])


def with_changes(document: bytes | None, changes: Groups) -> bytes | None:
    """Return what is kept after groups were attached, or detached: those that are changed to no provider."""
    return encoded({suffix: uuids for suffix, uuids in {**decoded(document), **changes}.items() if uuids})


def after_a_reshape(document: bytes, moved: Mapping[str, Collection[str]], emptied: Collection[str]) -> bytes | None:
    """Return what is kept after amounts were moved.

    :param moved: by provider, those to which something of it was moved.
    :param emptied: the providers of the tree of which the consumer holds nothing any more.
    """
    return encoded(
        {
            suffix: sorted({place for uuid in uuids for place in ({uuid} - set(emptied)) | set(moved.get(uuid, ()))})
            for suffix, uuids in decoded(document).items()
        }
    )
