"""Explanations of a decision, why a host was chosen or none was found: as data, and as one line of text."""

from typing import Literal

from moorage.model.basis import Uuid, Value
from moorage.model.summary import Part, joined, of_many, shortened

#: The most characters of a summary.
SUMMARY_LENGTH = 200
#: The most requested hosts that a summary names.
_NAMED = 2


class Shortage(Value, frozen=True, kw_only=True):
    """The hosts that a filter removed for lack of one resource class. Each host counts for only one shortage."""

    resource_class: str
    hosts: int
    #: ``short``: too little is free; ``absent``: no inventory of it; ``uneven``: enough is free, but not in an amount
    #: that one claim may take (units, steps, one provider).
    what: Literal["short", "absent", "uneven"] = "short"
    asked: int = 0
    #: The host that lacks least, and by how much.
    nearest: str | None = None
    lacking: float = 0.0

    def in_words(self) -> str:
        """Return the shortage as text that follows a number of hosts."""
        name = shortened(self.resource_class)
        if self.what == "absent":
            return f"without {name}"
        if self.what == "uneven":
            return f"have {name}, but cannot give {self.asked:,} at once"
        nearest = f", nearest {shortened(self.nearest)} by {self.lacking:,.10g}" if self.nearest else ""
        return f"short of {name}{nearest}"


class FilterCount(Value, frozen=True, kw_only=True):
    """The number of hosts that entered a filter, and of those that it removed."""

    name: str
    hosts: int
    removed: int
    #: The reason as text that follows the name of a host.
    reason: str = ""
    #: The shortages of the removed hosts, if the filter is about resources. A host without a shortage has enough of
    #: each class, but cannot give all classes together.
    shortages: tuple[Shortage, ...] = ()

    def parts(self) -> list[Part]:
        """Return the removed hosts by reason, each with their number."""
        parts = [Part(each.hosts, each.in_words()) for each in self.shortages]
        rest = self.removed - sum(part.hosts for part in parts)
        words = of_many(self.reason) if self.reason else f"removed by {shortened(self.name)}"
        return [*parts, Part(rest, words)] if rest > 0 else parts


class Miss(Value, frozen=True, kw_only=True):
    """A near miss: a host, and the amount that it lacked of one resource class."""

    host: str
    resource_class: str
    asked: int
    free: float
    reason: str = "not enough room"


class WeigherScore(Value, frozen=True, kw_only=True):
    """A weigher's score of a host; its part of the weight is the multiplier times the normalised score."""

    weigher: str
    #: On the weigher's own scale.
    score: float
    #: Normalised to 0..1 over the feasible hosts; 0 where all are equal.
    normalised: float
    multiplier: float

    @property
    def counts(self) -> float:
        """The score's part of the host's weight."""
        return self.multiplier * self.normalised


class RankedHost(Value, frozen=True, kw_only=True):
    """A feasible host: its rank, 1 for the best, its weight, and its scores."""

    host: str
    cell_uuid: Uuid
    rank: int
    weight: float
    scores: tuple[WeigherScore, ...] = ()


class WhatIf(Value, frozen=True, kw_only=True):
    """The number of further such instances that would fit, if nothing else were placed."""

    more: int
    #: By cell: the number if all went there. For an affinity group, and if cells share a pool, they do not add up.
    cells: dict[Uuid, int] = {}
    #: Whether the numbers are exact; otherwise they are lower bounds, for which a search has found places.
    exact: bool = True
    #: Whether that search ended at its time limit.
    out_of_time: bool = False


class Explanation(Value, frozen=True, kw_only=True):
    """The explanation of a decision: why there was no valid host, or why this one."""

    hosts: int
    filters: tuple[FilterCount, ...] = ()
    nearest_misses: tuple[Miss, ...] = ()
    #: The hosts that passed the most filters, each with the reason of the filter that refused it.
    nearest_hosts: dict[str, str] = {}
    #: The hosts that the request names, each with the reason why it was not chosen.
    named_hosts: dict[str, str] = {}
    #: Hosts that passed every filter and lost the race for the claim, and the number of lost claims of each.
    refused_claims: tuple[str, ...] = ()
    lost_races: dict[str, int] = {}
    #: The number of hosts that passed all filters.
    feasible: int = 0
    #: The host that was taken, or would be: one of the best.
    chosen: str | None = None
    #: The best of the feasible hosts, the best first, and the named ones among the feasible hosts.
    top_hosts: tuple[RankedHost, ...] = ()
    named_scores: tuple[RankedHost, ...] = ()
    #: The number of requested instances, and the number for which there would have been a host.
    instances: int = 1
    placed: int = 0
    what_if: WhatIf | None = None
    #: Skipped broken plug-ins, as ``filter rack``, each with its fault (``[scheduler] broken_plugin = skip``).
    skipped_plugins: dict[str, str] = {}

    def summary(self) -> str:
        """Return the explanation as one line of text, of at most :data:`SUMMARY_LENGTH` characters.

        Its numbers of hosts add up to the number of all hosts.
        """
        if not self.hosts:
            return "the cloud has no hosts"
        before = f"{self.placed:,} of {self.instances:,} would fit; then " if 0 < self.placed < self.instances else ""
        parts = [part for each in self.filters for part in each.parts()]
        known = min(self.feasible, self.hosts - sum(part.hosts for part in parts))
        # From an earlier version, or without any filter.
        if (rest := self.hosts - known - sum(part.hosts for part in parts)) > 0:
            parts.append(Part(rest, "not looked at"))
        return joined(f"{before}{max(known, 0):,} of {self.hosts:,} hosts", parts, self._besides(), SUMMARY_LENGTH)

    def _besides(self) -> list[str]:
        """Return the optional parts of a summary, the most important first."""
        named = [] if self.chosen is not None else list(self.named_hosts.items())[:_NAMED]
        parts = [f"decided without the broken {shortened(plugin)}" for plugin in list(self.skipped_plugins)[:_NAMED]]
        parts += [f"{shortened(host)} {shortened(why, 60)}" for host, why in named]
        if refused := len(self.lost_races or self.refused_claims):
            parts.append(f"others were faster on {refused:,}")
        return parts
