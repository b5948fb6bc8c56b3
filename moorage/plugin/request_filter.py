"""What an operator's request filter is written against: it makes a request narrower before any host is looked at.

To be had from :mod:`moorage.plugin`, with the rest of what plug-ins are written against.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from oslo_config import cfg

from moorage.model import RequestSpec


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A host aggregate, without its hosts: these are asked for by its uuid (``root_member_of``)."""

    uuid: str
    name: str
    metadata: Mapping[str, str] = field(default_factory=dict)


class Cloud(ABC):
    """What a request filter may know of the cloud: as new as the view that the request is then decided on."""

    @abstractmethod
    def aggregates(self) -> Sequence[Aggregate]:
        """Return all host aggregates, those without hosts included, by uuid."""

    @abstractmethod
    def has_trait(self, trait: str) -> bool:
        """Tell whether any host has a trait on the root of its tree."""


class RequestRefused(Exception):
    """What a request filter raises where there is no host for a request, whatever hosts there are.

    The caller is told ``NoValidHost``, once the filter has been asked again about the present. The reason is said of
    every host, in words that follow its name: "is in no aggregate for project p".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RequestFilter(ABC):
    """Says what a request means on this cloud: as a narrower one, which the hosts are then asked for.

    It does no I/O and keeps no state: the same request on the same cloud becomes the same, in every scheduler, and what
    has been through it already stays as it is. ``options`` are registered in the group ``[request_filters]``; their
    values reach the constructor by name, and what is wrong with them it says with ``ValueError``.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    @abstractmethod
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        """Return a request of which any host that it leaves may serve ``request``; the same one if it changes nothing.

        :raises InvalidRequest: the request says what it cannot mean, with the path of that in the request
            (``$.flavor.extra_specs[...]``).
        :raises RequestRefused: there is nowhere to put it.
        """
