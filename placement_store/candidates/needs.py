"""What every tree must have that can serve a request: asked of many trees at once, before any of them is loaded.

A need is met by any one provider of a tree, or of those that share with it, so a tree that meets them all may still
serve nothing; one that does not meet them all serves nothing for certain.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, or_, select

from moorage.model import ResourceRequest
from placement_store import bulk
from placement_store.candidates.batch import Batch
from placement_store.names import ResourceClassNames, TraitNames
from placement_store.schema import aggregates, inventories, provider_traits


@dataclass(frozen=True, slots=True)
class Needs:
    """What some provider must have, by the numbers of the store."""

    #: The smallest amount asked for, by class.
    room: Mapping[int, int]
    #: Of each of these, a provider must have one.
    traits: frozenset[frozenset[int]]
    aggregates: frozenset[frozenset[int]]

    @property
    def can_be_met(self) -> bool:
        """Whether every aggregate that is asked for is known at least; what nobody has ever named, nobody is in."""
        return frozenset() not in self.aggregates


def needs_of(connection: Connection, request: ResourceRequest) -> Needs:
    """Return what a request needs.

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
    aggregate_ids = _aggregate_ids(connection, frozenset().union(*wanted_aggregates))
    return Needs(
        room={class_ids[name]: amount for name, amount in smallest.items()},
        traits=_numbered(wanted_traits, trait_ids),
        aggregates=_numbered(wanted_aggregates, aggregate_ids),
    )


def roots_that_meet(connection: Connection, needs: Needs, batch: Batch) -> list[int]:
    """Return those roots of a batch whose trees meet all needs, with the help of the pools that they reach."""
    helped_by = {root_id: {*ids, *batch.helpers[root_id]} for root_id, ids in batch.providers.items()}
    met: dict[int, set[object]] = {}
    for id_, need in _met(connection, needs, batch, frozenset[int]().union(*helped_by.values())):
        met.setdefault(id_, set()).add(need)
    wanted = {*needs.room, *needs.traits, *needs.aggregates}
    return [
        root_id
        for root_id, ids in sorted(helped_by.items())
        if wanted <= set().union(*(met.get(id_, ()) for id_ in ids))
    ]


def _met(connection: Connection, needs: Needs, batch: Batch, ids: Collection[int]) -> Iterator[tuple[int, object]]:
    """Yield pairs of a provider and a need that it meets; a need for room goes by the number of its class."""
    # SELECT resource_provider_id, resource_class_id FROM inventories WHERE resource_provider_id IN (...)
    #    AND (resource_class_id = :class AND max_unit >= :n
    #         AND used + :n <= (total - reserved) * allocation_ratio OR ...)
    row = inventories.c
    roomy = or_(
        *(
            and_(
                row.resource_class_id == class_id,
                row.max_unit >= amount,
                row.used + amount <= (row.total - row.reserved) * row.allocation_ratio,
            )
            for class_id, amount in needs.room.items()
        )
    )
    having_room: Select[Any] = select(row.resource_provider_id, row.resource_class_id).where(roomy)
    yield from bulk.select_in(connection, having_room, row.resource_provider_id, sorted(ids))
    if numbers := frozenset[int]().union(*needs.traits):
        link = provider_traits.c
        having: Select[Any] = select(link.resource_provider_id, link.trait_id).where(link.trait_id.in_(sorted(numbers)))
        for id_, number in bulk.select_in(connection, having, link.resource_provider_id, sorted(ids)):
            yield from ((id_, need) for need in needs.traits if number in need)
    for id_ in ids:
        present = batch.aggregates_of.get(id_, frozenset())
        yield from ((id_, need) for need in needs.aggregates if not need.isdisjoint(present))


def _aggregate_ids(connection: Connection, uuids: Collection[str]) -> dict[str, int]:
    query = select(aggregates.c.uuid, aggregates.c.id)
    return {row.uuid: row.id for row in bulk.select_in(connection, query, aggregates.c.uuid, sorted(uuids))}


def _numbered(wanted: Iterable[frozenset[str]], numbers: Mapping[str, int]) -> frozenset[frozenset[int]]:
    """Return sets of names as sets of numbers; a name without a number is left out of its set."""
    return frozenset(frozenset(numbers[name] for name in names if name in numbers) for names in wanted)
