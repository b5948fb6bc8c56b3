"""The conductors' records: the super conductor's schema and a cell's; an operation has one shape in both."""

from typing import Any

from sqlalchemy import Boolean, Column, Double, Index, Integer, MetaData, Table, UniqueConstraint, false

from moorage.db.columns import document_type, id_type, name_type, request_id_type, uuid_type
from moorage.db.schemas import Schema
from moorage.service.stored_requests import request_table

CONDUCTOR_METADATA = MetaData()
CELL_METADATA = MetaData()


def operation_table(name: str, metadata: MetaData, *scope: Column[Any]) -> Table:
    """Return a table of operations; ``scope`` are columns that come first in its key."""
    scoped = [column.name for column in scope]
    return Table(
        name,
        metadata,
        *scope,
        Column("uuid", uuid_type(), primary_key=True),
        # `build`, `delete`, `move` and so on; see `conductor.engine.steps`.
        Column("kind", name_type(), nullable=False),
        # The request that it all began with: on every log line.
        Column("request_id", request_id_type(), nullable=False),
        # The instance it is about; of a build of the super conductor, the request.
        Column("subject", name_type(), nullable=False),
        # The step to be done next, and all that it needs: written before it is done.
        Column("step", name_type(), nullable=False),
        Column("step_number", Integer, nullable=False),
        Column("payload", document_type(), nullable=False),
        # How often this step has been tried in vain, and what the last try met.
        Column("tries", Integer, nullable=False),
        Column("reason", document_type()),
        # `pending`, `done` or `failed`.
        Column("state", name_type(), nullable=False),
        # When the step may be done; null while it waits for a message. Of an operation that has ended, when that was.
        Column("due_at", Double),
        # Who works on it, until when, and how often that has changed hands: compared and swapped with every step.
        Column("lease_owner", name_type()),
        Column("lease_until", Double),
        Column("lease_number", Integer, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("updated_at", Double, nullable=False),
        Index(f"ix_{name}_due", *scoped, "state", "due_at"),
        Index(f"ix_{name}_subject", *scoped, "subject"),
    )


def revoked_claims_table(name: str, metadata: MetaData, *scope: Column[Any]) -> Table:
    """Return a table of claims that their owner does not want: whatever comes late and names one is refused."""
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
    # The order in which they were asked for.
    Column("id", id_type(), primary_key=True, autoincrement=True),
    Column("uuid", uuid_type(), nullable=False, unique=True),
    # The operation that builds it.
    Column("operation_uuid", uuid_type(), nullable=False),
    Column("request_id", request_id_type(), nullable=False),
    Column("project_id", name_type(), nullable=False),
    Column("user_id", name_type(), nullable=False),
    Column("request_spec", document_type(), nullable=False),
    # What is known here. Once it is handed over, its cell knows better.
    Column("state", name_type(), nullable=False),
    Column("reason", document_type()),
    Column("explanation", document_type()),
    # Set before the cell is first told of it: from then on the cell may have it.
    Column("cell_uuid", uuid_type()),
    # The scheduler's answer, until the cell has it.
    Column("selections", document_type()),
    Column("handed_over", Boolean, nullable=False),
    # How many orders about it were passed on or put on record: the number of the last of them.
    Column("order_number", Integer, nullable=False, server_default="0"),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("ix_conductor_instances_operation", "operation_uuid"),
    Index("ix_conductor_instances_project", "project_id", "state"),
    Index("ix_conductor_instances_request", "request_id"),
    # Those that are being deleted, and those that were deleted long ago.
    Index("ix_conductor_instances_state", "state", "updated_at"),
    # SQLite would give the number of a deleted last row out again.
    sqlite_autoincrement=True,
)

# A move of an instance, under the uuid of the operation that begins it.
conductor_migrations = Table(
    "conductor_migrations",
    CONDUCTOR_METADATA,
    # The order in which they were asked for.
    Column("id", id_type(), primary_key=True, autoincrement=True),
    Column("uuid", uuid_type(), nullable=False, unique=True),
    Column("instance_uuid", uuid_type(), nullable=False),
    Column("cell_uuid", uuid_type(), nullable=False),
    Column("request_id", request_id_type(), nullable=False),
    Column("kind", name_type(), nullable=False),
    # What is known here. Once it is handed over, its cell knows better; how it ended is told here in the end.
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
    # Null where the order to delete it came before the order to build it, which then finds it deleted.
    Column("request_spec", document_type()),
    # What it is, or was last, to be built on, and the number of the attempt with the first of them.
    Column("selections", document_type()),
    Column("first_number", Integer, nullable=False, server_default="1"),
    Column("state", name_type(), nullable=False),
    Column("reason", document_type()),
    # The current attempt, with its claim; 0 and null where there is none.
    Column("attempt_number", Integer, nullable=False),
    Column("claim_id", uuid_type()),
    # Where its guest is, or is being built; of a move under way that is the source.
    Column("host", name_type()),
    # The move that is under way, or waits to be confirmed or reverted.
    Column("migration_uuid", uuid_type()),
    # The number of the last order that was carried out, and the greatest of those that were refused.
    Column("order_number", Integer, nullable=False, server_default="0"),
    Column("refused_order_number", Integer, nullable=False, server_default="0"),
    # How many orders to its guests were written down: the number of the last of them.
    Column("guest_order_number", Integer, nullable=False, server_default="0"),
    # Which of the request's groups were attached to it after its build: a list of suffixes.
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
    # The migration that it was made for; null for a build.
    Column("migration_uuid", uuid_type()),
    # What it was claimed with, or was to be. Null in the records of earlier versions that had lost it.
    Column("selection", document_type()),
    Column("host", name_type(), nullable=False),
    Column("agent", name_type(), nullable=False),
    # Null for an attempt whose claim was refused.
    Column("claim_id", uuid_type()),
    # The life of its host when the attempt was recorded; null in the records of earlier versions.
    Column("host_life", Integer),
    Column("state", name_type(), nullable=False),
    Column("reason", document_type()),
    # Its host has found that no other one would do either.
    Column("no_other_host", Boolean, nullable=False, server_default=false()),
    # Proven: its host has said so, or never could have started one.
    Column("guest_gone", Boolean, nullable=False),
    # Its host has passed the first gate: what it leaves is held by a residue. Null where that was not recorded yet.
    Column("accepted", Boolean),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    UniqueConstraint("cell_uuid", "instance_uuid", "number", name="uq_cell_attempts"),
    Index("ix_cell_attempts_host", "cell_uuid", "host"),
    Index("ix_cell_attempts_migration", "cell_uuid", "migration_uuid"),
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
    # What the instance was before, and is again if nothing comes of the move.
    Column("instance_state", name_type(), nullable=False),
    Column("source_number", Integer, nullable=False),
    Column("source_host", name_type(), nullable=False),
    Column("destination_host", name_type()),
    # Null until something is claimed for it: what is asked for from now on, what the migration holds of the source,
    # where the instance is to go, and the number of the attempt with the first of them.
    Column("request_spec", document_type()),
    Column("held", document_type()),
    Column("selections", document_type()),
    Column("first_number", Integer),
    # It is to be broken off as soon as nothing of it is in the air.
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
    # How often the description has changed, and up to which change a scheduler has it.
    Column("description_number", Integer, nullable=False),
    Column("acknowledged_number", Integer, nullable=False),
    Column("last_seen", Double, nullable=False),
    # It was away, and has yet to work through what ended meanwhile: until then it is not told of as alive.
    Column("is_returning", Boolean, nullable=False, server_default=false()),
    # How often it has begun to return: each time is a new life of the host. The same in all rows of a service host.
    Column("life", Integer, nullable=False, server_default="0"),
    # The schedulers do not know it: its agent is to report its providers and to describe it anew.
    Column("undescribed", Boolean, nullable=False, server_default=false()),
    Index("ix_cell_hosts_agent", "cell_uuid", "agent"),
    Index("ix_cell_hosts_seen", "cell_uuid", "last_seen"),
)

# The incarnations of agents: each start of an agent is one, and the one with the greatest number is the present one.
cell_agents = Table(
    "cell_agents",
    CELL_METADATA,
    _cell(),
    Column("agent", name_type(), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", uuid_type(), nullable=False),
    # The numbers of the last messages of each kind that were carried out.
    Column("described", Integer, nullable=False),
    Column("alive", Integer, nullable=False),
    Column("providers", Integer, nullable=False),
)

# A build that has failed on a host, and how much of it still counts: a guest that starts there halves it.
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

# Guests that hosts have and that nothing is known of here. They are left running.
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
# One space of ids for all cells of a database: a cell stores its own under ids that follow from its uuid.
cell_requests = request_table("cell_requests", CELL_METADATA)
cell_disowned = revoked_claims_table("cell_disowned", CELL_METADATA, _cell())

CONDUCTOR = Schema(name="conductor", metadata=CONDUCTOR_METADATA, versions="conductor.migrations.conductor")
CELL = Schema(name="cell", metadata=CELL_METADATA, versions="conductor.migrations.cell")
