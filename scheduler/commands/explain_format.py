"""Format an explanation: lines for people, and the same as data for machines."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from moorage.cli.command import ShownLines, ShownValue
from moorage.model import Explanation, FilterCount, RankedHost, WhatIf


def fields(explanation: Explanation, cells: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an explanation by name, each with its lines for people and its value for machines.

    :param cells: the names of cells by uuid; a cell without a name is shown by its uuid.
    """
    shown: dict[str, Any] = {
        "answer": ShownValue("NO VALID HOST" if explanation.chosen is None else f"host {explanation.chosen}"),
        "why": ShownValue(explanation.summary()),
        "hosts": ShownValue(explanation.hosts),
        "feasible": ShownValue(explanation.feasible),
        "chosen": ShownValue(explanation.chosen),
        "filters": _lines(explanation.filters, _of_filters(explanation.filters)),
    }
    ranked = (*explanation.top_hosts, *explanation.named_scores)
    counting = {score.weigher for host in ranked for score in host.scores if score.counts}
    lines_by_name: dict[str, Iterable[str]] = {
        "nearest_misses": (
            f"{miss.host}: {miss.resource_class}, {miss.asked:,} asked, {miss.free:,.10g} free ({miss.reason})"
            for miss in explanation.nearest_misses
        ),
        "nearest_hosts": (f"{host} {why}" for host, why in explanation.nearest_hosts.items()),
        "named_hosts": _of_named(explanation, cells, counting),
        "lost_races": (f"{host}: {claims:,} claim(s)" for host, claims in explanation.lost_races.items()),
        "top_hosts": (_ranked(host, cells, counting) for host in explanation.top_hosts),
        "skipped_plugins": (f"{plugin}: {why}" for plugin, why in explanation.skipped_plugins.items()),
        "what_if": _what_if(explanation.what_if, cells),
    }
    # Fields without content are left out.
    return shown | {
        name: _lines(value, lines) for name, lines in lines_by_name.items() if (value := getattr(explanation, name))
    }


def _of_filters(filters: Iterable[FilterCount]) -> Iterable[str]:
    """Yield a line for each filter: the hosts before and after it, and the reasons of those it has removed."""
    filters = list(filters)
    width = max((len(each.name) for each in filters), default=0)
    for each in filters:
        left = each.hosts - each.removed
        parts = "; ".join(f"{part.hosts:,} {part.words}" for part in each.parts())
        yield f"{each.name:<{width}}  {each.hosts:>7,} -> {left:>7,}" + (f"  {parts}" if parts else "")


def _of_named(explanation: Explanation, cells: Mapping[str, str], counting: Collection[str]) -> Iterable[str]:
    """Yield the reason for each named host; for a feasible one also its weight, and the difference to the best host."""
    scores = {host.host.casefold(): host for host in explanation.named_scores}
    best = explanation.top_hosts[0] if explanation.top_hosts else None
    for name, why in explanation.named_hosts.items():
        yield f"{name} {why}"
        host = scores.get(name.casefold())
        if host is None:
            continue
        yield f"  {_ranked(host, cells, counting)}"
        if best is not None and best.host != host.host:
            yield f"  behind {best.host}: {_behind(host, best)}"


def _behind(host: RankedHost, best: RankedHost) -> str:
    """Format the weighers by which a host is behind another one, the largest difference first."""
    theirs = {score.weigher: score.counts for score in best.scores}
    differences = [(theirs.get(score.weigher, 0.0) - score.counts, score.weigher) for score in host.scores]
    behind = [f"{name} {-lost:+.3f}" for lost, name in sorted(differences, key=lambda each: -abs(each[0])) if lost]
    return ", ".join(behind) or "only the tie-breaker, which depends on the request id"


def _ranked(host: RankedHost, cells: Mapping[str, str], counting: Collection[str]) -> str:
    """Format a host with its weight and the part of each weigher in it.

    :param counting: the weighers that have contributed to any of the shown hosts.
    """
    scores = " ".join(
        f"{score.weigher} {score.counts:+.3f} ({_number(score.score)})"
        for score in host.scores
        if score.weigher in counting
    )
    cell = cells.get(host.cell_uuid, host.cell_uuid)
    return f"{host.rank:,}. {host.host} ({cell})  {host.weight:.3f}" + (f" = {scores}" if scores else "")


def _number(score: float) -> str:
    """Format a score: whole numbers, as of versions, with all digits, others with six significant digits."""
    return f"{score:,.0f}" if score.is_integer() and abs(score) < 1e15 else f"{score:,.6g}"


def _what_if(counted: WhatIf | None, cells: Mapping[str, str]) -> Iterable[str]:
    if counted is None:
        return
    least = "" if counted.exact else "at least "
    late = " (the search has reached its time limit)" if counted.out_of_time else ""
    yield f"{least}{counted.more:,} more of these would fit{late}"
    for uuid, more in counted.cells.items():
        yield f"  {cells.get(uuid, uuid)}: {least}{more:,}"


def _lines(value: Any, lines: Iterable[str]) -> ShownLines:
    return ShownLines(_in_full(value), list(lines))


def _in_full(value: Any) -> Any:
    """Convert a value to data with every field, also those with default values."""
    if isinstance(value, msgspec.Struct):
        return {name: _in_full(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {key: _in_full(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_full(each) for each in value]
    return value
