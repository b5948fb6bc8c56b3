"""Refusals of requests: a status, a code for clients, and a sentence for people."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from placement_store.http.phrases import Phrase

# The codes of the published API (since 1.23); they never change.
UNDEFINED = "placement.undefined_code"
CONCURRENT_UPDATE = "placement.concurrent_update"
INVENTORY_IN_USE = "placement.inventory.inuse"
DUPLICATE_NAME = "placement.duplicate_name"
PROVIDER_IN_USE = "placement.resource_provider.inuse"
PROVIDER_HAS_CHILDREN = "placement.resource_provider.cannot_delete_parent"
PROVIDER_NOT_FOUND = "placement.resource_provider.not_found"
QUERY_DUPLICATE_KEY = "placement.query.duplicate_key"
QUERY_BAD_VALUE = "placement.query.bad_value"
QUERY_MISSING_VALUE = "placement.query.missing_value"


class ErrorAnswer(NamedTuple):
    """The answer to an error of the store: status, code, and the phrases (with the error's data) before its text."""

    status: int
    code: str = UNDEFINED
    phrases: tuple[Phrase, ...] = ()


@dataclass(eq=False)
class HTTPRefusal(Exception):
    """A request that is answered with an error document."""

    #: The HTTP status.
    status: int
    #: The fault, in a sentence for people.
    detail: str
    #: The code for clients, from 1.23.
    code: str = UNDEFINED
    #: Further headers of the answer, and further fields of the document.
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    extra: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __str__(self) -> str:
        return self.detail
