"""Hold a host's providers for the candidate search: plain values, read from SQL or from a snapshot in memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placement_store.providers.rows import InventoryRow

#: A provider with this trait serves every tree that has a provider in one of its aggregates.
SHARES = "MISC_SHARES_VIA_AGGREGATE"


@dataclass(frozen=True, slots=True)
class CandidateProvider:
    """One resource provider: its place in a tree, its inventories by resource class, its traits and aggregates."""

    uuid: str
    root_uuid: str
    parent_uuid: str | None
    inventories: Mapping[str, InventoryRow]
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class HostTree:
    """A tree of providers, and the sharing providers of other trees that serve it."""

    #: Parents before their children, so that the first is the root.
    providers: Sequence[CandidateProvider]
    #: See :func:`sharing_with`.
    sharing: Sequence[CandidateProvider] = ()
    #: The ancestors of the sharing providers in their own trees; other providers of these trees do no harm. They serve
    #: nothing. They are needed because a root's aggregates count for its whole tree, and because one sharing provider
    #: may be an ancestor of another.
    above_sharing: Sequence[CandidateProvider] = ()

    @property
    def root(self) -> CandidateProvider:
        """The provider of the host itself."""
        return self.providers[0]


def sharing_with(providers: Sequence[CandidateProvider], pools: Iterable[CandidateProvider]) -> list[CandidateProvider]:
    """Return the sharing providers among ``pools`` that reach a tree through an aggregate and are not part of it."""
    reached: set[str] = set()
    for provider in providers:
        reached |= provider.aggregates
    here = providers[0].root_uuid
    return [
        pool
        for pool in pools
        if SHARES in pool.traits and pool.root_uuid != here and not reached.isdisjoint(pool.aggregates)
    ]


def parents_first(providers: Iterable[CandidateProvider]) -> list[CandidateProvider]:
    """Sort the providers of one tree so that each follows its parent; otherwise they keep their order."""
    children: dict[str | None, list[CandidateProvider]] = {}
    for provider in providers:
        children.setdefault(provider.parent_uuid, []).append(provider)
    ordered = list(children.get(None, ()))
    for provider in ordered:  # breadth first: the list grows while it is read
        ordered.extend(children.get(provider.uuid, ()))
    return ordered
