"""A request may name a server group of anti-affinity: then one host has no more of its members than it says.

The store decides, in the transaction of the claim; here the hosts are left out that it would refuse.
"""

from collections.abc import Iterator

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class ServerGroupAntiAffinityFilter(ConditionsFilter):
    """Passes hosts that have fewer other members of an anti-affinity group than it lets one host have."""

    reason = "has as many members of the server group as one host may have"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names an anti-affinity group."""
        return request.server_group is not None and request.server_group.policy == "anti-affinity"

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether there is room for one more member."""
        group = request.server_group
        if group is not None and self.concerns(request):
            yield np.less(asked.group_members_here, group.max_server_per_host)
