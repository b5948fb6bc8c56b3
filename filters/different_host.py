"""The filter for the hint ``different_host``: a host with none of some servers."""

from collections.abc import Iterator

import numpy as np

from filters.same_host import SameHostFilter
from moorage.model import RequestSpec
from moorage.plugin import Answer, Host, HostView
from moorage.plugin.hints import DIFFERENT_HOST


class DifferentHostFilter(SameHostFilter):
    """Passes hosts without any of the hint's servers."""

    hint = DIFFERENT_HOST
    reason = "has a server that the request wants to stay away from"

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether none of the named servers is on the host; nothing for an empty hint."""
        return map(np.logical_not, super().conditions(hosts, request))
