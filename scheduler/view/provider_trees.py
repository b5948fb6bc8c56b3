"""Trees of providers as the host cache knows them, and which pools share with which tree."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from placement_store.candidates.tree import SHARES

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class CachedProvider:
    """A provider: where it stands, what it is, and in which slot its amounts of each resource class are."""

    id: int
    uuid: str
    root_id: int
    parent_id: int | None
    traits: frozenset[str]
    aggregates: frozenset[str]
    slots: Mapping[str, int]

    @property
    def shares(self) -> bool:
        """Whether it is a pool, which serves other trees too."""
        return SHARES in self.traits


@dataclass(frozen=True, slots=True)
class CachedTree:
    """The providers that can serve a host: those of its own tree, and the pools that share with it."""

    #: Parents before their children, so that the first is the root.
    own: tuple[CachedProvider, ...]
    sharing: tuple[CachedProvider, ...] = ()
    #: The rest of the trees that the pools stand in. It serves nothing here, but a root's aggregates count for all.
    beside_sharing: tuple[CachedProvider, ...] = ()

    @property
    def serving(self) -> tuple[CachedProvider, ...]:
        """Every provider that can serve the host."""
        return self.own + self.sharing

    @property
    def known(self) -> tuple[CachedProvider, ...]:
        """These, and the rest of the pools' trees."""
        return self.serving + self.beside_sharing

    @property
    def is_flat(self) -> bool:
        """Whether one provider is all there is."""
        return len(self.own) == 1 and not self.sharing

    def traits(self) -> frozenset[str]:
        """Return the traits of all that can serve the host."""
        return frozenset().union(*(member.traits for member in self.serving))

    def aggregates(self) -> frozenset[str]:
        """Return the aggregates of all that can serve the host, and of their roots, which count for them too."""
        return frozenset().union(*(member.aggregates for member in self.known))

    def slots(self) -> dict[str, list[int]]:
        """Return the slots of each resource class, in the order of the providers."""
        slots: dict[str, list[int]] = {}
        for member in self.serving:
            for name, slot in member.slots.items():
                slots.setdefault(name, []).append(slot)
        return slots


class ProviderTrees:
    """All providers by tree. It notes which trees have changed, be it by what shares with them."""

    def __init__(self) -> None:
        self._members: dict[int, CachedProvider] = {}
        self._of_root: dict[int, set[int]] = {}
        self._in_aggregate: dict[str, set[int]] = {}
        self._pools: dict[str, set[int]] = {}
        self._changed: set[int] = set()

    def get(self, id_: int) -> CachedProvider | None:
        """Return the provider of an id, if it is known."""
        return self._members.get(id_)

    def ids_under(self, root_ids: Collection[int]) -> set[int]:
        """Return the ids of all known providers of the trees of these roots."""
        return {id_ for root_id in root_ids for id_ in self._of_root.get(root_id, ())}

    def put(self, member: CachedProvider) -> None:
        """Take over a provider as it is now."""
        before = self._members.get(member.id)
        if before == member:
            return
        if before is not None:
            self.drop(before.id)
        self._members[member.id] = member
        self._of_root.setdefault(member.root_id, set()).add(member.id)
        for aggregate in member.aggregates:
            self._in_aggregate.setdefault(aggregate, set()).add(member.id)
            if member.shares:
                self._pools.setdefault(aggregate, set()).add(member.id)
        self._mark(member.root_id)

    def drop(self, id_: int) -> None:
        """Forget a provider."""
        # What a pool has reached until now is to be worked out anew.
        member = self._members[id_]
        self._mark(member.root_id)
        del self._members[id_]
        _discard(self._of_root, member.root_id, id_)
        for aggregate in member.aggregates:
            _discard(self._in_aggregate, aggregate, id_)
            _discard(self._pools, aggregate, id_)

    def _mark(self, root_id: int) -> None:
        """Note that a tree has changed, and with it every tree that a pool of this one shares with."""
        self._changed.add(root_id)
        for id_ in self._of_root.get(root_id, ()):
            if (member := self._members[id_]).shares:
                self._changed |= {
                    self._members[other].root_id
                    for aggregate in member.aggregates
                    for other in self._in_aggregate[aggregate]
                }

    def take_changed(self) -> set[int]:
        """Return the ids of the roots whose trees have changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def tree(self, root_id: int) -> CachedTree | None:
        """Return the tree of a root, or nothing where that is not known; what hangs on an unknown parent is left out.

        The feed may tell of a child before it tells of the parent.
        """
        own = self._under(root_id)
        if not own:
            return None
        shared = {id_ for member in own for aggregate in member.aggregates for id_ in self._pools.get(aggregate, ())}
        sharing = tuple(member for id_ in sorted(shared) if (member := self._members[id_]).root_id != root_id)
        return CachedTree(own, sharing, self._beside(sharing))

    def _under(self, root_id: int) -> tuple[CachedProvider, ...]:
        root = self._members.get(root_id)
        if root is None or root.root_id != root_id:
            return ()
        ids = self._of_root[root_id]
        if len(ids) == 1:
            return (root,)
        children: dict[int | None, list[CachedProvider]] = {}
        for id_ in sorted(ids):
            member = self._members[id_]
            children.setdefault(member.parent_id, []).append(member)
        ordered = [root]
        for member in ordered:  # it grows while it is read
            ordered.extend(children.get(member.id, ()))
        return tuple(ordered)

    def _beside(self, sharing: tuple[CachedProvider, ...]) -> tuple[CachedProvider, ...]:
        """Return the rest of the trees that pools stand in, parents first."""
        roots = dict.fromkeys(pool.root_id for pool in sharing)
        shown = {pool.id for pool in sharing}
        return tuple(member for root_id in roots for member in self._under(root_id) if member.id not in shown)


def _discard(index: dict[K, set[int]], key: K, id_: int) -> None:
    ids = index.get(key, set())
    ids.discard(id_)
    if not ids:
        index.pop(key, None)
