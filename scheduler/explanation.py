"""Why there was no valid host: counts per filter, the nearest misses, and a word on each host that was named."""

from collections.abc import Collection, Iterator

import numpy as np

from moorage.model import Explanation, Miss, RequestSpec, Resources
from moorage.plugin import HostInventory
from scheduler.funnel import Filtered
from scheduler.planning import Shortfall
from scheduler.view import Snapshot

#: Enough to see what is lacking; the rest are as full as these, or fuller.
_NEAREST_HOSTS = 5
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
        nearest_misses=tuple(_nearest_misses(view, filtered, request.resources)),
        named_hosts=_named_hosts(view, filtered, request),
        refused_claims=tuple(sorted(host.service_host for host in view.hosts if host.compute_node_uuid in refused)),
    )


def summarise(explanation: Explanation, placed: int, instances: int) -> str:
    """Return the explanation in one line for people, saying how many instances would have found a host."""
    summary = explanation.summary()
    return f"{placed} of {instances} would fit; {summary}" if placed else summary


def _nearest_misses(view: Snapshot, filtered: Filtered, resources: Resources) -> Iterator[Miss]:
    """Yield what the hosts lacked that came through most filters, and lacked the smallest share of what was asked."""
    lacking = np.zeros(len(view), dtype=np.int64)
    share = np.zeros(len(view))
    for name, amount in resources.items():
        lacking += ~view.fits(name, amount)
        share += np.clip((amount - view.free(name)) / amount, 0.0, 1.0)
    depth = np.zeros(len(view), dtype=np.int64)
    for stage in filtered.stages:
        depth += stage.left
    candidates = np.flatnonzero(filtered.entered & (lacking > 0))
    order = np.lexsort((share[candidates], lacking[candidates], -depth[candidates]))[:_NEAREST_HOSTS]
    for row in candidates[order].tolist():
        host = view.host(row)
        for name, amount in resources.items():
            inventory = host.inventories.get(name)
            if inventory is None:
                yield Miss(host=host.service_host, resource_class=name, asked=amount, free=0.0, reason="has none")
            elif not inventory.fits(amount):
                reason = _unfit(inventory, amount)
                yield Miss(
                    host=host.service_host, resource_class=name, asked=amount, free=inventory.free, reason=reason
                )


def _unfit(inventory: HostInventory, amount: int) -> str:
    if inventory.used + amount > inventory.capacity:
        return "not enough room"
    if amount < inventory.min_unit:
        return f"less than the smallest unit, {inventory.min_unit}"
    if amount > inventory.max_unit:
        return f"more than the largest unit, {inventory.max_unit}"
    return f"not a multiple of the step, {inventory.step_size}"


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
