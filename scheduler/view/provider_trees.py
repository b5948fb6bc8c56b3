"""The provider trees of the host cache, and which sharing providers serve which tree.

A sharing provider has the trait MISC_SHARES_VIA_AGGREGATE; it serves each tree that has an aggregate in common with it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from moorage.plugin import HostInventory
from placement_store.candidates.tree import SHARES

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class FetchedProvider:
    """A resource provider as read from the store. A root has its own id as ``root_id``."""

    id: int
    uuid: str
    seq: int
    root_id: int
    parent_id: int | None
    inventories: Mapping[str, HostInventory]
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CachedProvider:
    """A resource provider: its place in a tree, its traits and aggregates, and the slots of its inventories."""

    id: int
    uuid: str
    root_id: int
    parent_id: int | None
    traits: frozenset[str]
    aggregates: frozenset[str]
    #: By resource class, an index into :class:`scheduler.view.inventory_columns.InventoryArrays`.
    slots: Mapping[str, int]

    @property
    def shares(self) -> bool:
        """True for a sharing provider, which serves other trees too."""
        return SHARES in self.traits


@dataclass(frozen=True, slots=True)
class CachedTree:
    """The providers that can serve a host: its own tree, and the providers that share with it."""

    #: Parents before their children, so that the first is the root.
    own: tuple[CachedProvider, ...]
    sharing: tuple[CachedProvider, ...] = ()
    #: The rest of the trees of the sharing providers. They do not serve the host, but the aggregates of a root count
    #: for its whole tree.
    beside_sharing: tuple[CachedProvider, ...] = ()

    @property
    def serving(self) -> tuple[CachedProvider, ...]:
        """The providers that can serve the host."""
        return self.own + self.sharing

    @property
    def providers(self) -> tuple[CachedProvider, ...]:
        """All providers: those that can serve the host, and the rest of the sharing providers' trees."""
        return self.serving + self.beside_sharing

    @property
    def is_flat(self) -> bool:
        """True if a single provider serves the host."""
        return len(self.own) == 1 and not self.sharing

    def traits(self) -> frozenset[str]:
        """Return the traits of all providers that can serve the host."""
        return _union([each.traits for each in self.serving])

    def aggregates(self) -> frozenset[str]:
        """Return the aggregates of all providers: those of a sharing provider's root count for its whole tree."""
        return _union([each.aggregates for each in self.providers])

    def slots(self) -> dict[str, list[int]]:
        """Return the slots of each resource class, in the order of the providers."""
        slots: dict[str, list[int]] = {}
        for provider in self.serving:
            for name, slot in provider.slots.items():
                slots.setdefault(name, []).append(slot)
        return slots


def _union(sets: Sequence[frozenset[str]]) -> frozenset[str]:
    return sets[0] if len(sets) == 1 else frozenset().union(*sets)


class ProviderTrees:
    """All providers, indexed by tree and by aggregate; it records which trees a change affects.

    Not safe to use from several threads: the host cache's lock guards it.
    """

    def __init__(self) -> None:
        self._providers: dict[int, CachedProvider] = {}
        self._ids_of_root: dict[int, set[int]] = {}
        self._ids_in_aggregate: dict[str, set[int]] = {}
        self._sharing_in_aggregate: dict[str, set[int]] = {}
        self._changed_roots: set[int] = set()

    def get(self, id_: int) -> CachedProvider | None:
        """Return the provider of an id, or None if it is not known."""
        return self._providers.get(id_)

    def ids_under(self, root_ids: Collection[int]) -> set[int]:
        """Return the ids of all known providers of the trees of these roots."""
        return {id_ for root_id in root_ids for id_ in self._ids_of_root.get(root_id, ())}

    def put(self, provider: CachedProvider) -> None:
        """Add a provider, or replace the one with its id."""
        before = self._providers.get(provider.id)
        if before == provider:
            return
        # Drop the old state first: a provider that changes its tree or its aggregates affects the trees of both states.
        if before is not None:
            self.drop(before.id)
        self._providers[provider.id] = provider
        self._ids_of_root.setdefault(provider.root_id, set()).add(provider.id)
        for aggregate in provider.aggregates:
            self._ids_in_aggregate.setdefault(aggregate, set()).add(provider.id)
            if provider.shares:
                self._sharing_in_aggregate.setdefault(aggregate, set()).add(provider.id)
        self._mark_changed(provider.root_id)

    def drop(self, id_: int) -> None:
        """Remove a provider."""
        provider = self._providers[id_]
        # Mark it while it is still in the indexes: the trees that a sharing provider has served until now change, too.
        self._mark_changed(provider.root_id)
        del self._providers[id_]
        _discard(self._ids_of_root, provider.root_id, id_)
        for aggregate in provider.aggregates:
            _discard(self._ids_in_aggregate, aggregate, id_)
            _discard(self._sharing_in_aggregate, aggregate, id_)

    def _mark_changed(self, root_id: int) -> None:
        """Mark a tree as changed, and each tree that a sharing provider of it serves."""
        self._changed_roots.add(root_id)
        for id_ in self._ids_of_root.get(root_id, ()):
            if (provider := self._providers[id_]).shares:
                self._changed_roots |= {
                    self._providers[other].root_id
                    for aggregate in provider.aggregates
                    for other in self._ids_in_aggregate[aggregate]
                }

    def pop_changed_roots(self) -> set[int]:
        """Return the root ids of the trees that have changed since the last call."""
        changed, self._changed_roots = self._changed_roots, set()
        return changed

    def tree(self, root_id: int) -> CachedTree | None:
        """Return the tree of a root, or None if the root is not known.

        A provider whose parent is not known is left out: the change feed may bring a child before its parent.
        """
        own = self._under(root_id)
        if not own:
            return None
        shared = {
            id_
            for provider in own
            for aggregate in provider.aggregates
            for id_ in self._sharing_in_aggregate.get(aggregate, ())
        }
        sharing = tuple(found for id_ in sorted(shared) if (found := self._providers[id_]).root_id != root_id)
        roots = dict.fromkeys(provider.root_id for provider in sharing)
        beside = tuple(other for root in roots for other in self._under(root) if other.id not in shared)
        return CachedTree(own, sharing, beside)

    def _under(self, root_id: int) -> tuple[CachedProvider, ...]:
        """Return the providers of a root's own tree, parents before their children."""
        root = self._providers.get(root_id)
        if root is None or root.root_id != root_id:
            return ()
        ids = self._ids_of_root[root_id]
        if len(ids) == 1:
            return (root,)
        children: dict[int | None, list[CachedProvider]] = {}
        for id_ in sorted(ids):
            provider = self._providers[id_]
            children.setdefault(provider.parent_id, []).append(provider)
        ordered = [root]
        for provider in ordered:  # the list grows during the iteration: breadth first
            ordered.extend(children.get(provider.id, ()))
        return tuple(ordered)


def _discard(index: dict[K, set[int]], key: K, id_: int) -> None:
    ids = index.get(key, set())
    ids.discard(id_)
    if not ids:
        index.pop(key, None)
