"""The filter for the hint ``different_host``: a host with none of some servers."""

from collections.abc import Iterator

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView
from moorage.plugin.hints import DIFFERENT_HOST, instances_named


class DifferentHostFilter(ConditionsFilter):
    """Passes hosts without any of the hint's servers."""

    reason = "has a server that the request wants to stay away from"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request has the hint."""
        return DIFFERENT_HOST in request.scheduler_hints

    def check(self, request: RequestSpec) -> None:
        """Refuse a hint that is not a list of uuids."""
        instances_named(request, DIFFERENT_HOST)

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether none of the named servers is on the host."""
        if uuids := instances_named(request, DIFFERENT_HOST):
            yield np.logical_not(hosts.has_neighbour(uuids))
