"""Why a host was chosen, or why there was none: as data, and in one line."""

from typing import Literal

from moorage.model.basis import Uuid, Value
from moorage.model.summary import Part, joined, of_many, shortened

#: How much a summary says at most, in characters.
SUMMARY_LENGTH = 200
#: A summary names no more of the hosts that a request wants by name than this.
_NAMED = 2


class Shortage(Value, frozen=True, kw_only=True):
    """Hosts that were removed for want of one resource class. Each host counts for one shortage alone."""

    resource_class: str
    hosts: int
    #: ``short``: too little is free; ``absent``: they have none of it; ``uneven``: enough is free, but not in the
    #: amounts that one claim may take (units, steps, one provider).
    what: Literal["short", "absent", "uneven"] = "short"
    asked: int = 0
    #: Of those that are short, the one that lacks least, and how much that is.
    nearest: str | None = None
    lacking: float = 0.0

    def in_words(self) -> str:
        """Return what is the matter, in words that follow the number of hosts."""
        name = shortened(self.resource_class)
        if self.what == "absent":
            return f"without {name}"
        if self.what == "uneven":
            return f"have {name}, but cannot give {self.asked:,} at once"
        nearest = f", nearest {shortened(self.nearest)} by {self.lacking:,.10g}" if self.nearest else ""
        return f"short of {name}{nearest}"


class FilterCount(Value, frozen=True, kw_only=True):
    """How many hosts entered a filter and how many it removed."""

    name: str
    hosts: int
    removed: int
    #: Why, in words that follow the name of a host.
    reason: str = ""
    #: What those lacked that it has removed, where it is about room; of the others that lacked nothing of their own,
    #: but not all together.
    shortages: tuple[Shortage, ...] = ()

    def parts(self) -> list[Part]:
        """Return what it has removed, told apart, each with the number of hosts."""
        parts = [Part(each.hosts, each.in_words()) for each in self.shortages]
        rest = self.removed - sum(part.hosts for part in parts)
        said = of_many(self.reason) if self.reason else f"removed by {shortened(self.name)}"
        return [*parts, Part(rest, said)] if rest > 0 else parts


class Miss(Value, frozen=True, kw_only=True):
    """A host that came near: what it lacked of one resource class."""

    host: str
    resource_class: str
    asked: int
    free: float
    reason: str = "not enough room"


class WeigherScore(Value, frozen=True, kw_only=True):
    """What one weigher said of a host, and what was made of it: the multiplier times the normalised score counts."""

    weigher: str
    #: On the weigher's own scale.
    score: float
    #: Brought to 0..1 over the feasible hosts; 0 where all are equal.
    normalised: float
    multiplier: float

    @property
    def counts(self) -> float:
        """How much of the host's weight this is."""
        return self.multiplier * self.normalised


class RankedHost(Value, frozen=True, kw_only=True):
    """A feasible host: its place from the best, 1 on, its weight, and where that comes from."""

    host: str
    cell_uuid: Uuid
    rank: int
    weight: float
    scores: tuple[WeigherScore, ...] = ()


class WhatIf(Value, frozen=True, kw_only=True):
    """How many more instances like this one would fit, if nothing else were placed."""

    more: int
    #: By cell. Of an affinity group, and where cells share a pool, these are not to be added up: each is what would fit
    #: if all went there.
    cells: dict[Uuid, int] = {}
    #: Whether it is known that no more would fit; otherwise these are the ones that a search has placed, "at least".
    exact: bool = True
    #: Whether that search was given up for want of time.
    out_of_time: bool = False


class Explanation(Value, frozen=True, kw_only=True):
    """Why there was no valid host, or why it was this one, as data."""

    hosts: int
    filters: tuple[FilterCount, ...] = ()
    nearest_misses: tuple[Miss, ...] = ()
    #: The hosts that came furthest, and why each did not do, in the words of the filter that refused it.
    nearest_hosts: dict[str, str] = {}
    #: For hosts that are named: why not this one.
    named_hosts: dict[str, str] = {}
    #: Hosts that passed every filter and refused the claim itself, and how many claims each: others were faster.
    refused_claims: tuple[str, ...] = ()
    lost_races: dict[str, int] = {}
    #: How many hosts came through all filters.
    feasible: int = 0
    #: The host that was taken, or would be: one of the best.
    chosen: str | None = None
    #: The best of the feasible hosts, the best first, and those among them that were named.
    top_hosts: tuple[RankedHost, ...] = ()
    named_scores: tuple[RankedHost, ...] = ()
    #: How many instances were asked for, and for how many there would have been a host.
    instances: int = 1
    placed: int = 0
    what_if: WhatIf | None = None
    #: Plug-ins that broke and were left out, as ``filter rack``, and why (``[scheduler] broken_plugin = skip``).
    skipped_plugins: dict[str, str] = {}

    def summary(self) -> str:
        """Return the explanation in one line for people, of at most :data:`SUMMARY_LENGTH` characters.

        The numbers of hosts in it add up to all hosts there are.
        """
        if not self.hosts:
            return "the cloud has no hosts"
        before = f"{self.placed:,} of {self.instances:,} would fit; then " if 0 < self.placed < self.instances else ""
        parts = [part for each in self.filters for part in each.parts()]
        known = min(self.feasible, self.hosts - sum(part.hosts for part in parts))
        # Told by an earlier version, or no filter was asked.
        if (rest := self.hosts - known - sum(part.hosts for part in parts)) > 0:
            parts.append(Part(rest, "not looked at"))
        return joined(f"{before}{max(known, 0):,} of {self.hosts:,} hosts", parts, self._besides(), SUMMARY_LENGTH)

    def _besides(self) -> list[str]:
        """Return what a summary says besides, as far as there is room."""
        named = [] if self.chosen is not None else list(self.named_hosts.items())[:_NAMED]
        said = [f"decided without the broken {shortened(plugin)}" for plugin in list(self.skipped_plugins)[:_NAMED]]
        said += [f"{shortened(host)} {shortened(why, 60)}" for host, why in named]
        if refused := len(self.lost_races or self.refused_claims):
            said.append(f"others were faster on {refused:,}")
        return said
