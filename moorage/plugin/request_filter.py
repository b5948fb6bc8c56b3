"""The interface of request filters, which narrow a request before any host is filtered.

:mod:`moorage.plugin` exports it with the other plug-in interfaces.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec import structs
from oslo_config import cfg

from moorage import errors
from moorage.messages import wire
from moorage.model import UNSUFFIXED, RequestSpec


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A host aggregate without its hosts; a request restricts itself to them by the uuid (``root_member_of``)."""

    uuid: str
    name: str
    metadata: Mapping[str, str] = field(default_factory=dict)


class Cloud(ABC):
    """The cloud's state for a request filter, as new as the host view on which the request is then decided."""

    @abstractmethod
    def aggregates(self) -> Sequence[Aggregate]:
        """Return all host aggregates, those without hosts included, by uuid."""

    @abstractmethod
    def has_trait(self, trait: str) -> bool:
        """Return whether any host has a trait on the root of its tree."""


class RequestRefused(Exception):
    """A request filter refuses a request: no host can serve it, independent of the present hosts.

    The caller gets ``NoValidHost``, after the filter was called again with the present state. The reason is text that
    follows the name of any host: "is in no aggregate for project p".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RequestFilter(ABC):
    """A request filter: translates a request into a narrower one, on which the hosts are then filtered.

    It does no I/O and keeps no state: it is deterministic in every scheduler, and idempotent. ``options`` are
    registered in the group ``[request_filters]``; their values are passed to the constructor by name, which raises
    ``ValueError`` for a wrong one.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    @abstractmethod
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        """Return a narrower request: each host that can serve it can serve ``request``. It may return the same one.

        :raises InvalidRequest: the request is not valid for this filter; with the path of the fault
            (``$.flavor.extra_specs[...]``).
        :raises RequestRefused: no host can serve it.
        """


def valid_request(answer: object) -> RequestSpec:
    """Return the answer of a request filter if all its values are valid.

    :raises TypeError: it is no request, or one of its values is not valid.
    """
    if not isinstance(answer, RequestSpec):
        raise TypeError(f"it has returned {type(answer).__name__}, which is no request")
    try:
        groups = dict(answer.groups)
        if (own := groups.get(UNSUFFIXED)) is not None:
            # Only in the answer of a request filter, an amount may be zero: it removes the flavor's amount.
            amounts = {name: amount for name, amount in own.resources.items() if amount != 0}
            groups[UNSUFFIXED] = structs.replace(own, resources=amounts)
        wire.decode(RequestSpec, wire.encode(structs.replace(answer, groups=groups)))
    except (errors.InvalidRequest, AttributeError, TypeError, ValueError) as fault:
        raise TypeError(f"it has returned an invalid request: {fault}") from fault
    return answer
