"""Why there was no valid host: counts per filter, the nearest misses, and a word on each host that was named."""

from collections.abc import Collection

from moorage.model import Explanation, RequestSpec
from scheduler.funnel import Filtered
from scheduler.misses import nearest_misses
from scheduler.planning import Shortfall
from scheduler.view import Snapshot

#: A request may name thousands of hosts; nobody reads more than this.
_NAMED_HOSTS = 20


def explain(shortfall: Shortfall, request: RequestSpec, refused: Collection[str]) -> Explanation:
    """Return why the hosts of a view did not do.

    :param refused: compute nodes that have refused the claim while the request was served.
    """
    view, filtered = shortfall.view, shortfall.filtered
    return Explanation(
        hosts=len(view),
        filters=filtered.counts(),
        nearest_misses=tuple(nearest_misses(view, filtered, shortfall.serving)),
        named_hosts=_named_hosts(view, filtered, request),
        refused_claims=tuple(sorted(host.service_host for host in view.hosts if host.compute_node_uuid in refused)),
    )


def summarise(explanation: Explanation, placed: int, instances: int) -> str:
    """Return the explanation in one line for people, saying how many instances would have found a host."""
    summary = explanation.summary()
    return f"{placed} of {instances} would fit; {summary}" if placed else summary


def _named_hosts(view: Snapshot, filtered: Filtered, request: RequestSpec) -> dict[str, str]:
    """Return for each host or node that the request wants by name why it did not do."""
    wanted = request.requested_destination
    hosts = dict.fromkeys((*request.force_hosts, *((wanted.host,) if wanted and wanted.host else ())))
    nodes = dict.fromkeys((*request.force_nodes, *((wanted.node,) if wanted and wanted.node else ())))
    rows = {name: view.names.by_host.get(name.casefold(), []) for name in hosts}
    rows |= {name: view.names.by_node.get(name.casefold(), []) for name in nodes}
    return {name: _why_not(filtered, rows[name]) for name in list(rows)[:_NAMED_HOSTS]}


def _why_not(filtered: Filtered, rows: list[int]) -> str:
    if not rows:
        return "is not known"
    for stage in filtered.stages:
        if not stage.left[rows].any():
            return stage.reason
    return "was not looked at"
