"""What an instance and its migration hold, taken apart and put together anew: which part is whose in a move.

Three parts add up to it. *Old* is what the source holds for the instance's own request, *new* what a destination is
claimed with, *extras* are all the rest: what others have put there. A provider that a destination uses outside the
source's tree is *shared* with it: there the instance holds the larger of old and new, and the migration nothing.
Everywhere else old is the migration's.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from moorage.model import AllocationRequest, Allocations, ProviderAmounts
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import Holding, Pair
from placement_store.claims import released
from placement_store.claims.released import Amounts
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey


def amounts_of(request: AllocationRequest) -> Amounts:
    """Return what is asked for, by provider uuid and class name."""
    return {uuid: part.resources for uuid, part in request.allocations.items()}


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of a move are: the tree of the source, and the providers that old and new name outside of it."""

    source_root_id: int | None
    #: Where ``new`` is.
    root_id: int | None
    keys: Mapping[str, ProviderKey]
    #: The ids of what old uses outside the source's tree.
    pools: frozenset[int]
    #: The ids of the providers that new uses.
    used: frozenset[int]

    @classmethod
    def of(
        cls,
        keys: Mapping[str, ProviderKey],
        source_root_id: int | None,
        root_id: int | None,
        held: Amounts,
        new: Amounts,
    ) -> "Places":
        """Return the places of a move; providers that are gone are in none of them."""
        outside = {keys[uuid].id for uuid in held if uuid in keys and keys[uuid].root_id != source_root_id}
        used = {keys[uuid].id for uuid in new if uuid in keys}
        return cls(source_root_id, root_id, keys, frozenset(outside), frozenset(used))

    @property
    def on_source(self) -> bool:
        """Whether the destination is the source itself."""
        return self.root_id == self.source_root_id

    @property
    def shared(self) -> frozenset[int]:
        """The ids of the providers of which old and new are counted once."""
        of_source = {key.id for key in self.keys.values() if key.root_id == self.source_root_id}
        return self.used - of_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What two consumers hold, by whose it is. ``kept_old`` is what the instance itself holds of old."""

    new: Counter[Pair]
    kept_old: Counter[Pair]
    extras: Counter[Pair]
    #: The migration's.
    old: Counter[Pair]
    left_extras: Counter[Pair]

    @property
    def beyond_new(self) -> Counter[Pair]:
        """What the instance holds of old beyond what new has of the same."""
        return self.kept_old - self.new


def before_a_move(
    connection: Connection, instance: Holding, held: Amounts, places: Places, names: ResourceClassNames
) -> Parts:
    """Take apart what an instance holds that is placed on the source."""
    in_tree = released.on_host(connection, instance)
    old = +released.located(connection, instance, held, places.keys, in_tree, names)
    extras = Counter(instance.amounts) - old
    return Parts(new=Counter(), kept_old=old, extras=extras, old=Counter(), left_extras=Counter())


def of_a_move(
    connection: Connection,
    instance: Holding,
    migration: Holding,
    held: Amounts,
    claimed: Amounts,
    places: Places,
    names: ResourceClassNames,
) -> Parts:
    """Take apart what an instance and its migration hold.

    :param claimed: what the present destination, whose places these are, was claimed with.
    """
    keys, mine = places.keys, instance.amounts
    new = +released.located(connection, instance, claimed, keys, released.on_host(connection, instance), names)
    present = {uuid: resources for uuid, resources in held.items() if uuid in keys}
    kept_old = Counter(
        {
            pair: min(amount, mine.get(pair, 0))
            for pair, amount in allocations.numbered(present, keys, names, connection).items()
            if pair[0] in places.shared
        }
    )
    tree = released.on_host(connection, migration)
    old = +released.located(connection, migration, held, keys, tree, names)
    old = Counter({pair: amount for pair, amount in old.items() if pair[0] not in places.shared})
    return Parts(
        new=new,
        kept_old=+kept_old,
        extras=Counter(mine) - (new | kept_old),
        old=old,
        left_extras=Counter(migration.amounts) - old,
    )


def divided(
    old: Mapping[Pair, int], new: Mapping[Pair, int], shared: Collection[int]
) -> tuple[Counter[Pair], Counter[Pair]]:
    """Return what instance and migration hold of old and new."""
    instance = Counter(new) | within(old, shared)
    return instance, Counter(old) - within(old, shared)


def within(amounts: Mapping[Pair, int], providers: Collection[int]) -> Counter[Pair]:
    """Return what of these amounts is of these providers."""
    return Counter({pair: amount for pair, amount in amounts.items() if pair[0] in providers})


def providers_in(amounts: Iterable[Pair]) -> set[int]:
    """Return the ids of the providers of these pairs."""
    return {provider_id for provider_id, _ in amounts}


def described(connection: Connection, amounts: Mapping[Pair, int], names: ResourceClassNames) -> Allocations:
    """Return amounts by provider uuid and class name."""
    if not amounts:
        return {}
    uuids = providers.uuids_of(connection, {provider_id for provider_id, _ in amounts})
    found: dict[str, dict[str, int]] = {}
    for (provider_id, number), amount in sorted(amounts.items()):
        found.setdefault(uuids[provider_id], {})[names.name_of(number, connection)] = amount
    return {uuid: ProviderAmounts(resources=resources) for uuid, resources in found.items()}
