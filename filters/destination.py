"""The filter for hosts that a request names: ignored, forced, and requested ones.

Names of hosts and nodes are compared without case.
"""

from collections.abc import Iterator

import numpy as np

from filters.reasoned import Reasoned, ReasonedFilter
from moorage.model import Destination, RequestSpec
from moorage.plugin import Host, HostView


class DestinationFilter(ReasonedFilter):
    """Passes hosts that meet ``ignore_hosts``, ``force_hosts``, ``force_nodes`` and ``requested_destination``."""

    reason = "is not where the request wants to go"

    def reasoned(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Reasoned]:
        """Yield for each of these fields whether the host meets it."""
        wanted = request.requested_destination or Destination()
        if request.ignore_hosts:
            yield np.logical_not(hosts.named(request.ignore_hosts)), "is one that the request leaves out"
        if request.force_hosts:
            yield hosts.named(request.force_hosts), "is none of the hosts that the request insists on"
        if request.force_nodes:
            yield hosts.nodes_named(request.force_nodes), "has none of the nodes that the request insists on"
        if wanted.host is not None:
            yield hosts.named((wanted.host,)), f"is not the host {wanted.host} that the request wants to go to"
        for node in (wanted.node, wanted.node_uuid):
            if node is not None:
                yield hosts.nodes_named((node,)), f"has not the node {node} that the request wants to go to"
        if wanted.cell is not None and not wanted.allow_cross_cell_move:
            yield hosts.in_cell(wanted.cell), "is in another cell than the request may go to"

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the reason of the first field that ``host`` does not meet."""
        return next(self.unmet(host, request), self.reason)
