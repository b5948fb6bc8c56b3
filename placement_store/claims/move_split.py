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
from placement_store.claims.source_amounts import SourceAmounts
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey


@dataclass(frozen=True, slots=True)
class MovePlaces:
    """Locate the parts of a move; providers that have been deleted are in none of them."""

    keys: Mapping[str, ProviderKey]
    source_root_id: int | None
    #: The root of the destination, where ``new`` is.
    root_id: int | None
    #: The uuids of the providers that the source was claimed from, and of those that the destination is claimed from.
    held: Collection[str]
    new: Collection[str]

    @property
    def pools(self) -> set[int]:
        """Return the ids of the providers of old outside the source's tree."""
        found = (self.keys[uuid] for uuid in self.held if uuid in self.keys)
        return {key.id for key in found if key.root_id != self.source_root_id}

    @property
    def used(self) -> set[int]:
        """Return the ids of the providers of new."""
        return {self.keys[uuid].id for uuid in self.new if uuid in self.keys}

    @property
    def on_source(self) -> bool:
        """Return whether the destination is the source itself."""
        return self.root_id == self.source_root_id

    @property
    def outside_source(self) -> set[int]:
        """Return the ids of the providers of new outside the source's tree: there the larger of old and new counts."""
        of_source = {key.id for key in self.keys.values() if key.root_id == self.source_root_id}
        return self.used - of_source


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveParts:
    """Hold the parts of the allocations of an instance and its migration."""

    places: MovePlaces
    #: On the instance: the part of old that it holds itself, and foreign allocations.
    kept_old: Counter[Pair]
    #: The amounts of ``kept_old`` that the instance holds in addition to those of new.
    beyond_new: Counter[Pair]
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


def split_move(
    connection: Connection,
    instance: Holding,
    migration: Holding,
    source: SourceAmounts,
    claimed: Amounts,
    places: MovePlaces,
    names: ResourceClassNames,
) -> MoveParts:
    """Split the allocations of an instance and its migration.

    :param claimed: the amounts that the present destination was claimed with; ``places`` must be of this destination.
    """
    keys, roots = places.keys, dict(places.keys.values())
    instance_tree = released_amounts.providers_on_host(connection, instance)
    migration_tree = released_amounts.providers_on_host(connection, migration)
    named, deleted = released_amounts.numbered(connection, claimed, keys, names)
    old = _old_on_migration(connection, migration, source, instance.amounts, named, places, migration_tree, names)
    rest = _not_on_migration(connection, source, old, places, migration_tree, names)
    left = Counter(instance.amounts)

    def take(part: Counter[Pair], others: Counter[Pair], gone: Mapping[int, int] | None = None) -> Counter[Pair]:
        # What a part lacks where it was claimed is not where the others were claimed.
        free = {pair: max(min(amount, part[pair]), amount - others[pair]) for pair, amount in left.items()}
        holding = _holding_only(instance, free)
        found = +released_amounts.locate_pairs(connection, holding, part, roots, instance_tree, gone)
        left.subtract(found)
        return found

    # As far as old and new were claimed from the same provider, they share the amount. A reshape keeps the sum of what
    # they share, and of what each has for itself.
    of_both = take(rest & named, (rest | named) - (rest & named))
    of_new = take(named - rest, rest - named, deleted)
    of_old = take(rest - named, Counter())
    kept_old = of_both + of_old
    if not source.is_recorded:
        # What old lacks now is shared too: a reshape may have moved it to a provider of new before the move began.
        lacking = not_found(connection, rest - named, of_old, roots)
        holding = _holding_only(instance, of_new)
        kept_old += released_amounts.locate_pairs(connection, holding, lacking, roots, instance_tree)
    return MoveParts(
        places=places,
        kept_old=kept_old,
        beyond_new=of_old,
        foreign_on_instance=+left,
        old=old,
        foreign_on_migration=Counter(migration.amounts) - old,
        instance_tree=instance_tree,
        migration_tree=migration_tree,
    )


def _old_on_migration(
    connection: Connection,
    migration: Holding,
    source: SourceAmounts,
    on_instance: Mapping[Pair, int],
    new: Mapping[Pair, int],
    places: MovePlaces,
    migration_tree: Collection[int],
    names: ResourceClassNames,
) -> Counter[Pair]:
    """Return the part of old on the migration.

    :param new: the amounts of the destination where they were claimed.
    """
    keys, outside, held = places.keys, places.outside_source, source.amounts
    shared = {uuid: resources for uuid, resources in held.items() if uuid in keys and keys[uuid].id in outside}
    unshared = {uuid: resources for uuid, resources in held.items() if uuid not in shared}
    # A reshape during the move may have moved these to providers that the destination uses.
    old = released_amounts.locate(connection, migration, unshared, keys, migration_tree, names)
    if source.is_recorded:
        # The migration has nothing of shared providers.
        return old
    # If a reshape had moved amounts of shared providers before the move began, the migration has these on providers
    # that neither side names: on those of old, anything beyond old is foreign. If the instance has more than new on a
    # shared provider, old has stayed there.
    stayed = {pair: amount for pair, amount in on_instance.items() if amount > new.get(pair, 0)}
    lacking = Counter(allocations.numbered(shared, keys, names, connection)) - Counter(stayed)
    left = Counter(migration.amounts) - old
    others = _holding_only(migration, left - within(left, places.pools | places.used))
    return old + released_amounts.locate_pairs(connection, others, lacking, dict(keys.values()), migration_tree)


def _not_on_migration(
    connection: Connection,
    source: SourceAmounts,
    old: Counter[Pair],
    places: MovePlaces,
    migration_tree: Collection[int],
    names: ResourceClassNames,
) -> Counter[Pair]:
    """Return the part of old on the instance, by the providers where it was located or claimed.

    :param old: the part of old on the migration.
    """
    keys, outside, roots = places.keys, places.outside_source, dict(places.keys.values())
    claimed, _ = released_amounts.numbered(connection, source.amounts, keys, names)
    if source.is_recorded:
        return within(claimed, outside)
    # In the trees of which the destination uses providers, it is what the migration lacks.
    trees = {roots[provider_id] for provider_id in outside}
    claimed = within(claimed, {provider_id for provider_id, root_id in roots.items() if root_id in trees})
    found = Counter({pair: amount for pair, amount in old.items() if pair[0] not in migration_tree})
    # First what was claimed from providers that the destination does not use: the instance has the other part of old.
    return not_found(connection, claimed, found, roots, last=outside)


def not_found(
    connection: Connection,
    claimed: Counter[Pair],
    found: Counter[Pair],
    roots: Mapping[int, int],
    last: Collection[int] = (),
) -> Counter[Pair]:
    """Return what has not been found of claimed amounts, neither where they were claimed nor elsewhere in its tree.

    :param last: the providers to which amounts found elsewhere in their tree are assigned last.
    """
    lacking = claimed - found
    if not lacking:
        return lacking
    elsewhere = released_amounts.by_root(connection, found - claimed)
    for provider_id, number in sorted(lacking, key=lambda pair: (pair[0] in last, pair)):
        place = roots[provider_id], number
        covered = min(lacking[provider_id, number], elsewhere[place])
        lacking[provider_id, number] -= covered
        elsewhere[place] -= covered
    return +lacking


def _holding_only(holding: Holding, amounts: Mapping[Pair, int]) -> Holding:
    """Return a consumer as if it held only these of its amounts."""
    return replace(holding, rows={pair: holding.rows[pair]._replace(amount=n) for pair, n in amounts.items()})


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
