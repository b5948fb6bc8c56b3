"""Read and rewrite the association tables of providers with traits and aggregates."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Column, Connection, func, select

from placement_store.db import bulk


def held(
    connection: Connection, link: Column[int], label: Column[str], ids: Collection[int]
) -> dict[int, Mapping[int, str]]:
    """Return the traits or aggregates of these providers by provider id: their names by their ids.

    Providers with equal sets share one mapping: thousands of hosts with hundreds of traits have few different sets.

    :param link: the column of the association table with the id of the trait or aggregate.
    :param label: the column of the trait's or aggregate's own table with its name.
    """
    numbers_of = _numbers(connection, link, ids)
    sets = set(numbers_of.values())
    names = dict(bulk.pairs(label.table.c.id, label).rows(connection, sorted(frozenset().union(*sets))))
    # Traits and aggregates are never deleted from their tables.
    named = {known: {number: names[number] for number in known} for known in sets}
    return {id_: named[known] for id_, known in numbers_of.items()}


def names_by_id(
    connection: Connection, link: Column[int], label: Column[str], ids: Collection[int]
) -> dict[int, frozenset[str]]:
    """Return the names of the traits or aggregates of these providers by provider id; equal sets are one object."""
    found = held(connection, link, label, ids)
    sets = {id(names): frozenset(names.values()) for names in found.values()}
    return {id_: sets[id(names)] for id_, names in found.items()}


def _numbers(connection: Connection, link: Column[int], ids: Collection[int]) -> dict[int, frozenset[int]]:
    """Return the ids of the traits or aggregates of each provider; equal sets are one object.

    Reading one row per provider takes a twentieth of the time of reading one row per association. The database may
    truncate the text without an error (MySQL by default after 1,024 characters): if its count or sum is wrong, the
    associations of the provider are read one by one.
    """
    split: dict[tuple[int, int, str], frozenset[int] | None] = {}
    found: dict[int, frozenset[int]] = {}
    cut = []
    for id_, *text in _texts(link).rows(connection, sorted(ids)):
        key = tuple(text)
        if key not in split:
            split[key] = _split(*key)
        if (numbers := split[key]) is None:
            cut.append(id_)
        else:
            found[id_] = numbers
    apart: dict[int, set[int]] = {}
    for id_, number in bulk.pairs(link.table.c.resource_provider_id, link).rows(connection, cut):
        apart.setdefault(id_, set()).add(number)
    found |= {id_: frozenset(numbers) for id_, numbers in apart.items()}
    # Texts in another order, and sets that were read one by one, may be equal sets.
    one_of = {numbers: numbers for numbers in found.values()}
    return {id_: one_of[numbers] for id_, numbers in found.items()}


def _split(count: int, total: int, text: str) -> frozenset[int] | None:
    """Return the numbers of a text; null if it was truncated: within a number, only the sum shows it."""
    numbers = [int(number) for number in text.split(",") if number]
    return frozenset(numbers) if len(numbers) == count and sum(numbers) == total else None


@lru_cache
def _texts(link: Column[int]) -> bulk.Lookup:
    # SELECT resource_provider_id, count(*), sum(trait_id), group_concat(trait_id) FROM provider_traits ... GROUP BY 1
    provider_id = link.table.c.resource_provider_id
    query = select(provider_id, func.count(), func.sum(link), func.group_concat(link)).group_by(provider_id)
    return bulk.Lookup(query, provider_id)


def rewrite(
    connection: Connection,
    link: Column[int],
    before: Mapping[int, Collection[int]],
    wanted: Mapping[int, Collection[int]],
) -> None:
    """Delete surplus associations and insert missing ones, by provider id; the providers' rows must be locked."""
    provider_id = link.table.c.resource_provider_id
    new: list[dict[str, Any]] = []
    for id_, numbers in sorted(wanted.items()):
        present = set(before.get(id_, ()))
        if gone := sorted(present.difference(numbers)):
            connection.execute(link.table.delete().where(provider_id == id_, link.in_(gone)))
        new += [{provider_id.name: id_, link.name: number} for number in sorted(set(numbers) - present)]
    bulk.insert(connection, link.table, new)


def add_and_remove(
    connection: Connection, link: Column[int], number: int, joining: Collection[int], leaving: Collection[int]
) -> set[int]:
    """Associate providers with one trait or aggregate, and others no longer; return the ids of those that have changed.

    The providers' rows must be locked.
    """
    provider_id = link.table.c.resource_provider_id
    query = select(provider_id).where(link == number)
    inside = {id_ for (id_,) in bulk.select_in(connection, query, provider_id, sorted({*joining, *leaving}))}
    new, gone = set(joining) - inside, inside.intersection(leaving)
    bulk.insert(connection, link.table, [{provider_id.name: id_, link.name: number} for id_ in sorted(new)])
    bulk.change_in(connection, link.table.delete().where(link == number), provider_id, sorted(gone))
    return new | gone
