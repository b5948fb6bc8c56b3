"""A server may ask for racks by the hint ``rack``: a list of names, of which a host's must be one."""

from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from oslo_config import cfg

from moorage.errors import InvalidRequest
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView

_HINT = "rack"


class RackFilter(ConditionsFilter):
    """Passes hosts of the racks that the hint names; without a hint, all."""

    reason = "is in another rack"
    options: ClassVar[Sequence[cfg.Opt]] = [
        cfg.StrOpt(
            "rack_attribute", default="rack", help="The name of the host attribute in which drivers report the rack."
        )
    ]

    def concerns(self, request: RequestSpec) -> bool:
        """Tell whether the request names racks."""
        return _HINT in request.scheduler_hints

    def check(self, request: RequestSpec) -> None:
        """Refuse a hint that names nothing.

        :raises InvalidRequest: it does.
        """
        if _HINT in request.scheduler_hints and not _racks(request):
            raise InvalidRequest(path="$.scheduler_hints.rack", reason="it names no rack")

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the host's rack is one of them."""
        if racks := _racks(request):
            yield hosts.where_attribute(self.settings["rack_attribute"], lambda rack: rack in racks)

    def why(self, host: Host, request: RequestSpec) -> str:  # noqa: ARG002
        """Return in which rack the host is."""
        rack = host.attribute(self.settings["rack_attribute"])
        return "is in no rack that is known" if rack is None else f"is in rack {rack}"


def _racks(request: RequestSpec) -> Collection[str]:
    # A tuple and not a set: what a driver says may be anything, and is only compared.
    words = request.scheduler_hints.get(_HINT, "").split(",")
    return tuple(word.strip() for word in words if word.strip())
