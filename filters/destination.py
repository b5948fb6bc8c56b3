"""A request may name hosts: those to stay away from, those to choose among, the one to go to.

Names of hosts and nodes are compared without regard to upper and lower case, as operators type them.
"""

from collections.abc import Collection

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import BoolArray, Filter, Host, HostView


class DestinationFilter(Filter):
    """Passes what ``ignore_hosts``, ``force_hosts``, ``force_nodes`` and ``requested_destination`` leave, together."""

    reason = "is not where the request wants to go"

    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Tell whether the request's own words leave ``host``."""
        wanted = request.requested_destination
        return (
            not _named(host.service_host, request.ignore_hosts)
            and (not request.force_hosts or _named(host.service_host, request.force_hosts))
            and (not request.force_nodes or _named(host.nodename, request.force_nodes))
            and (
                wanted is None
                or (
                    (wanted.host is None or _named(host.service_host, (wanted.host,)))
                    and (wanted.node is None or _named(host.nodename, (wanted.node,)))
                    and (wanted.cell is None or wanted.cell == host.cell_uuid)
                )
            )
        )

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Tell the same of all hosts."""
        left = np.ones(len(view), dtype=np.bool_)
        if request.ignore_hosts:
            left &= ~view.named(request.ignore_hosts)
        if request.force_hosts:
            left &= view.named(request.force_hosts)
        if request.force_nodes:
            left &= view.nodes_named(request.force_nodes)
        if (wanted := request.requested_destination) is not None:
            if wanted.host is not None:
                left &= view.named((wanted.host,))
            if wanted.node is not None:
                left &= view.nodes_named((wanted.node,))
            if wanted.cell is not None:
                left &= view.in_cell(wanted.cell)
        return left


def _named(name: str, names: Collection[str]) -> bool:
    folded = name.casefold()
    return any(folded == other.casefold() for other in names)
