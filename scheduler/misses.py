"""The nearest misses: what the hosts lacked that came nearest to serving a request."""

from collections.abc import Iterator

import numpy as np

from moorage.model import UNSUFFIXED, Miss, ResourceGroup, ResourceRequest
from moorage.plugin import Host, HostInventory
from scheduler.funnel import Filtered
from scheduler.serving import Serving
from scheduler.view import Snapshot

#: Enough to see what is lacking; the rest are as full as these, or fuller.
_NEAREST_HOSTS = 5


def nearest_misses(view: Snapshot, filtered: Filtered, serving: Serving) -> Iterator[Miss]:
    """Yield what the hosts lacked that came through most filters, and lacked the smallest share of what was asked."""
    lacking = np.zeros(len(view), dtype=np.int64)
    share = np.zeros(len(view))
    for name, amount in _asked_of_one(serving.request):
        lacking += ~view.fits(name, amount)
        share += np.clip((amount - view.room(name)) / amount, 0.0, 1.0)
    for name, amount in _asked_together(serving.request):
        lacking += view.room(name) < amount
        share += np.clip((amount - view.room(name)) / amount, 0.0, 1.0)
    lacking[list(serving.barren)] += 1
    depth = np.zeros(len(view), dtype=np.int64)
    for stage in filtered.stages:
        depth += stage.left
    missed = np.flatnonzero(filtered.entered & (lacking > 0))
    order = np.lexsort((share[missed], lacking[missed], -depth[missed]))[:_NEAREST_HOSTS]
    for row in missed[order].tolist():
        misses = list(_of_host(view.host(row), serving.request))
        yield from misses or _of_groups(view, row, serving.request)


def _asked_of_one(request: ResourceRequest) -> list[tuple[str, int]]:
    """Return the amounts that must each come from one provider, without repetition."""
    return list(dict.fromkeys(item for group in request.groups.values() for item in group.resources.items()))


def _asked_together(request: ResourceRequest) -> list[tuple[str, int]]:
    """Return the sums of what several groups ask for."""
    amounts: dict[str, list[int]] = {}
    for group in request.groups.values():
        for name, amount in group.resources.items():
            amounts.setdefault(name, []).append(amount)
    return [(name, sum(each)) for name, each in amounts.items() if len(each) > 1]


def _of_host(host: Host, request: ResourceRequest) -> Iterator[Miss]:
    """Yield the amounts for which a host has no room, whatever its providers are."""
    for name, amount in _asked_of_one(request):
        if not host.fits(name, amount):
            held = host.inventories.get(name, ())
            free = max((inventory.free for inventory in held), default=0.0)
            yield _miss(host.service_host, name, amount, free, _unfit(held[0], amount) if held else "has none")
    for name, amount in _asked_together(request):
        if (room := host.room(name)) < amount and name in host.inventories:
            yield _miss(host.service_host, name, amount, room, "not enough room")


def _of_groups(view: Snapshot, row: int, request: ResourceRequest) -> Iterator[Miss]:
    """Yield what is lacking of a host that has room for each amount: a group that no provider of it serves alone.

    Where each can be served, but not all together, it is what the groups ask for together.
    """
    host = view.host(row)
    alone = {
        suffix: group
        for suffix, group in request.groups.items()
        if group.resources and Serving(_only(request, suffix, group), {}).first(view, row) is None
    }
    reason = "no provider serves {}" if alone else "its providers cannot serve {} together with the other groups"
    for suffix, group in (alone or request.groups).items():
        what = reason.format(f"group {suffix}" if suffix != UNSUFFIXED else "the unsuffixed group")
        for name, amount in group.resources.items():
            yield _miss(host.service_host, name, amount, host.room(name), what)


def _only(request: ResourceRequest, suffix: str, group: ResourceGroup) -> ResourceRequest:
    """Return a request for one group alone, of the same hosts."""
    return ResourceRequest(
        groups={suffix: group}, root_required=request.root_required, root_forbidden=request.root_forbidden
    )


def _miss(host: str, name: str, asked: int, free: float, reason: str) -> Miss:
    return Miss(host=host, resource_class=name, asked=asked, free=free, reason=reason)


def _unfit(inventory: HostInventory, amount: int) -> str:
    if inventory.used + amount > inventory.capacity:
        return "not enough room"
    if amount < inventory.min_unit:
        return f"less than the smallest unit, {inventory.min_unit}"
    if amount > inventory.max_unit:
        return f"more than the largest unit, {inventory.max_unit}"
    return f"not a multiple of the step, {inventory.step_size}"
