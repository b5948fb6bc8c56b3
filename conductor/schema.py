"""The database schemas of the super conductor and of a cell; the table of operations is the same in both."""

from typing import Any

from sqlalchemy import Boolean, Column, Double, Index, Integer, MetaData, Table, UniqueConstraint, false

from moorage.db.columns import document_type, id_type, name_type, request_id_type, uuid_type
from moorage.db.schemas import Schema
from moorage.service.stored_requests import request_table

CONDUCTOR_METADATA = MetaData()
CELL_METADATA = MetaData()


def operation_table(name: str, metadata: MetaData, *scope: Column[Any]) -> Table:
    """Return a table of operations; the columns of ``scope`` come first in its key."""
    scoped = [column.name for column in scope]
    return Table(
        name,
        metadata,
        *scope,
        Column("uuid", uuid_type(), primary_key=True),
        # `build`, `delete`, `move` and so on; see `conductor.engine.steps`.
        Column("kind", name_type(), nullable=False),
        # The id of the operator's request that the operation belongs to: on every log line.
        Column("request_id", request_id_type(), nullable=False),
        # The uuid of the instance; for a build of the super conductor, the request id.
        Column("subject", name_type(), nullable=False),
        # The next step, and its payload: recorded before the step is done.
        Column("step", name_type(), nullable=False),
        Column("step_number", Integer, nullable=False),
        Column("payload", document_type(), nullable=False),
        # The number of failed tries of this step, and the error of the last one.
        Column("tries", Integer, nullable=False),
        Column("reason", document_type()),
        # `pending`, `done` or `failed`.
        Column("state", name_type(), nullable=False),
        # When the step is due; null while it waits for a message. For an ended operation, the time of its end.
        Column("due_at", Double),
        # The lease: its owner, its expiry, and the number of times it was taken. Each step compares and swaps them.
        Column("lease_owner", name_type()),
        Column("lease_until", Double),
        Column("lease_number", Integer, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("updated_at", Double, nullable=False),
        Index(f"ix_{name}_due", *scoped, "state", "due_at"),
        Index(f"ix_{name}_subject", *scoped, "subject"),
    )


def revoked_claims_table(name: str, metadata: MetaData, *scope: Column[Any]) -> Table:
    """Return a table of revoked claims: a late message that names one is refused. In SQL: disowned."""
    return Table(
        name,
        metadata,
        *scope,
        Column("claim_id", uuid_type(), primary_key=True),
        Column("consumer_uuid", uuid_type(), nullable=False),
        Column("created_at", Double, nullable=False),
        Index(f"ix_{name}_created_at", "created_at"),
    )


# --- The super conductor's -----------------------------------------------------------------------------------------

conductor_instances = Table(
    "conductor_instances",
    CONDUCTOR_METADATA,
    # The order of the requests.
    Column("id", id_type(), primary_key=True, autoincrement=True),
    Column("uuid", uuid_type(), nullable=False, unique=True),
    # The operation that builds the instance.
    Column("operation_uuid", uuid_type(), nullable=False),
    Column("request_id", request_id_type(), nullable=False),
    Column("project_id", name_type(), nullable=False),
    Column("user_id", name_type(), nullable=False),
    # The name that the operator has given; not unique.
    Column("name", name_type()),
    Column("request_spec", document_type(), nullable=False),
    # The state until the hand-over; after it, the state in the cell has precedence.
    Column("state", name_type(), nullable=False),
    Column("reason", document_type()),
    Column("explanation", document_type()),
    # Set before the instance is first sent to the cell: from then on the cell may have it.
    Column("cell_uuid", uuid_type()),
    # The scheduler's selections, until the cell has them.
    Column("selections", document_type()),
    # The cell has taken the instance, or has refused it.
    Column("handed_over", Boolean, nullable=False),
    # The number of the last order about the instance that was forwarded or recorded.
    Column("order_number", Integer, nullable=False, server_default="0"),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("ix_conductor_instances_operation", "operation_uuid"),
    Index("ix_conductor_instances_project", "project_id", "state"),
    Index("ix_conductor_instances_name", "name"),
    Index("ix_conductor_instances_request", "request_id"),
    # For the instances that are being deleted, and those that were deleted long ago.
    Index("ix_conductor_instances_state", "state", "updated_at"),
    # For pages of the instances that exist: most rows may be of deleted ones.
    Index("ix_conductor_instances_state_id", "state", "id"),
    # Otherwise SQLite would reuse the id of a deleted last row.
    sqlite_autoincrement=True,
)

# A migration has the uuid of the operation that begins it.
conductor_migrations = Table(
    "conductor_migrations",
    CONDUCTOR_METADATA,
    # The order of the requests.
    Column("id", id_type(), primary_key=True, autoincrement=True),
    Column("uuid", uuid_type(), nullable=False, unique=True),
    Column("instance_uuid", uuid_type(), nullable=False),
    Column("cell_uuid", uuid_type(), nullable=False),
    Column("request_id", request_id_type(), nullable=False),
    Column("kind", name_type(), nullable=False),
    # The state until the hand-over; after it, the state in the cell has precedence. The final state is copied here.
    Column("state", name_type(), nullable=False),
    Column("source_host", name_type()),
    Column("destination_host", name_type()),
    Column("reason", document_type()),
    Column("explanation", document_type()),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("ix_conductor_migrations_instance", "instance_uuid"),
    Index("ix_conductor_migrations_state", "state"),
    Index("ix_conductor_migrations_request", "request_id"),
    sqlite_autoincrement=True,
)

conductor_operations = operation_table("conductor_operations", CONDUCTOR_METADATA)
conductor_requests = request_table("conductor_requests", CONDUCTOR_METADATA)
conductor_disowned = revoked_claims_table("conductor_disowned", CONDUCTOR_METADATA)

# --- A cell's: several may share one database -------------------------------------------------------------------------


def _cell() -> Column[str]:
    return Column("cell_uuid", uuid_type(), primary_key=True)


cell_instances = Table(
    "cell_instances",
    CELL_METADATA,
    _cell(),
    Column("uuid", uuid_type(), primary_key=True),
    Column("request_id", request_id_type(), nullable=False),
    # Null if the order to delete the instance arrived before the order to build it, which then changes nothing.
    Column("request_spec", document_type()),
    # The hosts of the current or last attempts, and the number of the attempt on the first of them.
    Column("selections", document_type()),
    Column("first_number", Integer, nullable=False, server_default="1"),
    Column("state", name_type(), nullable=False),
    Column("reason", document_type()),
    # The current attempt and its claim; 0 and null if there is none.
    Column("attempt_number", Integer, nullable=False),
    Column("claim_id", uuid_type()),
    # The host on which the guest is or is being built; during a move, the source.
    Column("host", name_type()),
    # The migration that is in progress, or waits to be confirmed or reverted.
    Column("migration_uuid", uuid_type()),
    # The number of the last order that was carried out, and the greatest number of a refused one.
    Column("order_number", Integer, nullable=False, server_default="0"),
    Column("refused_order_number", Integer, nullable=False, server_default="0"),
    # The number of the last order to one of its guests that was recorded.
    Column("guest_order_number", Integer, nullable=False, server_default="0"),
    # The suffixes of the request groups that were attached after the build, as a list.
    Column("attached", document_type()),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("ix_cell_instances_host", "cell_uuid", "host"),
    Index("ix_cell_instances_state", "cell_uuid", "state", "updated_at"),
)

cell_attempts = Table(
    "cell_attempts",
    CELL_METADATA,
    _cell(),
    Column("attempt_id", uuid_type(), primary_key=True),
    Column("instance_uuid", uuid_type(), nullable=False),
    Column("number", Integer, nullable=False),
    # The migration that the attempt belongs to; null for a build.
    Column("migration_uuid", uuid_type()),
    # The selection that was claimed, or had to be claimed. Null in records of earlier versions, which did not keep it.
    Column("selection", document_type()),
    Column("host", name_type(), nullable=False),
    Column("agent", name_type(), nullable=False),
    # Null for an attempt whose claim was refused.
    Column("claim_id", uuid_type()),
    # The incarnation of its host when the attempt was recorded; null in the records of earlier versions.
    Column("host_life", Integer),
    Column("state", name_type(), nullable=False),
    Column("reason", document_type()),
    # Its host has reported that no other host can build it either.
    Column("no_other_host", Boolean, nullable=False, server_default=false()),
    # It is certain that no guest is left: the host has reported it, or could never have started one.
    Column("guest_gone", Boolean, nullable=False),
    # The attempt has passed the first gate: if its guest is left, it has a residue. Null until that is recorded.
    Column("accepted", Boolean),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    UniqueConstraint("cell_uuid", "instance_uuid", "number", name="uq_cell_attempts"),
    Index("ix_cell_attempts_on_host", "cell_uuid", "host", "guest_gone"),
    Index("ix_cell_attempts_migration", "cell_uuid", "migration_uuid"),
    # For the few attempts that have ended and whose guests may be left.
    Index("ix_cell_attempts_guest", "cell_uuid", "guest_gone", "state"),
)

cell_migrations = Table(
    "cell_migrations",
    CELL_METADATA,
    _cell(),
    Column("uuid", uuid_type(), primary_key=True),
    Column("instance_uuid", uuid_type(), nullable=False),
    Column("request_id", request_id_type(), nullable=False),
    Column("kind", name_type(), nullable=False),
    Column("state", name_type(), nullable=False),
    Column("reason", document_type()),
    # The state of the instance before the move; the instance returns to it if the move fails.
    Column("instance_state", name_type(), nullable=False),
    Column("source_number", Integer, nullable=False),
    Column("source_host", name_type(), nullable=False),
    Column("destination_host", name_type()),
    # Null until the move has a claim: the request after the move, the allocations that the migration holds on the
    # source, the hosts to try, and the number of the attempt on the first of them.
    Column("request_spec", document_type()),
    Column("held", document_type()),
    Column("selections", document_type()),
    Column("first_number", Integer),
    # The migration must be aborted as soon as none of its messages is in flight.
    Column("is_aborted", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("ix_cell_migrations_instance", "cell_uuid", "instance_uuid"),
)

cell_hosts = Table(
    "cell_hosts",
    CELL_METADATA,
    _cell(),
    Column("service_host", name_type(), primary_key=True),
    Column("nodename", name_type(), primary_key=True),
    Column("agent", name_type(), nullable=False),
    Column("description", document_type(), nullable=False),
    # The number of the last change of the description, and of the last one that a scheduler has acknowledged.
    Column("description_number", Integer, nullable=False),
    Column("acknowledged_number", Integer, nullable=False),
    Column("last_seen", Double, nullable=False),
    # The host was absent, and must clean up the attempts that ended meanwhile: until then it counts as down.
    Column("is_returning", Boolean, nullable=False, server_default=false()),
    # The number of times that the host has begun to return. The same in all rows of a service host.
    Column("life", Integer, nullable=False, server_default="0"),
    # The schedulers have no description of it: its agent must report its providers and describe it again.
    Column("undescribed", Boolean, nullable=False, server_default=false()),
    # When its agent last reported that the host is alive, but its provider tree is refused.
    Column("withheld_at", Double),
    # No index on `last_seen`: it would make each heartbeat of each host three times as expensive.
    Index("ix_cell_hosts_agent", "cell_uuid", "agent"),
)

# The incarnations of agents, one for each start; the incarnation with the greatest number is the current one.
cell_agents = Table(
    "cell_agents",
    CELL_METADATA,
    _cell(),
    Column("agent", name_type(), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", uuid_type(), nullable=False),
    # The number of the last message of each kind that was carried out.
    Column("described", Integer, nullable=False),
    Column("alive", Integer, nullable=False),
    Column("providers", Integer, nullable=False),
)

# A failed build on a host, with its current weight: each guest that starts on the host halves it.
cell_failed_builds = Table(
    "cell_failed_builds",
    CELL_METADATA,
    _cell(),
    Column("attempt_id", uuid_type(), primary_key=True),
    Column("host", name_type(), nullable=False),
    Column("weight", Double, nullable=False),
    Column("failed_at", Double, nullable=False),
    Index("ix_cell_failed_builds_host", "cell_uuid", "host"),
)

# Unknown guests: they are on hosts, but the cell has no record of them. They are left running.
cell_guests = Table(
    "cell_guests",
    CELL_METADATA,
    _cell(),
    Column("host", name_type(), primary_key=True),
    Column("attempt_id", uuid_type(), primary_key=True),
    Column("agent", name_type(), nullable=False),
    Column("guest", document_type(), nullable=False),
    Column("seen_at", Double, nullable=False),
)

cell_operations = operation_table("cell_operations", CELL_METADATA, _cell())
# The request ids of all cells of a database share this table: a cell derives its ids from its uuid.
cell_requests = request_table("cell_requests", CELL_METADATA)
cell_disowned = revoked_claims_table("cell_disowned", CELL_METADATA, _cell())

CONDUCTOR = Schema(name="conductor", metadata=CONDUCTOR_METADATA, versions="conductor.migrations.conductor")
CELL = Schema(name="cell", metadata=CELL_METADATA, versions="conductor.migrations.cell")
