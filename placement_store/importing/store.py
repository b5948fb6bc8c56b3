"""Read the content of a store, and write that of a Placement service into an empty one."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs
from sqlalchemy import Connection, Select, select

from moorage import errors
from moorage.model import Inventory
from placement_store.db import bulk, change_feed
from placement_store.db.names import CUSTOM_NAMESPACE, Names, ResourceClassNames, TraitNames
from placement_store.importing.content import Content, ImportedConsumer, ImportedProvider, Times, differences
from placement_store.providers.aggregates import numbers as provider_aggregate_ids
from placement_store.schema import (
    aggregates,
    allocations,
    consumers,
    inventories,
    provider_aggregates,
    provider_traits,
    resource_classes,
    resource_providers,
    traits,
)

LOG = logging.getLogger(__name__)

_NEVER = Times(0.0, 0.0)
#: The columns of an imported consumer, in the order of its fields.
_OF_CONSUMER = ("consumer_type", "project_id", "user_id", "generation")


# --- Reading --------------------------------------------------------------------------------------------------------


def read(connection: Connection) -> Content:
    """Read all content of the store; the transaction must read one snapshot or hold locks."""
    provider = resource_providers.alias("provider")
    parent, root = resource_providers.alias("parent"), resource_providers.alias("root")
    described = (
        select(provider.c.uuid, provider.c.name, provider.c.generation, parent.c.uuid, root.c.uuid)
        .select_from(provider)
        .outerjoin(parent, parent.c.id == provider.c.parent_provider_id)
        .join(root, root.c.id == provider.c.root_provider_id)
    )
    holding = select(consumers.c.uuid, *(consumers.c[name] for name in _OF_CONSUMER)).where(
        consumers.c.id.in_(select(allocations.c.consumer_id))
    )
    amounts = [inventories.c[name] for name in Inventory.__struct_fields__]
    return Content(
        resource_classes=_names(connection, resource_classes, inventories.c.resource_class_id),
        traits=_names(connection, traits, provider_traits.c.trait_id),
        providers={uuid: ImportedProvider(*rest) for uuid, *rest in connection.execute(described)},
        inventories={
            (uuid, name): Inventory(**dict(zip(Inventory.__struct_fields__, rest, strict=True)))
            for uuid, name, *rest in connection.execute(_linked(inventories, resource_classes.c.name, *amounts))
        },
        provider_traits=_pairs(connection, _linked(provider_traits, traits.c.name)),
        provider_aggregates=_pairs(connection, _linked(provider_aggregates, aggregates.c.uuid)),
        consumers={uuid: ImportedConsumer(*rest) for uuid, *rest in connection.execute(holding)},
        allocations={
            (consumer, uuid, name): used
            for uuid, name, consumer, used in connection.execute(
                _linked(allocations, resource_classes.c.name, consumers.c.uuid, allocations.c.used).join(
                    consumers, consumers.c.id == allocations.c.consumer_id
                )
            )
        },
    )


def _names(connection: Connection, table: Any, used: Any) -> dict[str, None]:
    """Return the existing names that are custom or used by a provider."""
    query = select(table.c.name).where(
        table.c.deleted.is_(False),
        table.c.name.startswith(CUSTOM_NAMESPACE, autoescape=True) | table.c.id.in_(select(used)),
    )
    return dict.fromkeys(connection.scalars(query))


def _linked(table: Any, name: Any, *more: Any) -> Select[Any]:
    """Return a query for the rows of a table with their providers' uuids, and the names of the linked rows."""
    to = {resource_classes: "resource_class_id", traits: "trait_id", aggregates: "aggregate_id"}[name.table]
    return (
        select(resource_providers.c.uuid, name, *more)
        .select_from(table)
        .join(resource_providers, resource_providers.c.id == table.c.resource_provider_id)
        .join(name.table, name.table.c.id == table.c[to])
    )


def _pairs(connection: Connection, query: Select[Any]) -> dict[tuple[str, str], None]:
    return dict.fromkeys((uuid, name) for uuid, name in connection.execute(query))


# --- Writing --------------------------------------------------------------------------------------------------------


def write(connection: Connection, source: Content) -> None:
    """Write all content into an empty store, and compare the store with the source in the same transaction.

    :raises ConfigurationError: the store is not empty, or differs from the source afterwards.
    """
    # If the answer to an earlier COMMIT was lost, the store has all of it already.
    if not differences(source, read(connection)):
        return
    check_empty(connection, source)
    class_ids = _write_names(connection, ResourceClassNames, source.resource_classes)
    trait_ids = _write_names(connection, TraitNames, source.traits)
    ids = _write_providers(connection, source)
    _write_inventories(connection, source, ids, class_ids)
    aggregate_ids = provider_aggregate_ids(connection, {uuid for _, uuid in source.provider_aggregates})
    for table, column, linked, pairs in (
        (provider_traits, "trait_id", trait_ids, source.provider_traits),
        (provider_aggregates, "aggregate_id", aggregate_ids, source.provider_aggregates),
    ):
        rows = [{"resource_provider_id": ids[uuid], column: linked[name]} for uuid, name in pairs]
        _insert(connection, table, rows)
    _write_allocations(connection, source, ids, class_ids)
    if found := differences(source, read(connection)):
        raise errors.ConfigurationError(reason=f"nothing was imported, for it would differ: {'; '.join(found)}")
    # Last, because readers of the feed wait only a moment for a number that was taken and not committed.
    change_feed.record(connection, provider_ids=ids.values())


def check_empty(connection: Connection, source: Content) -> None:
    """Refuse a store that has providers or consumers.

    :raises ConfigurationError: the store has some; the error names how it differs from the source.
    """
    for table, what in ((resource_providers, "resource providers"), (consumers, "consumers")):
        if connection.execute(select(table.c.id).limit(1)).first():
            found = "; ".join(differences(source, read(connection)))
            reason = f"the store has {what} of its own: import into an empty one, as `moorage db upgrade` creates it"
            raise errors.ConfigurationError(reason=f"{reason}. It differs from the source in {found}")


def _write_names(connection: Connection, kind: type[Names], names: Mapping[str, None]) -> dict[str, int]:
    """Create the missing names; return the ids of all."""
    kind.create(connection, names.keys())
    return kind.require(connection, names.keys(), lock=True)


def _write_providers(connection: Connection, source: Content) -> dict[str, int]:
    """Insert providers, parents before their children; return their ids by uuid."""
    ids: dict[str, int] = {}
    pending = dict(source.providers)
    while pending:
        level = {uuid: one for uuid, one in pending.items() if one.parent is None or one.parent in ids}
        rows = [
            {
                "uuid": uuid,
                "name": one.name,
                "generation": one.generation,
                "root_provider_id": one.parent and ids[one.root],
                "parent_provider_id": one.parent and ids[one.parent],
                **source.times.get(uuid, _NEVER)._asdict(),
            }
            for uuid, one in level.items()
        ]
        _insert(connection, resource_providers, rows)
        ids |= _ids(connection, resource_providers, level)
        if not all(one.parent for one in level.values()):
            # UPDATE resource_providers SET root_provider_id = id WHERE root_provider_id IS NULL
            roots = resource_providers.update().where(resource_providers.c.root_provider_id.is_(None))
            connection.execute(roots.values(root_provider_id=resource_providers.c.id))
        for uuid in level:
            del pending[uuid]
    return ids


def _write_inventories(
    connection: Connection, source: Content, ids: Mapping[str, int], class_ids: Mapping[str, int]
) -> None:
    used: dict[tuple[str, str], int] = {}
    for (_, uuid, name), amount in source.allocations.items():
        used[uuid, name] = used.get((uuid, name), 0) + amount
    rows = [
        {
            "resource_provider_id": ids[uuid],
            "resource_class_id": class_ids[name],
            "used": used.get((uuid, name), 0),
            **structs.asdict(inventory),
        }
        for (uuid, name), inventory in source.inventories.items()
    ]
    _insert(connection, inventories, rows)


def _write_allocations(
    connection: Connection, source: Content, ids: Mapping[str, int], class_ids: Mapping[str, int]
) -> None:
    """Insert consumers as clients over HTTP would have written them, and their allocations."""
    rows = [
        {
            "uuid": uuid,
            **dict(zip(_OF_CONSUMER, one, strict=True)),
            "known_over_rpc": False,
            **source.times.get(uuid, _NEVER)._asdict(),
        }
        for uuid, one in source.consumers.items()
    ]
    _insert(connection, consumers, rows)
    consumer_ids = _ids(connection, consumers, source.consumers)
    rows = [
        {
            "consumer_id": consumer_ids[consumer],
            "resource_provider_id": ids[provider],
            "resource_class_id": class_ids[name],
            "used": used,
        }
        for (consumer, provider, name), used in source.allocations.items()
    ]
    _insert(connection, allocations, rows)


def _ids(connection: Connection, table: Any, uuids: Iterable[str]) -> dict[str, int]:
    query = select(table.c.uuid, table.c.id)
    return {row.uuid: row.id for row in bulk.select_in(connection, query, table.c.uuid, sorted(uuids))}


#: Rows in one statement: a million parameters would fill the memory of the server.
_TOGETHER = 2_000


def _insert(connection: Connection, table: Any, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _TOGETHER):
        LOG.info("Writing %s: %s of %s", table.name.replace("_", " "), f"{start:,}", f"{len(rows):,}")
        bulk.insert(connection, table, rows[start : start + _TOGETHER])
