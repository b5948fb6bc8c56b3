"""Filter trees in SQL by necessary conditions, many trees at once, before any of them is loaded.

A need is met if any provider of the tree, or any that shares with it, meets it. A tree that meets all needs may still
have no candidate; a tree that does not meet all of them certainly has none.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import Connection, and_, bindparam, or_, select

from moorage.model import ResourceRequest
from placement_store.candidates.load import Batch
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames, TraitNames
from placement_store.providers import aggregates
from placement_store.schema import inventories, provider_traits

#: The most classes of one statement: SQLite takes less than a thousand conditions that are joined with OR, and the
#: statements of each number of classes are kept. Arbitrary.
_CLASSES_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class Needs:
    """The necessary conditions of a request; classes, traits and aggregates are given by their ids in the store."""

    #: The smallest amount requested, by class.
    room: Mapping[int, int]
    #: For each of these sets, some provider must have at least one of its members.
    traits: frozenset[frozenset[int]]
    aggregates: frozenset[frozenset[int]]


def needs_of(connection: Connection, request: ResourceRequest) -> Needs:
    """Derive the needs of a request.

    :raises ResourceClassNotFound: one of its classes does not exist.
    :raises TraitNotFound: one of its traits, forbidden ones included, does not exist.
    """
    smallest: dict[str, int] = {}
    wanted_traits = {frozenset((trait,)) for trait in request.root_required}
    wanted_aggregates = set()
    named = {*request.root_required, *request.root_forbidden}
    for group in request.groups.values():
        for name, amount in group.resources.items():
            smallest[name] = min(amount, smallest.get(name, amount))
        wanted_traits |= {frozenset((trait,)) for trait in group.required} | {*map(frozenset, group.any_of)}
        wanted_aggregates |= {*map(frozenset, group.member_of)}
        named.update(group.forbidden)
    class_ids = ResourceClassNames.require(connection, smallest)
    trait_ids = TraitNames.require(connection, named.union(*wanted_traits))
    aggregate_ids = aggregates.known(connection, frozenset().union(*wanted_aggregates))
    return Needs(
        room={class_ids[name]: amount for name, amount in smallest.items()},
        traits=_numbered(wanted_traits, trait_ids),
        aggregates=_numbered(wanted_aggregates, aggregate_ids),
    )


def roots_that_meet(connection: Connection, needs: Needs, batch: Batch) -> list[int]:
    """Return the roots of a batch whose trees, with the pools that they reach, meet all needs."""
    helped_by = {
        root_id: {*(row.id for row in rows), *batch.helpers[root_id]} for root_id, rows in batch.providers.items()
    }
    met: dict[int, set[object]] = {}
    for id_, need in _met(connection, needs, batch, frozenset[int]().union(*helped_by.values())):
        met.setdefault(id_, set()).add(need)
    wanted = {*needs.room, *needs.traits, *needs.aggregates}
    return [
        root_id
        for root_id, ids in sorted(helped_by.items())
        if wanted <= set().union(*(met.get(id_, ()) for id_ in ids))
    ]


def _met(connection: Connection, needs: Needs, batch: Batch, ids: Set[int]) -> Iterator[tuple[int, object]]:
    """Yield pairs of a provider and a need that it meets; a need for room is referred to by the id of its class."""
    for id_, held in batch.inventories.items():
        for class_id, amount in needs.room.items():
            row = held.get(class_id)
            if row is not None and row.max_unit >= amount and row.used + amount <= row.capacity:
                yield id_, class_id
    unread = sorted(ids - batch.inventories.keys())
    for part in bulk.chunks([*needs.room.items()], _CLASSES_TOGETHER):
        amounts: dict[str, int] = {}
        for i, (class_id, amount) in enumerate(part):
            amounts |= {f"c{i}": class_id, f"n{i}": amount}
        yield from _having_room(len(part)).rows(connection, unread, **amounts)
    if numbers := frozenset[int]().union(*needs.traits):
        for id_, number in _HAVING_TRAITS.rows(connection, sorted(ids), numbers=sorted(numbers)):
            yield from ((id_, need) for need in needs.traits if number in need)
    for id_ in ids:
        present = batch.aggregates_of.get(id_, {})
        yield from ((id_, need) for need in needs.aggregates if not need.isdisjoint(present))


@lru_cache
def _having_room(classes: int) -> bulk.Lookup:
    """Build the query for providers with room for any of ``classes`` amounts; a row names one class with room.

    SELECT resource_provider_id, resource_class_id FROM inventories
     WHERE (resource_class_id = :c0 AND max_unit >= :n0 AND used + :n0 <= (total - reserved) * allocation_ratio OR ...)
       AND resource_provider_id IN (...)
    """
    row = inventories.c
    amounts = [bindparam(f"n{i}", type_=row.used.type) for i in range(classes)]
    roomy = or_(
        *(
            and_(
                row.resource_class_id == bindparam(f"c{i}"),
                row.max_unit >= amount,
                row.used + amount <= (row.total - row.reserved) * row.allocation_ratio,
            )
            for i, amount in enumerate(amounts)
        )
    )
    return bulk.Lookup(select(row.resource_provider_id, row.resource_class_id).where(roomy), row.resource_provider_id)


_HAVING_TRAITS = bulk.Lookup(
    select(provider_traits.c.resource_provider_id, provider_traits.c.trait_id).where(
        provider_traits.c.trait_id.in_(bindparam("numbers", expanding=True))
    ),
    provider_traits.c.resource_provider_id,
)


def _numbered(wanted: Iterable[frozenset[str]], numbers: Mapping[str, int]) -> frozenset[frozenset[int]]:
    """Translate sets of names to sets of ids; a name without an id is left out of its set."""
    return frozenset(frozenset(numbers[name] for name in names if name in numbers) for names in wanted)
