"""Create the main schema."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import document_type, id_type, name_type, request_id_type, uuid_type

revision = "main_0001"
down_revision = None


def upgrade() -> None:
    """Create the main schema."""
    schema_changes.create_table(
        "aggregates",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("uuid", uuid_type(), nullable=False, unique=True),
    )
    schema_changes.create_table(
        "allocations",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("consumer_id", id_type(), nullable=False),
        sa.Column("resource_provider_id", id_type(), nullable=False),
        sa.Column("resource_class_id", id_type(), nullable=False),
        sa.Column("used", id_type(), nullable=False),
        sa.CheckConstraint("used > 0", name="ck_allocations_used"),
        sa.UniqueConstraint("consumer_id", "resource_provider_id", "resource_class_id", name="uq_allocations"),
    )
    schema_changes.create_index(
        "ix_allocations_provider", "allocations", ["resource_provider_id", "resource_class_id", "used"], unique=False
    )
    schema_changes.create_table(
        "cells",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("uuid", uuid_type(), nullable=False, unique=True),
        sa.Column("name", name_type(), nullable=False, unique=True),
        sa.Column("transport_url", document_type(), nullable=True),
        sa.Column("database_connection", document_type(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    schema_changes.create_table(
        "changes",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("resource_provider_id", id_type(), nullable=True),
        sa.Column("host_id", id_type(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sqlite_autoincrement=True,
    )
    schema_changes.create_index("ix_changes_created_at", "changes", ["created_at"])
    schema_changes.create_table(
        "consumer_group_counts",
        sa.Column("consumer_group_id", id_type(), primary_key=True, autoincrement=False),
        sa.Column("root_provider_id", id_type(), primary_key=True, autoincrement=False),
        sa.Column("members", sa.Integer(), nullable=False),
        sa.CheckConstraint("members >= 0", name="ck_consumer_group_counts_members"),
    )
    schema_changes.create_table(
        "consumer_groups",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("uuid", uuid_type(), nullable=False, unique=True),
        sa.Column("rule", name_type(), nullable=False),
        sa.Column("max_per_root", sa.Integer(), nullable=False),
        sa.Column("home_root_provider_id", id_type(), nullable=True),
        sa.Column("home_count", sa.Integer(), nullable=False),
        sa.Column("home_moving", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    schema_changes.create_table(
        "consumers",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("uuid", uuid_type(), nullable=False, unique=True),
        sa.Column("consumer_type", name_type(), nullable=True),
        sa.Column("project_id", name_type(), nullable=False),
        sa.Column("user_id", name_type(), nullable=False),
        sa.Column("generation", id_type(), nullable=False),
        sa.Column("claim_id", uuid_type(), nullable=True),
        sa.Column("root_provider_id", id_type(), nullable=True),
        sa.Column("accepted_by", uuid_type(), nullable=True),
        sa.Column("accepted_host", name_type(), nullable=True),
        sa.Column("accepted_at", sa.Double(), nullable=True),
        sa.Column("owner", name_type(), nullable=True),
        sa.Column("claimed_at", sa.Double(), nullable=True),
        sa.Column("consumer_group_id", id_type(), nullable=True),
        sa.Column("known_over_rpc", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sqlite_autoincrement=True,
    )
    schema_changes.create_index("ix_consumers_claim", "consumers", ["claim_id"])
    schema_changes.create_index("ix_consumers_project", "consumers", ["project_id", "user_id"])
    schema_changes.create_index("ix_consumers_unaccepted", "consumers", ["accepted_by", "claimed_at"])
    schema_changes.create_table(
        "hosts",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("service_host", name_type(), nullable=False),
        sa.Column("nodename", name_type(), nullable=False),
        sa.Column("compute_node_uuid", uuid_type(), nullable=False, unique=True),
        sa.Column("agent", name_type(), nullable=False),
        sa.Column("availability_zone", name_type(), nullable=False),
        sa.Column("attributes", document_type(), nullable=False),
        sa.Column("up", sa.Boolean(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", document_type(), nullable=True),
        sa.Column("forced_down", sa.Boolean(), nullable=False),
        sa.Column("seq", id_type(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.UniqueConstraint("cell_uuid", "service_host", "nodename", name="uq_hosts"),
        sqlite_autoincrement=True,
    )
    schema_changes.create_index("ix_hosts_heartbeat", "hosts", ["up", "heartbeat_at"])
    schema_changes.create_table(
        "inventories",
        sa.Column("resource_provider_id", id_type(), primary_key=True, autoincrement=False),
        sa.Column("resource_class_id", id_type(), primary_key=True, autoincrement=False),
        sa.Column("total", id_type(), nullable=False),
        sa.Column("reserved", id_type(), nullable=False),
        sa.Column("min_unit", id_type(), nullable=False),
        sa.Column("max_unit", id_type(), nullable=False),
        sa.Column("step_size", id_type(), nullable=False),
        sa.Column("allocation_ratio", sa.Double(), nullable=False),
        sa.Column("used", id_type(), nullable=False),
        sa.CheckConstraint("used >= 0", name="ck_inventories_used"),
    )
    schema_changes.create_index("ix_inventories_class", "inventories", ["resource_class_id"])
    schema_changes.create_table(
        "provider_aggregates",
        sa.Column("resource_provider_id", id_type(), primary_key=True, autoincrement=False),
        sa.Column("aggregate_id", id_type(), primary_key=True, autoincrement=False),
    )
    schema_changes.create_index("ix_provider_aggregates_aggregate", "provider_aggregates", ["aggregate_id"])
    schema_changes.create_table(
        "provider_traits",
        sa.Column("resource_provider_id", id_type(), primary_key=True, autoincrement=False),
        sa.Column("trait_id", id_type(), primary_key=True, autoincrement=False),
    )
    schema_changes.create_index("ix_provider_traits_trait", "provider_traits", ["trait_id"])
    schema_changes.create_table(
        "requests",
        sa.Column("request_id", request_id_type(), primary_key=True),
        sa.Column("method", name_type(), nullable=False),
        sa.Column(
            "digest",
            sa.LargeBinary(length=32)
            .with_variant(sa.BINARY(length=32), "mariadb")
            .with_variant(sa.BINARY(length=32), "mysql"),
            nullable=False,
        ),
        sa.Column("result", document_type(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("acknowledged_at", sa.Double(), nullable=True),
    )
    schema_changes.create_index("ix_requests_created_at", "requests", ["created_at"])
    schema_changes.create_table(
        "resource_classes",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("name", name_type(), nullable=False, unique=True),
    )
    schema_changes.create_table(
        "resource_providers",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("uuid", uuid_type(), nullable=False, unique=True),
        sa.Column("name", name_type(), nullable=False, unique=True),
        sa.Column("generation", id_type(), nullable=False),
        sa.Column("seq", id_type(), nullable=False),
        sa.Column("root_provider_id", id_type(), nullable=True),
        sa.Column("parent_provider_id", id_type(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["parent_provider_id"], ["resource_providers.id"]),
        sa.ForeignKeyConstraint(["root_provider_id"], ["resource_providers.id"]),
        sqlite_autoincrement=True,
    )
    schema_changes.create_index("ix_resource_providers_parent", "resource_providers", ["parent_provider_id"])
    schema_changes.create_index("ix_resource_providers_root", "resource_providers", ["root_provider_id"])
    schema_changes.create_table(
        "tombstones",
        sa.Column("consumer_uuid", uuid_type(), primary_key=True),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    schema_changes.create_index("ix_tombstones_created_at", "tombstones", ["created_at"])
    schema_changes.create_table(
        "traits",
        sa.Column("id", id_type(), primary_key=True, autoincrement=True),
        sa.Column("name", name_type(), nullable=False, unique=True),
    )
