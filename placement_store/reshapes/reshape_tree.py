"""Find, read and lock the tree of a reshape by move instructions."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, select

from moorage import errors, ids
from placement_store.claims import isolated_groups
from placement_store.claims.isolated_groups import Groups
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.providers import rows as providers
from placement_store.providers.rows import InventoryRow
from placement_store.reshapes.distribution import AllocationKey, InventoryKey
from placement_store.schema import allocations, consumers, inventories, resource_providers


class TreeProvider(NamedTuple):
    """A provider of the tree."""

    id: int
    uuid: str
    name: str
    parent_uuid: str | None


@dataclass(frozen=True, slots=True)
class ReshapeTree:
    """One tree with its inventories of some classes and their allocations, from one snapshot."""

    #: By uuid.
    providers: Mapping[str, TreeProvider]
    inventories: Mapping[InventoryKey, InventoryRow]
    held: Mapping[AllocationKey, int]
    #: By consumer, the providers of its isolated groups by suffix; only consumers that have such groups.
    isolated: Mapping[str, Groups] = field(default_factory=dict)
    #: By instance and provider, the migration whose isolated groups are served there by amounts of the instance.
    of_migrations: Mapping[tuple[str, str], str] = field(default_factory=dict)


class Reference(NamedTuple):
    """A reference to a provider in a request, by uuid or by name, and its path."""

    path: str
    text: str


def read(connection: Connection, root_id: int, classes: Collection[str], names: ResourceClassNames) -> ReshapeTree:
    """Read the tree of this root, with its inventories of these classes; nothing is locked.

    :raises ResourceClassNotFound: a class does not exist.
    """
    by_number = {names.id_of(name, connection): name for name in classes}
    table = resource_providers.c
    query = select(table.id, table.uuid, table.name, table.parent_provider_id)
    rows = connection.execute(query.where(table.root_provider_id == root_id).order_by(table.id)).all()
    uuids = {row.id: row.uuid for row in rows}
    found: dict[InventoryKey, InventoryRow] = {}
    held: dict[AllocationKey, int] = {}
    isolated: dict[str, Groups] = {}
    of_migrations: dict[tuple[str, str], str] = {}
    rows_held = _held(connection, sorted(uuids), sorted(by_number))
    for provider_id, class_id, *amounts, consumer_uuid, groups, amount, migration_uuid, of_source in rows_held:
        pair = (uuids[provider_id], by_number[class_id])
        found[pair] = InventoryRow(*amounts)
        if consumer_uuid is not None:
            held[consumer_uuid, *pair] = amount
            if groups is not None and consumer_uuid not in isolated:
                isolated[consumer_uuid] = isolated_groups.decoded(groups)
            if migration_uuid is not None:
                of_migrations[consumer_uuid, pair[0]] = migration_uuid
                isolated[migration_uuid] = isolated_groups.decoded(of_source)
    described = (TreeProvider(row.id, row.uuid, row.name, uuids.get(row.parent_provider_id)) for row in rows)
    return ReshapeTree({one.uuid: one for one in described}, found, held, isolated, of_migrations)


def lock(
    connection: Connection, before: ReshapeTree, root_id: int, classes: Collection[str], names: ResourceClassNames
) -> ReshapeTree:
    """Lock the tree until the transaction ends, and read it again.

    Inventories and allocations may have changed since it was read ``before``.

    :raises StaleRead: providers have been added, removed or moved since; a new transaction may succeed.
    """
    # Every writer of an inventory or an allocation locks the provider's row first, so nothing changes from here on.
    providers.lock(connection, [one.id for one in before.providers.values()])
    tree = read(connection, root_id, classes, names)
    if tree.providers != before.providers:
        raise StaleRead
    return tree


def root_of(connection: Connection, references: Sequence[Reference]) -> int:
    """Return the id of the root of all these providers; those that do not exist are ignored.

    :raises InvalidRequest: they belong to more than one tree.
    :raises ProviderNotFound: none of them exists.
    """
    table = resource_providers.c
    texts = sorted({reference.text for reference in references})
    roots: dict[str, int] = dict(bulk.pairs(table.name, table.root_provider_id).rows(connection, texts))
    # A uuid takes precedence over an equal name, but a name over another spelling of a uuid.
    uuids = {text: uuid for text in texts if (uuid := ids.canonical(text)) == text or (uuid and text not in roots)}
    by_uuid = dict(bulk.pairs(table.uuid, table.root_provider_id).rows(connection, sorted(set(uuids.values()))))
    roots |= {text: by_uuid[uuid] for text, uuid in uuids.items() if uuid in by_uuid}
    present = [reference for reference in references if reference.text in roots]
    if not present:
        raise errors.ProviderNotFound(name=references[0].text)
    root_id = roots[present[0].text]
    for reference in present:
        if roots[reference.text] != root_id:
            raise errors.InvalidRequest(
                path=reference.path,
                reason=f"{reference.text} and {present[0].text} are in different trees; one request changes one tree",
            )
    return root_id


def _held(connection: Connection, ids: Sequence[int], class_ids: Sequence[int]) -> Iterator[Any]:
    """Return each inventory once per consumer with an allocation of it, and once if there is none."""
    # One statement, which reads one snapshot, whether the tree is locked or not.
    #
    # SELECT i.*, c.uuid, a.used, m.uuid FROM inventories i
    #   LEFT JOIN allocations a ON a.resource_provider_id = i.resource_provider_id AND a.resource_class_id = ...
    #   LEFT JOIN consumers c ON c.id = a.consumer_id
    #   LEFT JOIN consumers m ON m.migration_of = c.uuid AND ... AND NOT EXISTS (SELECT ... of m on this provider)
    #  WHERE i.resource_provider_id IN (...) AND i.resource_class_id IN (...)
    of_it = and_(
        allocations.c.resource_provider_id == inventories.c.resource_provider_id,
        allocations.c.resource_class_id == inventories.c.resource_class_id,
    )
    migrations, others = consumers.alias("migrations"), allocations.alias("others")
    of_migration = select(others.c.consumer_id).where(
        others.c.consumer_id == migrations.c.id, others.c.resource_provider_id == inventories.c.resource_provider_id
    )
    serves = and_(
        migrations.c.migration_of == consumers.c.uuid,
        migrations.c.claim_id.is_not(None),
        migrations.c.isolated_groups.is_not(None),
        ~of_migration.correlate(migrations, inventories).exists(),
    )
    query = (
        select(
            inventories.c.resource_provider_id,
            inventories.c.resource_class_id,
            *(inventories.c[name] for name in InventoryRow._fields),
            consumers.c.uuid,
            consumers.c.isolated_groups,
            allocations.c.used.label("amount"),
            migrations.c.uuid.label("migration_uuid"),
            migrations.c.isolated_groups.label("groups_of_source"),
        )
        .select_from(
            inventories.outerjoin(allocations, of_it)
            .outerjoin(consumers, consumers.c.id == allocations.c.consumer_id)
            .outerjoin(migrations, serves)
        )
        .where(inventories.c.resource_class_id.in_(class_ids))
    )
    return bulk.select_in(connection, query, inventories.c.resource_provider_id, ids)
