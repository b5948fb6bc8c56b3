"""The resource provider tree of a host, which a driver reads and changes."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from moorage import errors, ids
from moorage.model import Inventory, ResourceProvider

_KIND = "resource provider"


@dataclass(frozen=True, slots=True)
class DriverProvider:
    """A provider of a tree; immutable: a change replaces it."""

    uuid: str
    name: str
    parent_uuid: str | None
    #: By resource class.
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    #: As last read from the store; null for a provider that the store does not have.
    generation: int | None = None


class ProviderTree:
    """The resource providers of a host: a root, which is its node, and the providers under it.

    Every method takes a provider by its uuid or its name, and raises ``ProviderNotFound`` if the tree has none. A
    method changes only what it names, so that traits and aggregates that others have set on these providers stay.

    :param providers: parents before their children.
    """

    def __init__(self, providers: Iterable[DriverProvider] = ()) -> None:
        self._providers = {provider.uuid: provider for provider in providers}

    @classmethod
    def of(cls, found: Iterable[ResourceProvider]) -> Self:
        """Return the tree of the store's records, in which parents come before their children."""
        return cls(
            DriverProvider(
                uuid=record.uuid,
                name=record.name,
                parent_uuid=record.parent_provider_uuid,
                inventories=record.inventories,
                traits=frozenset(record.traits),
                aggregates=frozenset(record.aggregates),
                generation=record.generation,
            )
            for record in found
        )

    def copy(self) -> Self:
        """Return an independent copy."""
        return type(self)(self)

    def __iter__(self) -> Iterator[DriverProvider]:
        """Yield the providers, parents before their children."""
        return iter(self._providers.values())

    def __len__(self) -> int:
        return len(self._providers)

    # --- Look-up ----------------------------------------------------------------------------------------------------

    def find(self, name_or_uuid: str) -> DriverProvider | None:
        """Return a provider; None if the tree has none of this name or uuid."""
        if (found := self._providers.get(name_or_uuid)) is not None:
            return found
        return next((provider for provider in self if provider.name == name_or_uuid), None)

    def get(self, name_or_uuid: str) -> DriverProvider:
        """Return a provider.

        :raises ProviderNotFound: the tree has none of this name or uuid.
        """
        found = self.find(name_or_uuid)
        if found is None:
            raise errors.ProviderNotFound(name=name_or_uuid)
        return found

    def children(self, parent: str) -> list[DriverProvider]:
        """Return the children of a provider."""
        parent_uuid = self.get(parent).uuid
        return [provider for provider in self if provider.parent_uuid == parent_uuid]

    # --- Providers --------------------------------------------------------------------------------------------------

    def new_root(self, name: str, uuid: str) -> DriverProvider:
        """Add the root of an empty tree; ``uuid`` is the host's ``compute_node_uuid``.

        :raises AlreadyExists: the tree has a root already.
        """
        if (root := next(iter(self), None)) is not None:
            raise errors.AlreadyExists(kind=_KIND, name=root.name)
        return self._add(name, uuid, None)

    def new_child(self, name: str, parent: str, uuid: str | None = None) -> DriverProvider:
        """Add a provider under another one.

        :param uuid: by default derived from the root and the name, so that a rebuilt tree has the same.
        :raises AlreadyExists: the tree has a provider of this name or uuid.
        """
        parent_uuid = self.get(parent).uuid
        root = next(iter(self)).uuid
        chosen = uuid or ids.derived(root, "provider", name)
        for taken in (name, chosen):
            if self.find(taken) is not None:
                raise errors.AlreadyExists(kind=_KIND, name=taken)
        return self._add(name, chosen, parent_uuid)

    def remove(self, provider: str) -> None:
        """Remove a provider with all its descendants."""
        for child in self.children(provider):
            self.remove(child.uuid)
        del self._providers[self.get(provider).uuid]

    # --- Inventories, traits, aggregates ----------------------------------------------------------------------------

    def set_inventory(self, provider: str, resource_class: str, inventory: Inventory) -> None:
        """Set a provider's inventory of one class."""
        found = self.get(provider)
        self._change(found, inventories={**found.inventories, resource_class: inventory})

    def remove_inventory(self, provider: str, resource_class: str) -> None:
        """Remove a provider's inventory of one class, if it has one."""
        found = self.get(provider)
        kept = {name: inventory for name, inventory in found.inventories.items() if name != resource_class}
        self._change(found, inventories=kept)

    def set_inventories(self, provider: str, inventories: Mapping[str, Inventory]) -> None:
        """Replace all inventories of a provider."""
        self._change(self.get(provider), inventories=dict(inventories))

    def set_traits(self, provider: str, traits: Iterable[str]) -> None:
        """Replace all traits of a provider."""
        self._change(self.get(provider), traits=frozenset(traits))

    def add_traits(self, provider: str, traits: Collection[str]) -> None:
        """Add traits to a provider."""
        self.set_traits(provider, self.get(provider).traits.union(traits))

    def remove_traits(self, provider: str, traits: Collection[str]) -> None:
        """Remove traits from a provider."""
        self.set_traits(provider, self.get(provider).traits.difference(traits))

    def set_aggregates(self, provider: str, aggregates: Iterable[str]) -> None:
        """Replace all aggregates of a provider, given by uuid."""
        self._change(self.get(provider), aggregates=frozenset(aggregates))

    def add_aggregates(self, provider: str, aggregates: Collection[str]) -> None:
        """Add a provider to aggregates, given by uuid."""
        self.set_aggregates(provider, self.get(provider).aggregates.union(aggregates))

    def set_generations(self, generations: Mapping[str, int]) -> None:
        """Set the store's generations of providers, by uuid; for the tracker, not for drivers."""
        for provider in list(self):
            if provider.uuid in generations:
                self._change(provider, generation=generations[provider.uuid])

    def _add(self, name: str, uuid: str, parent_uuid: str | None) -> DriverProvider:
        added = self._providers[uuid] = DriverProvider(uuid, name, parent_uuid)
        return added

    def _change(self, provider: DriverProvider, **changes: Any) -> None:
        # Most reports find no change on thousands of hosts: keep the object, because the same object compares at once.
        if any(getattr(provider, name) != value for name, value in changes.items()):
            self._providers[provider.uuid] = replace(provider, **changes)
