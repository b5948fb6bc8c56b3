"""A request may ask to stay away from the hosts on which some servers are placed, by the hint ``different_host``."""

from collections.abc import Iterator

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView
from moorage.plugin.hints import DIFFERENT_HOST, instances_named


class DifferentHostFilter(ConditionsFilter):
    """Passes hosts that have none of the servers that the hint names."""

    reason = "has a server that the request wants to stay away from"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request has the hint."""
        return DIFFERENT_HOST in request.scheduler_hints

    def check(self, request: RequestSpec) -> None:
        """Refuse a hint that is no list of uuids."""
        instances_named(request, DIFFERENT_HOST)

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether none of them is there."""
        if uuids := instances_named(request, DIFFERENT_HOST):
            yield np.logical_not(asked.has_neighbour(uuids))
