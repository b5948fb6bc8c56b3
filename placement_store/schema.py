"""Define the tables of the main schema."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
    false,
)

from moorage.db.columns import document_type, id_type, name_type, uuid_type
from moorage.db.schemas import Schema
from moorage.service.stored_requests import request_table

METADATA = MetaData()

#: The number of a host's description after a provider in the tree of one of its nodes was deleted.
PROVIDER_DELETED = -2

#: The number of a description that came without the host's providers.
INCOMPLETE = -3


# Tables whose rows are deleted have `sqlite_autoincrement`: without it, SQLite reuses the id of a deleted last row.
def _id() -> Column[int]:
    return Column("id", id_type(), primary_key=True, autoincrement=True)


# --- Names ----------------------------------------------------------------------------------------------------------


def _names(table: str) -> Table:
    # A row stays when its name is deleted: every process caches ids, so an id must never stand for another name.
    return Table(
        table,
        METADATA,
        _id(),
        Column("name", name_type(), nullable=False, unique=True),
        Column("deleted", Boolean, nullable=False, default=False, server_default=false()),
    )


resource_classes = _names("resource_classes")
traits = _names("traits")
aggregates = Table("aggregates", METADATA, _id(), Column("uuid", uuid_type(), nullable=False, unique=True))

# --- Providers ------------------------------------------------------------------------------------------------------

resource_providers = Table(
    "resource_providers",
    METADATA,
    _id(),
    Column("uuid", uuid_type(), nullable=False, unique=True),
    Column("name", name_type(), nullable=False, unique=True),
    # Bumped as in Placement; a writer names the generation that it has read.
    Column("generation", id_type(), nullable=False, default=0),
    # Bumped by every change of the provider, its inventories, traits, aggregates, allocations; host views compare it.
    Column("seq", id_type(), nullable=False, default=0),
    # A root is its own root. Set right after the insert, hence nullable.
    Column("root_provider_id", id_type(), ForeignKey("resource_providers.id")),
    Column("parent_provider_id", id_type(), ForeignKey("resource_providers.id")),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("ix_resource_providers_root", "root_provider_id"),
    Index("ix_resource_providers_parent", "parent_provider_id"),
    sqlite_autoincrement=True,
)

# No foreign keys to resource_providers in the tables that a claim writes: with one, an insert takes a share lock on the
# provider's row, and two transactions that then both bump its generation would deadlock.
inventories = Table(
    "inventories",
    METADATA,
    Column("resource_provider_id", id_type(), primary_key=True, autoincrement=False),
    Column("resource_class_id", id_type(), primary_key=True, autoincrement=False),
    Column("total", id_type(), nullable=False),
    Column("reserved", id_type(), nullable=False, default=0),
    Column("min_unit", id_type(), nullable=False, default=1),
    Column("max_unit", id_type(), nullable=False),
    Column("step_size", id_type(), nullable=False, default=1),
    Column("allocation_ratio", Double, nullable=False, default=1.0),
    # The sum of the allocations of this provider and class, kept by every write and checked by `moorage audit`.
    Column("used", id_type(), nullable=False, default=0),
    CheckConstraint("used >= 0", name="ck_inventories_used"),
    Index("ix_inventories_class", "resource_class_id"),
)


def _links(table: str, to: str) -> Table:
    return Table(
        table,
        METADATA,
        Column("resource_provider_id", id_type(), primary_key=True, autoincrement=False),
        Column(f"{to}_id", id_type(), primary_key=True, autoincrement=False),
        Index(f"ix_{table}_{to}", f"{to}_id"),
    )


provider_traits = _links("provider_traits", "trait")
provider_aggregates = _links("provider_aggregates", "aggregate")

# --- Consumers and allocations --------------------------------------------------------------------------------------

#: The type shown for a consumer whose stored type is null: it was written before consumer types existed.
UNKNOWN_TYPE = "UNKNOWN"

consumers = Table(
    "consumers",
    METADATA,
    _id(),
    Column("uuid", uuid_type(), nullable=False, unique=True),
    # Null is Placement's `unknown`: a consumer written before types were known.
    Column("consumer_type", name_type()),
    Column("project_id", name_type(), nullable=False),
    Column("user_id", name_type(), nullable=False),
    Column("generation", id_type(), nullable=False),
    # The claim that places it, and the root provider of its host; null for a consumer that no claim places.
    Column("claim_id", uuid_type()),
    Column("root_provider_id", id_type()),
    # The attempt whose host has accepted this claim at the first gate, and that host.
    Column("accepted_by", uuid_type()),
    Column("accepted_host", name_type()),
    Column("accepted_at", Double),
    # The topic that the reconciler asks whether an unaccepted claim is still wanted; null: it never asks.
    Column("owner", name_type()),
    Column("claimed_at", Double),
    Column("consumer_group_id", id_type()),
    # A row that was written over RPC outlives its last allocation; one written only over HTTP is deleted with it.
    Column("known_over_rpc", Boolean, nullable=False, default=True),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    # The instance that a migration moves: on one root provider the two count as one member of their group.
    Column("migration_of", uuid_type()),
    # The providers of its isolated request groups, by suffix; null if groups may share a provider.
    Column("isolated_groups", document_type()),
    # Where the amounts of a migration's source were when a destination was claimed, and that claim.
    Column("source_amounts", document_type()),
    Index("ix_consumers_claim", "claim_id"),
    Index("ix_consumers_group", "consumer_group_id", "root_provider_id"),
    # Has all columns by which the instances on a root are counted, also those of all hosts when a scheduler starts: the
    # rows of the consumers of one root are far apart.
    Index("ix_consumers_placed", "root_provider_id", "consumer_type", "migration_of", "claim_id"),
    Index("ix_consumers_migration_of", "migration_of"),
    Index("ix_consumers_unaccepted", "accepted_by", "claimed_at"),
    Index("ix_consumers_project", "project_id", "user_id"),
    sqlite_autoincrement=True,
)

allocations = Table(
    "allocations",
    METADATA,
    _id(),
    Column("consumer_id", id_type(), nullable=False),
    Column("resource_provider_id", id_type(), nullable=False),
    Column("resource_class_id", id_type(), nullable=False),
    Column("used", id_type(), nullable=False),
    CheckConstraint("used > 0", name="ck_allocations_used"),
    UniqueConstraint("consumer_id", "resource_provider_id", "resource_class_id", name="uq_allocations"),
    Index("ix_allocations_provider", "resource_provider_id", "resource_class_id", "used"),
)

# Consumers deleted for good: nothing can be claimed for them any more.
tombstones = Table(
    "tombstones",
    METADATA,
    Column("consumer_uuid", uuid_type(), primary_key=True),
    Column("created_at", Double, nullable=False),
    Index("ix_tombstones_created_at", "created_at"),
)

# --- Consumer groups ------------------------------------------------------------------------------------------------

# A write that adds a member counts the members from `consumers`, with the group's row locked (ADR 7).
consumer_groups = Table(
    "consumer_groups",
    METADATA,
    _id(),
    Column("uuid", uuid_type(), nullable=False, unique=True),
    # See moorage.model.GroupPolicy.
    Column("policy", name_type(), nullable=False),
    # How many members of an anti-affinity group one root provider may have.
    Column("max_per_root", Integer, nullable=False, default=1),
    # Bumped whenever a root gains a member of a group with a hard rule: that update is the lock.
    Column("seq", id_type(), nullable=False, default=0, server_default="0"),
    Column("created_at", Double, nullable=False),
    # Null for a group that was created by a claim.
    Column("name", name_type()),
    Column("project_id", name_type()),
    sqlite_autoincrement=True,
)

# --- Cells and hosts ------------------------------------------------------------------------------------------------

cells = Table(
    "cells",
    METADATA,
    _id(),
    Column("uuid", uuid_type(), nullable=False, unique=True),
    Column("name", name_type(), nullable=False, unique=True),
    # Null: each service uses the main URL of its own configuration.
    Column("transport_url", document_type()),
    Column("database_connection", document_type()),
    # The time of the newest heartbeats that have arrived from the cell, by the clock of its database.
    Column("alive_at", Double, nullable=False, default=0.0, server_default="0"),
    Column("created_at", Double, nullable=False),
)

hosts = Table(
    "hosts",
    METADATA,
    _id(),
    Column("cell_uuid", uuid_type(), nullable=False),
    Column("service_host", name_type(), nullable=False),
    Column("nodename", name_type(), nullable=False),
    Column("compute_node_uuid", uuid_type(), nullable=False, unique=True),
    Column("agent", name_type(), nullable=False),
    Column("availability_zone", name_type(), nullable=False),
    Column("attributes", document_type(), nullable=False),
    # The number that the cell has given to this description; 0 from a conductor of an older release. The cell must
    # describe the host again if it is negative: -1 if it is from a backup, PROVIDER_DELETED, INCOMPLETE. If one node is
    # incomplete, so is its host; otherwise one described node is enough.
    Column("description_number", Integer, nullable=False, default=0, server_default="0"),
    # The result of the last sweep, which compares the heartbeat with the database's clock.
    Column("up", Boolean, nullable=False),
    Column("disabled", Boolean, nullable=False, default=False),
    Column("disabled_reason", document_type()),
    Column("forced_down", Boolean, nullable=False, default=False),
    # The host's load as its cell has reported it, and the time of that report by the clock of the cell's database: if
    # reports arrive in the wrong order, the latest one counts.
    Column("io_ops", Integer, nullable=False, default=0, server_default="0"),
    Column("failed_builds", Double, nullable=False, default=0.0, server_default="0"),
    # The number of servers with each image property `name=value`; null if there are none.
    Column("image_properties", document_type()),
    Column("load_at", Double, nullable=False, default=0.0, server_default="0"),
    # Not bumped by a heartbeat alone; bumped when the host goes up or down.
    Column("seq", id_type(), nullable=False, default=0),
    Column("heartbeat_at", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    UniqueConstraint("cell_uuid", "service_host", "nodename", name="uq_hosts"),
    # `heartbeat_at` is not in the index: with it, each heartbeat of each host would cost twice as much.
    Index("ix_hosts_up", "up"),
    sqlite_autoincrement=True,
)

# Aggregates of providers with a name, metadata (a document, str to str) and hosts; keyed by the aggregate.
host_aggregates = Table(
    "host_aggregates",
    METADATA,
    Column("aggregate_id", id_type(), primary_key=True, autoincrement=False),
    Column("name", name_type(), nullable=False, unique=True),
    Column("metadata", document_type(), nullable=False),
    # Bumped by every change of the aggregate or of its hosts: that update is the lock.
    Column("seq", id_type(), nullable=False, default=0),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)
# Refers to a host by its name, so that every node that the host has or gets belongs to the aggregate.
host_aggregate_hosts = Table(
    "host_aggregate_hosts",
    METADATA,
    Column("aggregate_id", id_type(), primary_key=True, autoincrement=False),
    Column("cell_uuid", uuid_type(), primary_key=True),
    Column("service_host", name_type(), primary_key=True),
    Index("ix_host_aggregate_hosts_host", "cell_uuid", "service_host"),
)

# --- The feed of changes --------------------------------------------------------------------------------------------

# Written in the transaction of the change. Numbers are assigned before their transaction commits, so a reader that
# relies on them alone may miss one: only the comparison of (id, seq) of all rows makes a view correct.
changes = Table(
    "changes",
    METADATA,
    _id(),
    # Exactly one of the two is set; in the row that marks a restored store, neither is.
    Column("resource_provider_id", id_type()),
    Column("host_id", id_type()),
    Column("created_at", Double, nullable=False),
    Index("ix_changes_created_at", "created_at"),
    sqlite_autoincrement=True,
)

requests = request_table("requests", METADATA)

# --- Inspection -----------------------------------------------------------------------------------------------------

# The services that report themselves.
services = Table(
    "services",
    METADATA,
    Column("kind", name_type(), primary_key=True),
    Column("name", name_type(), primary_key=True),
    # Empty for a service of the whole cloud: a primary key cannot contain nulls.
    Column("cell_uuid", uuid_type(), primary_key=True),
    Column("machine", name_type(), nullable=False),
    Column("version", name_type(), nullable=False),
    Column("first_heard_at", Double, nullable=False),
    Column("heard_at", Double, nullable=False),
    # When it reported that it is being stopped. A later report, also one of a release without this column, leaves it as
    # it is and sets a later `heard_at`.
    Column("stopped_at", Double),
    Index("ix_services_heard_at", "heard_at"),
)

# The reconciler's last finding about each claim; no decision depends on it.
reconciled = Table(
    "reconciled",
    METADATA,
    Column("claim_id", uuid_type(), primary_key=True),
    Column("consumer_uuid", uuid_type(), nullable=False),
    Column("owner", name_type(), nullable=False),
    Column("outcome", name_type(), nullable=False),
    Column("reason", document_type(), nullable=False),
    Column("looked_at", Double, nullable=False),
    Index("ix_reconciled_looked_at", "looked_at"),
    # For the findings about claims that still exist: most rows may be about released ones.
    Index("ix_reconciled_outcome", "outcome"),
)

MAIN = Schema(
    name="main",
    metadata=METADATA,
    versions="placement_store.migrations",
    former_columns={"consumer_groups": ("rule", "home_root_provider_id", "home_count", "home_moving")},
)
