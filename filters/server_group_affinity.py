"""A request may name a server group of affinity: then it goes where the group's other members are.

The store decides, in the transaction of the claim; here the hosts are left out that it would refuse.
"""

from collections.abc import Iterator

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class ServerGroupAffinityFilter(ConditionsFilter):
    """Passes the host that all other members of an affinity group are on; any, as long as there are none.

    While a member moves it is on two hosts, and then none passes. What is on a host that is forced down does not count.
    """

    reason = "is not where the other members of the server group are, or one of them is moving"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names an affinity group."""
        return request.server_group is not None and request.server_group.policy == "affinity"

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether no member is elsewhere."""
        if self.concerns(request):
            yield np.equal(asked.group_members_elsewhere, 0)
