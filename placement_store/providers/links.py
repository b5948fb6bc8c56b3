"""Read and rewrite the association tables of providers with traits and aggregates."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Column, Connection, Select, select

from placement_store.db import bulk


def held(
    connection: Connection, link: Column[int], label: Column[str], ids: Collection[int] | None
) -> dict[int, dict[str, int]]:
    """Return the traits or aggregates of these providers, or of all, by provider id: their ids by name.

    :param link: the column of the association table with the id of the trait or aggregate.
    :param label: the column of the trait's or aggregate's own table with its name.
    """
    query, lookup = _queries(link, label)
    rows: Iterable[Any] = connection.execute(query) if ids is None else lookup.rows(connection, sorted(ids))
    found: dict[int, dict[str, int]] = {}
    # One string for each name, however many providers have it.
    names: dict[int, str] = {}
    for id_, number, name in rows:
        found.setdefault(id_, {})[names.setdefault(number, name)] = number
    return found


@lru_cache
def _queries(link: Column[int], label: Column[str]) -> tuple[Select[Any], bulk.Lookup]:
    # SELECT l.resource_provider_id, l.trait_id, t.name FROM provider_traits l JOIN traits t ON t.id = l.trait_id ...
    provider_id = link.table.c.resource_provider_id
    query = select(provider_id, link, label).select_from(link.table.join(label.table, label.table.c.id == link))
    return query, bulk.Lookup(query, provider_id)


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
