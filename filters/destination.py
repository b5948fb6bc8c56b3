"""The filter for hosts that a request names: ignored, forced, and requested ones.

Names of hosts and nodes are compared without case.
"""

from collections.abc import Iterator

import numpy as np

from moorage.model import Destination, RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class DestinationFilter(ConditionsFilter):
    """Passes hosts that meet ``ignore_hosts``, ``force_hosts``, ``force_nodes`` and ``requested_destination``."""

    reason = "is not where the request wants to go"

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the first of these fields that ``host`` does not meet."""
        wanted = request.requested_destination or Destination()
        if request.ignore_hosts and host.named(request.ignore_hosts):
            return "is one that the request leaves out"
        if request.force_hosts and not host.named(request.force_hosts):
            return "is none of the hosts that the request insists on"
        if request.force_nodes and not host.nodes_named(request.force_nodes):
            return "has none of the nodes that the request insists on"
        if wanted.host is not None and not host.named((wanted.host,)):
            return f"is not the host {wanted.host} that the request wants to go to"
        if wanted.node is not None and not host.nodes_named((wanted.node,)):
            return f"has not the node {wanted.node} that the request wants to go to"
        return "is in another cell than the request may go to"

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield for each of these fields whether the host meets it."""
        if request.ignore_hosts:
            yield np.logical_not(asked.named(request.ignore_hosts))
        if request.force_hosts:
            yield asked.named(request.force_hosts)
        if request.force_nodes:
            yield asked.nodes_named(request.force_nodes)
        if request.requested_destination is not None:
            yield from _at(asked, request.requested_destination)


def _at(asked: Host | HostView, wanted: Destination) -> Iterator[Answer]:
    if wanted.host is not None:
        yield asked.named((wanted.host,))
    if wanted.node is not None:
        yield asked.nodes_named((wanted.node,))
    if wanted.cell is not None and not wanted.allow_cross_cell_move:
        yield asked.in_cell(wanted.cell)
