"""The store as it must be: providers, consumers, and the words that both are described in."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

import os_resource_classes

from moorage import errors, ids
from moorage.model import AllocationRequest, Consumer, Inventory, ProviderAmounts, ResourceProvider

#: Provider uuid and resource class.
Pair = tuple[str, str]
Held = dict[Pair, int]
#: What the root of a claim begins with whose provider has been deleted.
GONE = "deleted "


@dataclass
class Provider:
    """A resource provider as it must be."""

    uuid: str
    name: str
    parent: str | None = None
    generation: int = 0
    inventories: dict[str, Inventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


@dataclass
class Holder:
    """A consumer as it must be."""

    generation: int = 0
    held: Held = field(default_factory=dict)
    project_id: str = ""
    user_id: str = ""
    consumer_type: str = ""
    claim_id: str | None = None
    root: str | None = None
    accepted_by: str | None = None
    accepted_host: str | None = None
    owner: str | None = None
    #: The instance that a migration, or what is left of one, is of.
    migration_of: str | None = None
    group: str | None = None
    #: It was deleted for good, and is there for what others have put on it.
    left_behind: bool = False


@dataclass
class Model:
    """The store as it must be."""

    providers: dict[str, Provider] = field(default_factory=dict)
    holders: dict[str, Holder] = field(default_factory=dict)
    buried: set[str] = field(default_factory=set)
    #: All that there have ever been.
    claim_ids: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=lambda: set(os_resource_classes.STANDARDS))
    #: The custom ones.
    traits: set[str] = field(default_factory=set)
    #: The name and the project of each server group.
    groups: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    #: By migration, what a conductor has on record: what its source and its destination were claimed with.
    said: dict[str, tuple[AllocationRequest, AllocationRequest]] = field(default_factory=dict)

    def copy(self) -> "Model":
        """Return a model that goes its own way from here."""
        return replace(
            self,
            providers={u: replace(one, inventories=dict(one.inventories)) for u, one in self.providers.items()},
            holders={uuid: replace(one, held=dict(one.held)) for uuid, one in self.holders.items()},
            buried=set(self.buried),
            claim_ids=set(self.claim_ids),
            classes=set(self.classes),
            traits=set(self.traits),
            groups=dict(self.groups),
            said=dict(self.said),
        )

    # --- Trees ------------------------------------------------------------------------------------------------------

    def root_of(self, uuid: str) -> str:
        """Return the provider at the top of the tree."""
        parent = self.providers[uuid].parent
        return uuid if parent is None else self.root_of(parent)

    def tree(self, root: str | None) -> set[str]:
        """Return all providers below a root, and itself."""
        return {uuid for uuid in self.providers if self.root_of(uuid) == root}

    def children(self, uuid: str) -> list[str]:
        """Return the providers right below this one."""
        return [other.uuid for other in self.providers.values() if other.parent == uuid]

    def is_below(self, uuid: str, other: str | None) -> bool:
        """Tell whether a provider is another one, or somewhere below it."""
        parent = self.providers[uuid].parent
        return uuid == other or (parent is not None and self.is_below(parent, other))

    def forget(self, uuid: str) -> None:
        """Delete a provider; a claim on it that holds nothing of it stands nowhere from then on.

        Its root is none that is there, nor comes back with a provider of the same uuid.
        """
        del self.providers[uuid]
        gone = f"{GONE}{ids.fresh()}"
        for holder in self.holders.values():
            if holder.root == uuid:
                holder.root = gone

    # --- Amounts ----------------------------------------------------------------------------------------------------

    def used(self) -> Counter[Pair]:
        """Return the sum of all allocations."""
        return sum((Counter(holder.held) for holder in self.holders.values()), Counter())

    def inventory(self, pair: Pair) -> Inventory | None:
        """Return what a provider has of a class."""
        provider = self.providers.get(pair[0])
        return provider and provider.inventories.get(pair[1])

    # --- What is shown ----------------------------------------------------------------------------------------------

    def shown(self, uuid: str) -> ResourceProvider:
        """Return a provider as the store shows it."""
        provider, used = self.providers[uuid], self.used()
        return ResourceProvider(
            uuid=uuid,
            name=provider.name,
            generation=provider.generation,
            root_provider_uuid=self.root_of(uuid),
            parent_provider_uuid=provider.parent,
            inventories=dict(provider.inventories),
            used={name: used[uuid, name] for name in provider.inventories},
            traits=tuple(sorted(provider.traits)),
            aggregates=tuple(sorted(provider.aggregates)),
        )

    def shown_consumer(self, uuid: str) -> Consumer:
        """Return a consumer as the store shows it."""
        holder = self.holders[uuid]
        allocations = {
            provider: ProviderAmounts(resources=resources, generation=self.providers[provider].generation)
            for provider, resources in described(holder.held).items()
        }
        return Consumer(
            uuid=uuid,
            consumer_type=holder.consumer_type,
            project_id=holder.project_id,
            user_id=holder.user_id,
            generation=holder.generation,
            allocations=allocations,
            claim_id=holder.claim_id,
            accepted_by=holder.accepted_by,
            root_provider_uuid=holder.root if holder.root in self.providers else None,
            owner=holder.owner,
        )

    # --- Faults -----------------------------------------------------------------------------------------------------

    def missing(self, uuids: Iterable[str | None]) -> list[errors.MoorageError]:
        """Return a fault for each provider that is not there; none that is named is no fault."""
        wanted = {uuid for uuid in uuids if uuid is not None}
        return [errors.ProviderNotFound(kind="resource provider", name=uuid) for uuid in wanted - self.providers.keys()]

    def unknown(self, classes: Iterable[str]) -> list[errors.MoorageError]:
        """Return a fault for each resource class that is not there."""
        return [errors.ResourceClassNotFound(kind="resource class", name=name) for name in set(classes) - self.classes]

    def traitless(self, traits: Iterable[str]) -> list[errors.MoorageError]:
        """Return a fault for each trait that is not there."""
        return [errors.TraitNotFound(kind="trait", name=name) for name in set(traits) - self.traits]

    def stale_generations(self, relied_on: Mapping[str, Collection[int | None]]) -> list[errors.MoorageError]:
        """Return a fault for each generation of a provider that is named and is not the present one."""
        return [
            errors.ProviderGenerationConflict(provider_uuid=uuid, named=named, found=self.providers[uuid].generation)
            for uuid, generations in relied_on.items()
            for named in generations
            if named not in (None, self.providers[uuid].generation)
        ]


@singledispatch
def apply(message: Any, model: Model, found: Any) -> Any:
    """Do what a message asks for and return the answer; what is refused changes nothing.

    :param found: what the store has answered, for what it is free to choose, such as the id of a claim.
    :raises Refused: it may not be.
    """
    raise NotImplementedError(type(message))


def described(held: Held) -> dict[str, dict[str, int]]:
    """Return amounts by provider, then by resource class."""
    found: dict[str, dict[str, int]] = {}
    for (uuid, name), amount in held.items():
        found.setdefault(uuid, {})[name] = amount
    return found
