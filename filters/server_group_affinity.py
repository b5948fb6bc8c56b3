"""The filter for affinity server groups: the host of the group's other members.

The store enforces the rule in the transaction of the claim; the filter removes the hosts that it would refuse.
"""

from collections.abc import Iterator

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class ServerGroupAffinityFilter(ConditionsFilter):
    """Passes the host of all other members of an affinity group; all hosts if there are none.

    A moving member is on two hosts; then no host passes. Members on a host that is forced down do not count.
    """

    reason = "is not where the other members of the server group are, or one of them is moving"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names an affinity group."""
        return request.server_group is not None and request.server_group.policy == "affinity"

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether no member is on another host."""
        if self.concerns(request):
            yield np.equal(hosts.group_members_elsewhere, 0)
