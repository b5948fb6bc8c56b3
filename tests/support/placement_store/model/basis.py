"""The expected state of the store: providers, consumers, and the terms for both."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

import os_resource_classes

from moorage import errors
from moorage.model import AllocationRequest, Consumer, Inventory, ProviderAmounts, ResourceProvider

#: Provider uuid and resource class.
Pair = tuple[str, str]
Held = dict[Pair, int]


@dataclass
class Provider:
    """The expected state of a resource provider."""

    uuid: str
    name: str
    parent: str | None = None
    generation: int = 0
    inventories: dict[str, Inventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


@dataclass
class Holder:
    """The expected state of a consumer."""

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
    #: The instance of a migration, or of the residue of a migration.
    migration_of: str | None = None
    group: str | None = None
    #: It was deleted for good, but still exists because of foreign allocations.
    left_behind: bool = False


@dataclass
class Model:
    """The expected state of the store."""

    providers: dict[str, Provider] = field(default_factory=dict)
    holders: dict[str, Holder] = field(default_factory=dict)
    buried: set[str] = field(default_factory=set)
    #: The ids of all claims ever made.
    claim_ids: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=lambda: set(os_resource_classes.STANDARDS))
    #: Only the custom ones.
    traits: set[str] = field(default_factory=set)
    #: The name and the project of each server group.
    groups: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    #: The record of a conductor by migration: the claimed amounts of its source and of its destination.
    recorded: dict[str, tuple[AllocationRequest, AllocationRequest]] = field(default_factory=dict)
    #: The store's record by migration: where the amounts of its source were when the destination was claimed.
    located: dict[str, Held] = field(default_factory=dict)
    #: The claim on the destination for which that record was made, by migration.
    destinations: dict[str, str | None] = field(default_factory=dict)

    def copy(self) -> "Model":
        """Return an independent copy of the model."""
        return replace(
            self,
            providers={u: replace(one, inventories=dict(one.inventories)) for u, one in self.providers.items()},
            holders={uuid: replace(one, held=dict(one.held)) for uuid, one in self.holders.items()},
            buried=set(self.buried),
            claim_ids=set(self.claim_ids),
            classes=set(self.classes),
            traits=set(self.traits),
            groups=dict(self.groups),
            recorded=dict(self.recorded),
            located=dict(self.located),
            destinations=dict(self.destinations),
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
        """Return the direct children of this provider."""
        return [other.uuid for other in self.providers.values() if other.parent == uuid]

    def is_below(self, uuid: str, other: str | None) -> bool:
        """Return whether a provider is ``other`` or one of its descendants."""
        parent = self.providers[uuid].parent
        return uuid == other or (parent is not None and self.is_below(parent, other))

    # --- Amounts ----------------------------------------------------------------------------------------------------

    def used(self) -> Counter[Pair]:
        """Return the sum of all allocations."""
        return sum((Counter(holder.held) for holder in self.holders.values()), Counter())

    def inventory(self, pair: Pair) -> Inventory | None:
        """Return the inventory of a provider and a class."""
        provider = self.providers.get(pair[0])
        return None if provider is None else provider.inventories.get(pair[1])

    # --- Answers ----------------------------------------------------------------------------------------------------

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
            root_provider_uuid=holder.root,
            owner=holder.owner,
        )

    # --- Faults -----------------------------------------------------------------------------------------------------

    def missing(self, uuids: Iterable[str | None]) -> list[errors.MoorageError]:
        """Return an error for each missing provider; None is ignored."""
        wanted = {uuid for uuid in uuids if uuid is not None}
        return [errors.ProviderNotFound(kind="resource provider", name=uuid) for uuid in wanted - self.providers.keys()]

    def unknown(self, classes: Iterable[str]) -> list[errors.MoorageError]:
        """Return an error for each missing resource class."""
        return [errors.ResourceClassNotFound(kind="resource class", name=name) for name in set(classes) - self.classes]

    def traitless(self, traits: Iterable[str]) -> list[errors.MoorageError]:
        """Return an error for each missing trait."""
        return [errors.TraitNotFound(kind="trait", name=name) for name in set(traits) - self.traits]

    def stale_generations(self, relied_on: Mapping[str, Collection[int | None]]) -> list[errors.MoorageError]:
        """Return an error for each given generation of a provider that is not the current one."""
        return [
            errors.ProviderGenerationConflict(provider_uuid=uuid, named=named, found=self.providers[uuid].generation)
            for uuid, generations in relied_on.items()
            for named in generations
            if named not in (None, self.providers[uuid].generation)
        ]


@singledispatch
def apply(message: Any, model: Model, found: Any) -> Any:
    """Carry out a message and return the answer; a refused message changes nothing.

    :param found: the store's answer, for values that the store may choose, such as the id of a claim.
    :raises Refused: the message is refused.
    """
    raise NotImplementedError(type(message))


def described(held: Held) -> dict[str, dict[str, int]]:
    """Return amounts by provider, then by resource class."""
    found: dict[str, dict[str, int]] = {}
    for (uuid, name), amount in held.items():
        found.setdefault(uuid, {})[name] = amount
    return found
