"""Add columns of hosts, cells, consumers and services, and record the oldest code that works on the schema."""

import sqlalchemy as sa
from alembic import op

from moorage.db import schema_changes
from moorage.db.columns import document_type

revision = "main_0007"
down_revision = "main_0006"


def upgrade() -> None:
    """Add columns of hosts, cells, consumers and services, and record the oldest code that works on the schema."""
    schema_changes.add_column(
        "hosts", sa.Column("description_number", sa.Integer(), server_default="0", nullable=False)
    )
    schema_changes.add_column("cells", sa.Column("alive_at", sa.Double(), server_default="0", nullable=False))
    schema_changes.add_column("consumers", sa.Column("isolated_groups", document_type(), nullable=True))
    schema_changes.add_column("services", sa.Column("stopped_at", sa.Double(), nullable=True))
    _mark_disabled_hosts()
    # Everything in this revision expands the schema, so that the code of the revision before works on it.
    schema_changes.declare_oldest_code("main", "main_0006")


def _mark_disabled_hosts() -> None:
    """Add the trait of disabled hosts to the roots of those that are disabled already."""
    connection = op.get_bind()
    number_of = sa.text("SELECT id FROM traits WHERE name = 'COMPUTE_STATUS_DISABLED'")
    unmarked = (
        "root_provider_id = id AND uuid IN (SELECT compute_node_uuid FROM hosts WHERE disabled) AND id NOT IN "
        "(SELECT resource_provider_id FROM provider_traits WHERE trait_id = :number)"
    )
    found = f"SELECT id FROM resource_providers WHERE {unmarked}"  # noqa: S608
    number = connection.scalar(number_of)
    if not connection.execute(sa.text(found), {"number": number or 0}).all():
        return
    if number is None:
        connection.execute(sa.text("INSERT INTO traits (name) VALUES ('COMPUTE_STATUS_DISABLED')"))
        number = connection.scalar(number_of)
    # Their generation is bumped, so that an agent reads its tree anew; then they are no longer found.
    rows = [row.id for row in connection.execute(sa.text(found), {"number": number})]
    for id_ in rows:
        connection.execute(
            sa.text("UPDATE resource_providers SET generation = generation + 1, seq = seq + 1 WHERE id = :id"),
            {"id": id_},
        )
        connection.execute(
            sa.text("INSERT INTO provider_traits (resource_provider_id, trait_id) VALUES (:id, :number)"),
            {"id": id_, "number": number},
        )
