"""Drop the counters of group members, name groups, and record the instance that a migration moves."""

import sqlalchemy as sa
from alembic import op

from moorage.db import schema_changes
from moorage.db.columns import id_type, name_type, uuid_type

revision = "main_0004"
down_revision = "main_0003"

_GROUPS = sa.table("consumer_groups", sa.column("policy", sa.String()))
#: The policies by the former names of the rules.
_POLICIES = {"spread": "anti-affinity", "together": "affinity"}


def upgrade() -> None:
    """Drop the counters of server group members, name groups, and record the instance that a migration moves."""
    schema_changes.drop_table("consumer_group_counts")
    found = schema_changes.columns("consumer_groups")
    # SQLite would assign the id of a deleted last row again; its table is rebuilt here with AUTOINCREMENT.
    with op.batch_alter_table("consumer_groups", table_kwargs={"sqlite_autoincrement": True}) as groups:
        # Each of these is a statement of its own on MySQL and MariaDB: an upgrade that failed may have done some.
        if "rule" in found:
            groups.alter_column("rule", new_column_name="policy", existing_type=name_type(), existing_nullable=False)
        for former_column in sorted(found & {"home_root_provider_id", "home_count", "home_moving"}):
            groups.drop_column(former_column)
        for column in (
            sa.Column("seq", id_type(), server_default="0", nullable=False),
            sa.Column("name", name_type(), nullable=True),
            sa.Column("project_id", name_type(), nullable=True),
        ):
            if column.name not in found:
                groups.add_column(column)
    for former, policy in _POLICIES.items():
        op.execute(_GROUPS.update().where(_GROUPS.c.policy == former).values(policy=policy))
    schema_changes.add_column("consumers", sa.Column("migration_of", uuid_type(), nullable=True))
    schema_changes.create_index("ix_consumers_group", "consumers", ["consumer_group_id", "root_provider_id"])
    schema_changes.create_index("ix_consumers_migration_of", "consumers", ["migration_of"])
