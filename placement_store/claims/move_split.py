"""Split the allocations of an instance and its migration into the parts of a move, and put them together again.

The allocations of the two consist of three parts: *old*, the amounts of the instance's request on the source; *new*,
the amounts that the destination is claimed with; and *foreign allocations*, all others, which other clients have
written to these consumers. On a provider outside the source's tree that the destination uses, the instance holds the
larger of old and new, and the migration nothing. Everywhere else, old belongs to the migration. A reshape may have
moved any of these amounts within the tree of their provider.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from moorage.model import Allocations, ProviderAmounts
from moorage.model.allocations import Amounts
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import Holding, Pair
from placement_store.claims import released_amounts
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey


@dataclass(frozen=True, slots=True)
class MovePlaces:
    """Locate the parts of a move: the roots of source and destination, and the providers that old and new name."""

    source_root_id: int | None
    #: The root of the destination, where ``new`` is.
    root_id: int | None
    keys: Mapping[str, ProviderKey]
    #: The ids of the providers of old outside the source's tree.
    pools: frozenset[int]
    #: The ids of the providers of new.
    used: frozenset[int]

    @classmethod
    def of(
        cls,
        keys: Mapping[str, ProviderKey],
        source_root_id: int | None,
        root_id: int | None,
        held: Amounts,
        new: Amounts,
    ) -> "MovePlaces":
        """Return the places of a move; providers that have been deleted are in none of them."""
        outside = {keys[uuid].id for uuid in held if uuid in keys and keys[uuid].root_id != source_root_id}
        used = {keys[uuid].id for uuid in new if uuid in keys}
        return cls(source_root_id, root_id, keys, frozenset(outside), frozenset(used))

    @property
    def on_source(self) -> bool:
        """Return whether the destination is the source itself."""
        return self.root_id == self.source_root_id

    @property
    def outside_source(self) -> frozenset[int]:
        """Return the ids of the providers of new outside the source's tree: there the larger of old and new counts."""
        of_source = {key.id for key in self.keys.values() if key.root_id == self.source_root_id}
        return self.used - of_source


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveParts:
    """Hold the parts of the allocations of an instance and its migration."""

    #: On the instance: new, the part of old that it holds itself, and foreign allocations.
    new: Counter[Pair]
    kept_old: Counter[Pair]
    foreign_on_instance: Counter[Pair]
    #: On the migration.
    old: Counter[Pair]
    foreign_on_migration: Counter[Pair]
    #: The ids of the providers in the trees of their hosts on which the instance and the migration have allocations.
    instance_tree: set[int]
    migration_tree: set[int]

    @property
    def reshaped_pools(self) -> set[int]:
        """Return the ids of the providers of old outside the source's tree, to which a reshape may have moved it."""
        return {provider_id for provider_id, _ in self.kept_old + self.old} - self.migration_tree

    @property
    def beyond_new(self) -> Counter[Pair]:
        """Return the amounts of old on the instance that exceed those of new."""
        return self.kept_old - self.new


def split_before_move(
    connection: Connection, instance: Holding, held: Amounts, places: MovePlaces, names: ResourceClassNames
) -> MoveParts:
    """Split the allocations of an instance that is placed on the source.

    :param held: the amounts that the source was claimed with.
    """
    in_tree = released_amounts.providers_on_host(connection, instance)
    old = +released_amounts.locate(connection, instance, held, places.keys, in_tree, names)
    foreign = Counter(instance.amounts) - old
    return MoveParts(
        new=Counter(),
        kept_old=old,
        foreign_on_instance=foreign,
        old=Counter(),
        foreign_on_migration=Counter(),
        instance_tree=in_tree,
        migration_tree=set(),
    )


def split_move(
    connection: Connection,
    instance: Holding,
    migration: Holding,
    held: Amounts,
    claimed: Amounts,
    places: MovePlaces,
    names: ResourceClassNames,
) -> MoveParts:
    """Split the allocations of an instance and its migration.

    :param held: the amounts that the source was claimed with.
    :param claimed: the amounts that the present destination was claimed with; ``places`` must be of this destination.
    """
    keys, mine = places.keys, instance.amounts
    instance_tree = released_amounts.providers_on_host(connection, instance)
    migration_tree = released_amounts.providers_on_host(connection, migration)
    existing = {uuid: resources for uuid, resources in claimed.items() if uuid in keys}
    named = Counter(allocations.numbered(existing, keys, names, connection))
    old = _old_on_migration(connection, migration, held, mine, named, places, migration_tree, names)
    # The instance holds the rest of old in the trees of these providers, as far as it is still allocated.
    rest = _not_on_migration(connection, held, old, places, migration_tree, names)
    # What new lacks where it was claimed is not where old was claimed, if old has as much there beyond new.
    beyond = Counter(allocations.numbered(rest, keys, names, connection)) - named
    rows = {
        pair: row._replace(amount=max(min(row.amount, named[pair]), row.amount - beyond[pair]))
        for pair, row in instance.rows.items()
    }
    new = +released_amounts.locate(connection, replace(instance, rows=rows), claimed, keys, instance_tree, names)
    # The instance has old where it has new: a reshape has moved it there, and first where there is more than new.
    first = sorted(new, key=lambda pair: (mine[pair] <= new[pair], pair))
    kept_old = +released_amounts.locate(connection, instance, rest, keys, instance_tree, names, first=first)
    return MoveParts(
        new=new,
        kept_old=kept_old,
        # If old and new are on one provider, the larger of the two counts.
        foreign_on_instance=Counter(mine) - (new | kept_old),
        old=old,
        foreign_on_migration=Counter(migration.amounts) - old,
        instance_tree=instance_tree,
        migration_tree=migration_tree,
    )


def _old_on_migration(
    connection: Connection,
    migration: Holding,
    held: Amounts,
    on_instance: Mapping[Pair, int],
    new: Mapping[Pair, int],
    places: MovePlaces,
    migration_tree: Collection[int],
    names: ResourceClassNames,
) -> Counter[Pair]:
    """Return the part of old on the migration.

    :param new: the amounts of the destination where they were claimed.
    """
    keys, outside = places.keys, places.outside_source
    shared = {uuid: resources for uuid, resources in held.items() if uuid in keys and keys[uuid].id in outside}
    others = {uuid: resources for uuid, resources in held.items() if uuid not in shared}
    # A reshape during the move may have moved these to providers that the destination uses.
    old = released_amounts.locate(connection, migration, others, keys, migration_tree, names)
    # The migration has nothing on shared providers. If a reshape had moved amounts of them before the move began, it
    # has these on providers that neither side names: on those of old, anything beyond old is foreign. If the instance
    # has more than new on a shared provider, old has stayed there.
    stayed = {pair: amount for pair, amount in on_instance.items() if amount > new.get(pair, 0)}
    lacking = Counter(allocations.numbered(shared, keys, names, connection)) - Counter(stayed)
    rows = {
        pair: row._replace(amount=row.amount - old[pair])
        for pair, row in migration.rows.items()
        if pair[0] not in places.pools | places.used
    }
    moved = _where_claimed(shared, lacking, keys, names, connection)
    return old + released_amounts.locate(connection, replace(migration, rows=rows), moved, keys, migration_tree, names)


def _not_on_migration(
    connection: Connection,
    held: Amounts,
    old: Counter[Pair],
    places: MovePlaces,
    migration_tree: Collection[int],
    names: ResourceClassNames,
) -> Amounts:
    """Return what the migration lacks of old in the trees outside the source of which the destination uses providers.

    :param old: the part of old on the migration.
    """
    keys = places.keys
    root_ids = {key.root_id for key in keys.values() if key.id in places.outside_source}
    shared = {uuid: resources for uuid, resources in held.items() if uuid in keys and keys[uuid].root_id in root_ids}
    if not shared:
        return shared
    claimed = Counter(allocations.numbered(shared, keys, names, connection))
    rest = claimed - old
    elsewhere = {pair: amount for pair, amount in (old - claimed).items() if pair[0] not in migration_tree}
    moved = released_amounts.by_root(connection, elsewhere)
    # First what was claimed from providers that the destination does not use: the instance has the other part of old.
    roots = dict(keys.values())
    for pair in sorted(rest, key=lambda pair: pair[0] in places.outside_source):
        place = roots[pair[0]], pair[1]
        found = min(rest[pair], moved[place])
        rest[pair] -= found
        moved[place] -= found
    return _where_claimed(shared, rest, keys, names, connection)


def _where_claimed(
    claimed: Amounts,
    amounts: Mapping[Pair, int],
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
    connection: Connection,
) -> dict[str, dict[str, int]]:
    """Return how much of a claim these amounts have, by the uuids of the providers and the names of the classes."""
    return {
        uuid: {name: amounts.get((keys[uuid].id, names.id_of(name, connection)), 0) for name in resources}
        for uuid, resources in claimed.items()
    }


def divide(
    old: Mapping[Pair, int], new: Mapping[Pair, int], outside_source: Collection[int]
) -> tuple[Counter[Pair], Counter[Pair]]:
    """Return the amounts of old and new that the instance holds, and those that the migration holds."""
    instance = Counter(new) | within(old, outside_source)
    return instance, Counter(old) - within(old, outside_source)


def within(amounts: Mapping[Pair, int], providers: Collection[int]) -> Counter[Pair]:
    """Return the amounts that belong to these providers."""
    return Counter({pair: amount for pair, amount in amounts.items() if pair[0] in providers})


def as_allocations(connection: Connection, amounts: Mapping[Pair, int], names: ResourceClassNames) -> Allocations:
    """Return amounts by provider uuid and class name."""
    if not amounts:
        return {}
    uuids = providers.uuids_of(connection, {provider_id for provider_id, _ in amounts})
    found: dict[str, dict[str, int]] = {}
    for (provider_id, number), amount in sorted(amounts.items()):
        found.setdefault(uuids[provider_id], {})[names.name_of(number, connection)] = amount
    return {uuid: ProviderAmounts(resources=resources) for uuid, resources in found.items()}
