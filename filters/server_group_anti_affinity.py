"""The filter for anti-affinity server groups: a limited number of members on a host.

The store enforces the rule in the transaction of the claim; the filter removes the hosts that it would refuse.
"""

from collections.abc import Iterator

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class ServerGroupAntiAffinityFilter(ConditionsFilter):
    """Passes hosts with fewer other members of an anti-affinity group than the group's limit."""

    reason = "has as many members of the server group as one host may have"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names an anti-affinity group."""
        return request.server_group is not None and request.server_group.policy == "anti-affinity"

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether there is room for one more member."""
        group = request.server_group
        if group is not None and self.concerns(request):
            yield np.less(hosts.group_members_here, group.max_server_per_host)
