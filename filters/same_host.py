"""A request may ask for a host on which one of some servers is placed already, by the hint ``same_host``."""

from collections.abc import Iterator

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView
from moorage.plugin.hints import SAME_HOST, instances_named


class SameHostFilter(ConditionsFilter):
    """Passes hosts that have one at least of the servers that the hint names."""

    reason = "has none of the servers that the request wants to be with"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request has the hint."""
        return SAME_HOST in request.scheduler_hints

    def check(self, request: RequestSpec) -> None:
        """Refuse a hint that is no list of uuids."""
        instances_named(request, SAME_HOST)

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether one of them is there; a hint that names nobody asks for nothing."""
        if uuids := instances_named(request, SAME_HOST):
            yield asked.has_neighbour(uuids)
