"""The filter for the hint ``same_host``: a host with one of some servers."""

from collections.abc import Iterator

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView
from moorage.plugin.hints import SAME_HOST, instances_named


class SameHostFilter(ConditionsFilter):
    """Passes hosts with at least one of the hint's servers."""

    reason = "has none of the servers that the request wants to be with"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request has the hint."""
        return SAME_HOST in request.scheduler_hints

    def check(self, request: RequestSpec) -> None:
        """Refuse a hint that is not a list of uuids."""
        instances_named(request, SAME_HOST)

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether one of the named servers is on the host; nothing for an empty hint."""
        if uuids := instances_named(request, SAME_HOST):
            yield hosts.has_neighbour(uuids)
